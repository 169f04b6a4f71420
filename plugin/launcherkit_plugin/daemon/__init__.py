"""The daemon: puts its parts together, and runs the loop."""
