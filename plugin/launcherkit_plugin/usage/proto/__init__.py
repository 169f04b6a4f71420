"""The kubelet's PodResources: ``*.proto``, and what ``python -m tests.support.protos`` makes of it."""
