"""The project's own mdev driver, whose vGPUs a machine without a GPU can have."""
