"""Frozen values that the rooms of the plugin pass to each other: no I/O."""
