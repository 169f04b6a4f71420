"""The process that serves metrics and page over the network. It has no rights on the host (T6)."""
