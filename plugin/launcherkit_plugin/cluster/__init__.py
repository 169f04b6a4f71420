"""The cluster: Events on the node, KubeVirt's configuration, node labels, ends of pods; for DRA slices and claims.

What speaks to the API server is a process of its own, in a pod a container of its own: it has the credentials, the
network and the Kubernetes client, which takes as much memory as all the rest. The daemon has the devices and none of
these, and works without that process, but for what is new by DRA. `protocol` is what they say to each other; `socket`
is the daemon's side, `serve` the other.
"""
