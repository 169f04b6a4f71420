"""The kubelet: registration, one gRPC server a resource, its sockets."""
