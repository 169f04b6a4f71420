"""The kubelet: registration, a gRPC server for each resource, and which pod holds which device."""
