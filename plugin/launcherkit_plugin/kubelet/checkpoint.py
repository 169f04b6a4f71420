"""The kubelet's checkpoint of devices: who holds which, as of the last time that it wrote.

It holds all that live containers have, and may hold what containers had that have ended since. It is private to the
kubelet: two shapes are known, keys that aren't known are passed over, the checksum is not looked at. It is made over
Go's own way to print a structure, which differs between versions.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator

from launcherkit.errors import shown
from launcherkit_plugin.model.errors import UsageUnreadable
from launcherkit_plugin.model.usage import Holder

CHECKPOINT = "device-plugins/kubelet_internal_checkpoint"
"""Below the kubelet's folder."""

CHECKPOINT_BYTES = 16 << 20
"""The most that is read; the kubelet's is some hundred bytes a container."""


def read_checkpoint(path: str) -> dict[str, dict[str, Holder]]:
    """Holders by resource and device ID; pods are known by their UIDs.

    Raises:
        UsageUnreadable: it isn't there, or isn't whole. What is half written is never taken for one with nothing in it.
    """
    try:
        with open(path, "rb") as file:
            data = file.read(CHECKPOINT_BYTES + 1)
    except OSError as problem:
        raise _unreadable(path, problem.strerror or str(problem)) from problem
    if len(data) > CHECKPOINT_BYTES:
        raise _unreadable(path, f"has more than {CHECKPOINT_BYTES} bytes")
    try:
        return _held(json.loads(data))
    except (ValueError, RecursionError) as problem:
        raise _unreadable(path, f"is no checkpoint of devices: {problem}") from problem


def is_missing(path: str) -> bool:
    """Whether there is no checkpoint, in a folder that can be looked into: no container has got a device yet."""
    try:
        return os.path.basename(path) not in os.listdir(os.path.dirname(path) or ".")
    except OSError:
        return False


def _held(document: object) -> dict[str, dict[str, Holder]]:
    data = _object(_object(document, "$").get("Data"), "$.Data")
    entries = data.get("PodDeviceEntries")
    if entries is None:  # Go's way to write an empty list
        if "PodDeviceEntries" in data:
            return {}
        raise ValueError("$.Data.PodDeviceEntries is missing")
    if not isinstance(entries, list):
        raise ValueError(f"$.Data.PodDeviceEntries: {shown(entries)} is not a list")
    held: dict[str, dict[str, Holder]] = {}
    for index, entry in enumerate(entries):
        path = f"$.Data.PodDeviceEntries[{index}]"
        fields = _object(entry, path)
        resource = _text(fields, "ResourceName", path)
        holder = Holder(f"uid:{_text(fields, 'PodUID', path)}", _text(fields, "ContainerName", path))
        for device in _device_ids(fields.get("DeviceIDs"), f"{path}.DeviceIDs"):
            held.setdefault(resource, {})[device] = holder
    return held


def _device_ids(value: object, path: str) -> Iterator[str]:
    """A list of IDs, or from 1.20 on such a list for each NUMA node."""
    if isinstance(value, dict):
        for node, ids in value.items():
            yield from _device_ids([] if ids is None else ids, f"{path}[{shown(node)}]")
    elif isinstance(value, list):
        for device in value:
            if not isinstance(device, str):
                raise ValueError(f"{path}: {shown(device)} is no device ID")
            yield device
    else:
        raise ValueError(f"{path}: {shown(value)} is neither a list nor lists by NUMA node")


def _object(value: object, path: str) -> dict[str, object]:
    if not isinstance(value, dict):
        raise ValueError(f"{path}: {shown(value)} is not an object")
    return value


def _text(fields: dict[str, object], key: str, path: str) -> str:
    value = fields.get(key)
    if not isinstance(value, str) or not value:
        raise ValueError(f"{path}.{key}: {shown(value)} is not a name")
    return value


def _unreadable(path: str, why: str) -> UsageUnreadable:
    return UsageUnreadable(
        f"{path}: {why}",
        "The kubelet keeps its checkpoint in its device-plugins folder; mount /var/lib/kubelet/device-plugins into the "
        "container, or give the kubelet's folder with --kubelet-dir.",
    )
