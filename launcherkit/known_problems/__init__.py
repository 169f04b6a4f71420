"""What is known to break the passing of devices to VMs, and what recognises it."""
