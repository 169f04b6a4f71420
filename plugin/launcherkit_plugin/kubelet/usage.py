"""Which pod holds which device, from what of the kubelet's can be read (K3, K8, G3).

PodResources is right about what is free once the kubelet knows its pods: just after its start it answers, but names
none of those that run. The checkpoint is right about what is held, but lags behind on what is free. So PodResources
counts, and until the kubelet must have settled so does what only the checkpoint has; and after that for as long
as its pod isn't known to have ended (G3, T2).

The checkpoint is private to the kubelet: two shapes are known, keys that aren't known are passed over, the checksum is
not looked at. It is made over Go's own way to print a structure, which differs between versions.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import TypeAlias

from launcherkit.errors import shown
from launcherkit_plugin.kubelet.client import PodDevices, list_pod_devices
from launcherkit_plugin.model.device import NO_USAGE, Holder, Usage
from launcherkit_plugin.model.errors import UsageUnreadable

CHECKPOINT = "device-plugins/kubelet_internal_checkpoint"
"""Below the kubelet's folder."""
CHECKPOINT_BYTES = 16 << 20
"""The most that is read; the kubelet's is some hundred bytes a container."""


PodStates: TypeAlias = Callable[[Collection[str]], Mapping[str, bool]]
"""Of pods by UID: True for those that are there, False for those that have ended, nothing where it is unknown."""

SETTLE_SECONDS = 60.0
"""For how long after the kubelet's start, or after an allocation, what the checkpoint alone has counts as held."""

SYNCED_SECONDS = 10.0
"""The same, once the kubelet names our own pod: it has its pods from the API server then, and takes in one after the
other."""


async def read_usage(
    pod_resources: str,
    checkpoint: str,
    *,
    own_pod: str | None = None,
    settle: float = SETTLE_SECONDS,
    clock: Callable[[], float] = time.time,
    states: PodStates = lambda _: {},
    tell: Callable[[UsageUnreadable], object] = str,
) -> Usage:
    """Who holds what; `NO_USAGE` where it can't be known. Raises nothing.

    Args:
        pod_resources: path of the socket ``pod-resources/kubelet.sock``.
        checkpoint: path of ``device-plugins/kubelet_internal_checkpoint``.
        own_pod: ``namespace/name`` of the pod that this runs in. As long as the kubelet doesn't name it, it doesn't
            know its pods: without an API server it may never after a restart.
        settle: seconds, see `SETTLE_SECONDS`.
        clock: seconds since the epoch, as the file system has them.
        states: tells which pods are there, by their UIDs.
        tell: called with the reason why a source can't be read.
    """
    saved = await asyncio.to_thread(_read_saved, checkpoint, tell)
    try:
        listed = await list_pod_devices(pod_resources)
    except UsageUnreadable as problem:
        tell(problem)
        return NO_USAGE if saved is None else Usage("checkpoint", saved)
    if _has_settled(listed, own_pod, min(clock() - _changed(path) for path in (pod_resources, checkpoint)), settle):
        return _beside(listed.held, saved or {}, states)
    if saved is None:
        # A kubelet that has never given anything away has no checkpoint; with one that can't be read nobody knows.
        return Usage("pod-resources", listed.held) if is_missing(checkpoint) else NO_USAGE
    return Usage("pod-resources", _either(listed.held, saved))


def _read_saved(path: str, tell: Callable[[UsageUnreadable], object]) -> dict[str, dict[str, Holder]] | None:
    try:
        return read_checkpoint(path)
    except UsageUnreadable as problem:
        tell(problem)
        return None


def _has_settled(listed: PodDevices, own_pod: str | None, age: float, settle: float) -> bool:
    """``age`` is in seconds; below 0 the clock has been set back, which proves nothing."""
    if own_pod is None:
        return age >= settle
    return own_pod in listed.pods and age >= min(settle, SYNCED_SECONDS)


def _changed(path: str) -> float:
    """When a file was made or written, in seconds since the epoch; long ago where there is none."""
    try:
        return os.stat(path).st_ctime
    except OSError:
        return 0.0


def _beside(
    listed: Mapping[str, Mapping[str, Holder]], saved: Mapping[str, Mapping[str, Holder]], states: PodStates
) -> Usage:
    """What PodResources has, plus what only the checkpoint names: a pod that is there keeps what it has.

    The kubelet takes a pod that has ended out of its checkpoint with the next allocation, which may be days later.
    """
    omitted = [
        (resource, device, holder)
        for resource, devices in saved.items()
        for device, holder in devices.items()
        if device not in listed.get(resource, {})
    ]
    if not omitted:
        return Usage("pod-resources", listed)
    known = states(frozenset(holder.pod.removeprefix("uid:") for _, _, holder in omitted))
    held = {resource: dict(devices) for resource, devices in listed.items()}
    doubtful: dict[str, dict[str, Holder]] = {}
    for resource, device, holder in omitted:
        there = known.get(holder.pod.removeprefix("uid:"))
        if there is not False:
            (held if there else doubtful).setdefault(resource, {})[device] = holder
    return Usage("pod-resources", held, doubtful)


def _either(
    listed: Mapping[str, Mapping[str, Holder]], saved: Mapping[str, Mapping[str, Holder]]
) -> dict[str, dict[str, Holder]]:
    """All that either has; the first knows the pods by name."""
    return {resource: {**saved.get(resource, {}), **listed.get(resource, {})} for resource in {*listed, *saved}}


def read_checkpoint(path: str) -> dict[str, dict[str, Holder]]:
    """Holders by resource and device ID; pods are known by their UIDs.

    Raises:
        UsageUnreadable: it isn't there, or isn't whole. A half-written one is never taken for an empty one.
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
        raise _unreadable(path, f"is not a checkpoint of devices: {problem}") from problem


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
                raise ValueError(f"{path}: {shown(device)} is not a device ID")
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
        file=path,
    )
