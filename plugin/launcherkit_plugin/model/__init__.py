"""Frozen values that the rooms of the plugin hand to each other: no I/O."""
