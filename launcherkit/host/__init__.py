"""What a machine has: read from sysfs, a snapshot or a recording."""
