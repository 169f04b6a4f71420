"""The node and its kubelet are those of the daemon's own tests."""

from tests.plugin.daemon.test_serve import kubelet, node

__all__ = ["kubelet", "node"]
