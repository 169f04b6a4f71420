"""The node: what is read of it, watched on it and written to it."""
