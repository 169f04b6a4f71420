"""Decides which device answers which request, its siblings, and whether the kernel allows it. Pure."""
