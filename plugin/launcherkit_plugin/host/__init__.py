"""The node: reading it, watching it, and writing to it."""
