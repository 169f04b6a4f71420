"""Kinds of devices: what is advertised, under which names, and what a container gets."""
