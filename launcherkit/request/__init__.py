"""Readers of all inputs: environment, VMI, sysfs, snapshots, recordings. Errors name file, key and value."""
