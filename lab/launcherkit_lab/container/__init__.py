"""A driver as a DaemonSet has it: its container, started by runc from an image's archive."""
