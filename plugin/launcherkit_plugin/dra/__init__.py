"""Dynamic Resource Allocation: what is published of devices, and what a claim gets."""
