"""The cluster: Events on the node, KubeVirt's configuration, node labels, ends of pods; for DRA, slices and claims.

A separate process, in a pod a separate container, talks to the API server. It has the credentials, the network, and the
Kubernetes client, which takes as much memory as all the rest. The daemon has the devices and none of these. It works
without that process, except for new claims of DRA. `protocol` describes the messages between the two; `socket` is the
daemon's side, `serve` the other.
"""
