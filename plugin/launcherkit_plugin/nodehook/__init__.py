"""The node hook of a KubeVirt plugin (VEP 190): what virt-handler says of VMs that start and stop on this node."""
