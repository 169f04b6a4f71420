"""Which pod holds which device, from the kubelet's PodResources API and its checkpoint (K3, K8, G3).

PodResources is right about which devices are free, but only once the kubelet knows its pods: just after its start it
answers, but lists none of the running pods. The checkpoint is right about which devices are held, but keeps those of
ended pods for a while. So PodResources is used; devices that are only in the checkpoint count as held, too, until the
kubelet must have settled, and after that as long as their pod isn't known to have ended (G3, T2).

The checkpoint is private to the kubelet. Two formats of it are known; unknown keys are ignored. The checksum isn't
verified: it is taken over Go's printed form of a structure, which differs between versions.
"""

from __future__ import annotations

import os
import time
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping
from functools import partial
from typing import NamedTuple, TypeAlias

from launcherkit.errors import UsageUnknown
from launcherkit.request.fields import DocumentErrors, Fields, Problems, strict_json, string, text
from launcherkit_plugin.host.work_queue import WorkQueue
from launcherkit_plugin.kubelet.client import PodDevices, list_pod_devices
from launcherkit_plugin.model.device import NO_USAGE, Holder, Usage
from launcherkit_plugin.model.errors import USAGE_UNREADABLE, TooSlow

CHECKPOINT = "device-plugins/kubelet_internal_checkpoint"
"""The path below the kubelet's folder."""
_REMEDY = (
    "The kubelet keeps its checkpoint in its device-plugins folder; mount /var/lib/kubelet/device-plugins into the "
    "container, or give the kubelet's folder with --kubelet-dir."
)
CHECKPOINT_BYTES = 16 << 20
"""The most that is read; a container takes some hundred bytes."""
CHECKPOINT_SECONDS = 5.0
"""How long reading it may take."""

PodStates: TypeAlias = Callable[[Collection[str]], Mapping[str, bool]]
"""From UIDs of pods to True for those that exist and False for those that have ended; without those of which neither
is known."""


class _Saved(NamedTuple):
    """What is known from the kubelet's folder."""

    held: dict[str, dict[str, Holder]] | None
    """By the checkpoint; None if it can't be read."""
    changed: float
    """When the kubelet started or allocated last, in seconds since the epoch; 0 if that is unknown."""
    missing: bool
    """There is certainly no checkpoint."""


SETTLE_SECONDS = 60.0
"""How long after the kubelet's start, or after an allocation, devices that only the checkpoint lists count as held."""

SYNCED_SECONDS = 10.0
"""The same, once the kubelet lists our own pod: then it has got its pods from the API server, and is adding them one
after the other."""


async def read_usage(
    pod_resources: str,
    checkpoint: str,
    *,
    own_pod: str | None = None,
    settle: float = SETTLE_SECONDS,
    clock: Callable[[], float] = time.time,
    states: PodStates = lambda _: {},
    notify: Callable[[UsageUnknown], object],
    queue: WorkQueue,
) -> Usage:
    """Which pod holds which device; `NO_USAGE` if that can't be determined. Raises nothing.

    Args:
        pod_resources: the path of the socket ``pod-resources/kubelet.sock``.
        checkpoint: the path of ``device-plugins/kubelet_internal_checkpoint``.
        own_pod: ``namespace/name`` of the pod in which this runs. As long as the kubelet doesn't list it, the kubelet
            doesn't know its pods; after a restart without an API server, it may never.
        settle: seconds, see `SETTLE_SECONDS`.
        clock: seconds since the epoch, like the times of files.
        states: see `PodStates`.
        notify: called with the error if a source can't be read.
        queue: runs what looks at the kubelet's folder, because its disk may hang.
    """
    in_thread = partial(queue.run, checkpoint, "reading the kubelet's checkpoint", seconds=CHECKPOINT_SECONDS)
    try:
        saved = await in_thread(partial(_read_saved, pod_resources, checkpoint, notify))
    except TooSlow:
        problem_text = f"{checkpoint}: reading it takes too long"
        notify(USAGE_UNREADABLE(problem_text, "See `dmesg` on the node for errors of its disk.", file=checkpoint))
        saved = None
    try:
        listed = await list_pod_devices(pod_resources)
    except UsageUnknown as problem:
        notify(problem)
        return NO_USAGE if saved is None or saved.held is None else Usage("checkpoint", saved.held)
    if saved is None:
        return Usage("none", listed.held)  # at least these
    if _has_settled(listed, own_pod, clock() - saved.changed, settle):
        return await _beside(listed.held, saved.held or {}, lambda pods: in_thread(partial(states, pods)))
    if saved.held is None:
        # A kubelet that never allocated a device has no checkpoint. If there is an unreadable one, nothing is known.
        return Usage("pod-resources" if saved.missing else "none", listed.held)
    return Usage("pod-resources", _either(listed.held, saved.held))


def _read_saved(pod_resources: str, checkpoint: str, notify: Callable[[UsageUnknown], object]) -> _Saved:
    changed = max(map(_changed, (pod_resources, checkpoint)))
    try:
        return _Saved(read_checkpoint(checkpoint), changed, missing=False)
    except UsageUnknown as problem:
        notify(problem)
        return _Saved(None, changed, is_missing(checkpoint))


def _has_settled(listed: PodDevices, own_pod: str | None, age: float, settle: float) -> bool:
    """Whether the kubelet knows all its pods. ``age`` is in seconds; if it is negative, the clock was set back."""
    if own_pod is None:
        return age >= settle
    return own_pod in listed.pods and age >= min(settle, SYNCED_SECONDS)


def _changed(path: str) -> float:
    """When a file was created or written, in seconds since the epoch; 0 if there is none."""
    try:
        return os.stat(path).st_ctime
    except OSError:
        return 0.0


async def _beside(
    listed: Mapping[str, Mapping[str, Holder]],
    saved: Mapping[str, Mapping[str, Holder]],
    states: Callable[[Collection[str]], Awaitable[Mapping[str, bool]]],
) -> Usage:
    """What PodResources lists, and what only the checkpoint lists, unless the pod has ended.

    The kubelet removes ended pods from its checkpoint at the next allocation, which may be days later.
    """
    omitted = [
        (resource, device, holder)
        for resource, devices in saved.items()
        for device, holder in devices.items()
        if device not in listed.get(resource, {})
    ]
    if not omitted:
        return Usage("pod-resources", listed)
    pods = frozenset(holder.pod.removeprefix("uid:") for _, _, holder in omitted)
    try:
        exists = await states(pods)
    except TooSlow:
        exists = {}
    held = {resource: dict(devices) for resource, devices in listed.items()}
    doubtful: dict[str, dict[str, Holder]] = {}
    for resource, device, holder in omitted:
        state = exists.get(holder.pod.removeprefix("uid:"))
        if state is not False:
            (held if state else doubtful).setdefault(resource, {})[device] = holder
    return Usage("pod-resources", held, doubtful)


def _either(
    listed: Mapping[str, Mapping[str, Holder]], saved: Mapping[str, Mapping[str, Holder]]
) -> dict[str, dict[str, Holder]]:
    """The devices that either lists; ``listed`` takes precedence, since it has the names of pods."""
    return {resource: {**saved.get(resource, {}), **listed.get(resource, {})} for resource in {*listed, *saved}}


def read_checkpoint(path: str) -> dict[str, dict[str, Holder]]:
    """Holders by resource and device ID; pods are named by their UIDs.

    Raises:
        USAGE_UNREADABLE: it is missing or incomplete. A half-written checkpoint never counts as an empty one.
    """
    try:
        with open(path, "rb") as file:
            data = file.read(CHECKPOINT_BYTES + 1)
    except OSError as problem:
        raise _unreadable(path, problem.strerror or str(problem)) from problem
    if len(data) > CHECKPOINT_BYTES:
        raise _unreadable(path, f"has more than {CHECKPOINT_BYTES} bytes")
    try:
        return _held(strict_json(data), _CheckpointErrors(path))
    except ValueError as problem:
        raise _unreadable(path, f"is not a checkpoint of devices: {problem}") from problem


def is_missing(path: str) -> bool:
    """Whether there is certainly no checkpoint: its folder can be read. Then no container has got a device yet."""
    try:
        return os.path.basename(path) not in os.listdir(os.path.dirname(path) or ".")
    except OSError:
        return False


class _CheckpointErrors(DocumentErrors):
    """The first thing that is wrong in a checkpoint."""

    def __init__(self, path: str) -> None:
        super().__init__(path, USAGE_UNREADABLE, _REMEDY, most=1)

    def error(self, where: str, message: str) -> UsageUnknown:
        return _unreadable(self.path, f"is not a checkpoint of devices: {where}: {message}")


def _held(document: object, problems: Problems) -> dict[str, dict[str, Holder]]:
    data = Fields(document, "$", problems).inner("Data", required=True)
    if "PodDeviceEntries" not in data:  # Go writes an empty list as null
        data.problem("PodDeviceEntries", None, "a list")
    held: dict[str, dict[str, Holder]] = {}
    for entry in data.objects("PodDeviceEntries"):
        resource, pod, container = (
            entry.required(key, text, "a name", "") for key in ("ResourceName", "PodUID", "ContainerName")
        )
        for device in _device_ids(entry):
            held.setdefault(resource, {})[device] = Holder(f"uid:{pod}", container)
    return held


def _device_ids(entry: Fields) -> Iterator[str]:
    """The IDs in a list, or, from Kubernetes 1.20 on, in a list for each NUMA node."""
    key, value = "DeviceIDs", entry.peek("DeviceIDs")
    if isinstance(value, Mapping):
        nodes = entry.inner(key)
        for node in value:
            yield from nodes.many(node, string, "a device ID")
    elif isinstance(value, list):
        yield from entry.many(key, string, "a device ID")
    else:
        entry.problem(key, value, "a list, or lists by NUMA node")


def _unreadable(path: str, reason: str) -> UsageUnknown:
    return USAGE_UNREADABLE(
        f"{path}: {reason}",
        _REMEDY,
        file=path,
    )
