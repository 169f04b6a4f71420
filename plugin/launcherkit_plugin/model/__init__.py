"""Frozen values that the packages of the plugin pass to each other: no I/O."""
