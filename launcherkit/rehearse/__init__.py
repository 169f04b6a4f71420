"""Whether a VM would start on other nodes, and what its guest would find: values in, values out."""
