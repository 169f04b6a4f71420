"""The tree of a host as values: NUMA node, root complex, port or switch, slot, function. Pure."""
