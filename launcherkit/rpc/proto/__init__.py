"""The wire of the kubelet's PodResources, and what is generated from it by ``python -m tests.support.protos``."""
