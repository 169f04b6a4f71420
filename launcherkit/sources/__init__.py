"""Rooms that read the world: environment, VMI, sysfs, snapshots, recordings. Each error names the file, the key and the value."""
