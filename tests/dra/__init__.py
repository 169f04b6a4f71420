"""A kubelet's DRA manager, a runtime's CDI, the scheduler's allocation and an API server, strict where the real are.

They do what was seen of Kubernetes 1.36.2 (kubelet, API server, scheduler and controller manager, with containerd
1.7.24) when a DRA driver of a hundred lines ran on it: registration and the choice of a version, deadlines and repeats,
what becomes of wrong answers, slices that are wiped, the limits of the API, CDI in containers. Nothing here is
Kubernetes' code. CEL is no part of it, and how strictly CDI files are read is by CDI's specification.
"""
