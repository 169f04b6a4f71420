"""What reads the world: environment, VMI, sysfs, snapshots, recordings. Errors name the file, the key and the value."""
