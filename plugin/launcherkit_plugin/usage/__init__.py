"""Who holds which device: PodResources, the kubelet's checkpoint, open VFIO nodes."""
