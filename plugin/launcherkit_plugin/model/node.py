"""What the processes on a node are told of it."""

NODE = "NODE_NAME"
"""The variable with the node's name, by the downward API."""
