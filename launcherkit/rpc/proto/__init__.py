"""Messages of the kubelet's PodResources, and the module generated from them by ``python -m tests.support.protos``."""
