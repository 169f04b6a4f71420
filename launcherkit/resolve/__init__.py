"""Which physical device answers which request, what comes along, and whether the kernel allows it. Pure."""
