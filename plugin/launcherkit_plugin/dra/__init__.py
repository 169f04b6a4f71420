"""The driver for Dynamic Resource Allocation: publishes devices in ResourceSlices and prepares claims."""
