"""Which VM a call is about, and which of the pods that the kubelet names is its (Q1)."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

from launcherkit.errors import BadVmi
from launcherkit.sources.vmi import read_vmi
from launcherkit_plugin.model.usage import Usage

_LONGEST_BASE = 58
"""Kubernetes cuts a name to this before it adds five characters of its own; then it may be another VM's too."""


class Vm(NamedTuple):
    """What is used of a VirtualMachineInstance."""

    namespace: str
    name: str
    uid: str
    asked: Mapping[str, int]
    """How many of each resource."""
    pod_uids: frozenset[str]
    """Of its pods, on any node."""

    def __str__(self) -> str:
        return f"VM {self.namespace}/{self.name}"


def read_vm(document: bytes) -> Vm:
    """A VM from its JSON.

    Raises:
        BadVmi: it is not JSON, or not of the VMI's shape.
    """
    asked = Counter(request.resource for request in read_vmi(document).requests if request.resource)
    values = json.loads(document)
    metadata = values.get("metadata") or {}
    texts = [metadata.get(key) for key in ("namespace", "name", "uid")]
    pods = (values.get("status") or {}).get("activePods") if isinstance(values.get("status"), dict | None) else None
    if not all(isinstance(text, str) and text for text in texts):
        raise BadVmi(
            "the VMI has no metadata.namespace, name or uid",
            "Worker over the whole VirtualMachineInstance, with status.",
        )
    namespace, name, uid = map(str, texts)
    return Vm(namespace, name, uid, dict(asked), frozenset(pods if isinstance(pods, dict) else ()))


class Had(NamedTuple):
    """What a VM's pod has."""

    pod: str
    devices: Mapping[str, tuple[str, ...]]
    """IDs by resource."""


def pod_of(vm: Vm, usage: Usage) -> Had | None:
    """The VM's pod with what it has; None where none has anything, or where it could be more than one pod."""
    base = f"virt-launcher-{vm.name}-"
    if len(base) > _LONGEST_BASE:
        return None
    name = re.compile(rf"{re.escape(f'{vm.namespace}/{base}')}[a-z0-9]{{5}}")
    found: dict[str, dict[str, list[str]]] = {}
    for resource, devices in usage.held.items():
        for device, holder in devices.items():
            if name.fullmatch(holder.pod) or holder.pod.removeprefix("uid:") in vm.pod_uids:
                found.setdefault(holder.pod, {}).setdefault(resource, []).append(device)
    if len(found) != 1:
        return None
    ((pod, held),) = found.items()
    return Had(pod, {resource: tuple(devices) for resource, devices in held.items()})
