"""What the daemon wants to know of Kubernetes' objects. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from launcherkit_plugin.cluster.api import Json, part

KUBEVIRT_PATH = "/apis/kubevirt.io/v1/kubevirts"
PODS_PATH = "/api/v1/pods"
NODES_PATH = "/api/v1/nodes"
EVENTS_PATH = "/api/v1/namespaces/default/events"
"""Events of objects that have no namespace lie in this one."""

_SECTIONS = ("permittedHostDevices", "mediatedDevicesConfiguration")
_NOT_KUBEVIRT = "DisableMDEVConfiguration"


def kubevirt_configuration(objects: Iterable[Json]) -> Json | None:
    """KubeVirt's host devices, as ``spec.configuration`` has them; None without KubeVirt.

    A cluster has one KubeVirt. Of several the first by namespace and name counts.
    """
    ordered = sorted(objects, key=lambda item: _name(item))
    if not ordered:
        return None
    configuration = part(ordered[0], "spec", "configuration")
    found = {section: configuration[section] for section in _SECTIONS if configuration.get(section) is not None}
    gates = part(configuration, "developerConfiguration").get("featureGates")
    # The only gate that says who makes mediated devices, KubeVirt or we.
    ours = isinstance(gates, list) and _NOT_KUBEVIRT in gates
    return found | ({"developerConfiguration": {"featureGates": [_NOT_KUBEVIRT]}} if ours else {})


def node_labels(objects: Iterable[Json]) -> dict[str, str]:
    """The labels of the one node that was asked for."""
    return {key: str(value) for item in objects for key, value in part(item, "metadata", "labels").items()}


def living_pods(objects: Mapping[str, Json]) -> dict[str, str]:
    """UID to ``namespace/name`` of pods that may hold devices: the kubelet takes them from those that have ended."""
    return {
        uid: "/".join(_name(item))
        for uid, item in objects.items()
        if part(item, "status").get("phase") not in ("Succeeded", "Failed")
    }


def _name(item: Json) -> tuple[str, str]:
    """Namespace and name."""
    metadata = part(item, "metadata")
    return str(metadata.get("namespace", "")), str(metadata.get("name", ""))


def event_object(node: str, name: str, event_type: str, reason: str, message: str, when: str) -> Json:
    """An Event on a node; ``uid`` is the node's name, by which ``kubectl describe node`` finds it."""
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": name, "namespace": "default"},
        "involvedObject": {"apiVersion": "v1", "kind": "Node", "name": node, "uid": node},
        "type": event_type,
        "reason": reason,
        "message": message,
        "count": 1,
        "firstTimestamp": when,
        "lastTimestamp": when,
        "source": {"component": COMPONENT, "host": node},
        "reportingComponent": COMPONENT,
        "reportingInstance": node,
    }


COMPONENT = "launcherkit-plugin"
