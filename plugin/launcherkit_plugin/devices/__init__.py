"""PCI devices: which are advertised, under which names, and what a container gets for them."""
