"""Whether a VM would start on nodes that are elsewhere, and what its guest would find: values in, values out."""
