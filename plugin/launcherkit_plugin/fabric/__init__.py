"""Fabric partitions of NVSwitch boards: read from NVIDIA's Fabric Manager, activated for pods, deactivated again."""
