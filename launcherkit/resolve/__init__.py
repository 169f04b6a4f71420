"""Which physical device answers which request, its siblings, and whether the kernel allows it. Pure."""
