"""The node hook of a KubeVirt plugin (VEP 190): virt-handler calls it when VMs start and stop on this node."""
