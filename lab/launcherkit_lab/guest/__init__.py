"""A guest of 2 KB that lists its PCI bus: its kernel, what it says, and a QEMU with a container's device nodes."""
