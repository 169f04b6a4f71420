"""Keeps for VMs the devices that they had: the records on disk, and the pods that ask (`allocation.kept`).

A record is written before the container starts: no VM has used a device that could be another's after a power cut.
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TypeAlias

from launcherkit.atomic import Disk
from launcherkit.errors import UNREADABLE_FILE, UNWRITABLE_FILE, LauncherkitError, UsageUnknown
from launcherkit.model.host import HostFacts, PciFunction
from launcherkit_plugin.allocation.kept import Callers, callers_among, check, lacks, order
from launcherkit_plugin.binding.ledger import is_address
from launcherkit_plugin.codec import decode, encode
from launcherkit_plugin.host.work_queue import WorkQueue
from launcherkit_plugin.model.device import Device, Holder, Problem, Resource, Usage
from launcherkit_plugin.model.same_device import AskingPod, Kept, Wish
from launcherkit_plugin.records import RecordFolder, Stored
from launcherkit_plugin.telemetry.reporter import Reporter

PODS_SECONDS, PAUSE_SECONDS = 2.0, 0.05
"""How long to wait until it is certain which pod asks, and the pause between two looks."""
STORM, STORM_SECONDS, QUIET_SECONDS = 3, 10.0, 20.0
"""So many refusals in so short a time are a storm, and for how long it is quiet then. A kubelet tells the scheduler of
health every 10 seconds."""
_RECORDS = "the records of devices that VMs had"
_WRITE_SECONDS = 10.0
_WRONG_SECONDS = 86400.0
"""A clock that is so far before what it has recorded itself was wrong."""
_BROKEN_SECONDS = 86400.0
"""How long a device whose record can't be read is kept."""

ListPods: TypeAlias = Callable[[], Awaitable[tuple[Collection[str], Mapping[str, Mapping[str, Holder]]]]]
"""The pods that the kubelet lists, and their devices by resource and ID; raises `UsageUnknown`."""


def records_in(state: str, disk: Disk | None = None) -> RecordFolder[Kept]:
    """The records by device, in a folder below that of what outlives reboots; see `RecordFolder`."""
    # Without a boot: these outlive it, and a broken one is never void.
    return RecordFolder(f"{state}/kept", "", _load, is_address, disk or Disk())


class Keeper:
    """Keeps devices of resources with ``sameDevice``. Also a `launcherkit_plugin.devices.provider.Reconciler`.

    Args:
        records: see `records_in`.
        list_pods: asks the kubelet.
        queue: writes the records, because a disk may hang.
        reporter: receives problems with them.
        clock: seconds since the epoch.
    """

    def __init__(
        self,
        records: RecordFolder[Kept],
        list_pods: ListPods,
        queue: WorkQueue,
        reporter: Reporter,
        clock: Callable[[], float],
    ) -> None:
        self._records = records
        self._list_pods = list_pods
        self._queue = queue
        self._reporter = reporter
        self._clock = clock
        self._here: Mapping[str, AskingPod] = {}
        self._asking: Mapping[str, AskingPod] = {}
        self._in_vain: frozenset[str] = frozenset()
        """Pods of which the API server didn't tell in time, such as static ones; they are not waited for again."""
        self._refusals: deque[float] = deque(maxlen=STORM)
        """When pods were refused."""
        self._resources: Mapping[str, Resource] = {}
        self._kept: dict[str, Kept] = {}
        self._unread: str | None = ""
        """Why it is unknown what is kept; None once the records have been read."""
        self._broken_since: dict[str, float] = {}
        """When records were found broken."""
        self._read()

    def note_pods(self, here: Mapping[str, AskingPod], asking: Mapping[str, AskingPod]) -> None:
        """Note the pods of this node, and those with the label that are here or on no node, by ``namespace/name``."""
        self._here, self._asking = here, asking

    def kept_now(self) -> list[Kept]:
        """The records that haven't expired."""
        now = self._clock()
        return [each for each in self._kept.values() if each.until > now]

    def overlaid(self, resources: Sequence[Resource], usage: Usage) -> tuple[Resource, ...]:
        """Resources in which kept devices are Unhealthy, unless a pod has one, or a pod of its VM waits for it."""
        self._resources = {resource.name: resource for resource in resources}
        if self._unread is not None:
            return tuple(_unknown(resource, usage, self._unread) for resource in resources)
        kept = {each.device: each for each in self.kept_now() if each.ended is not None}
        return tuple(self._overlaid(resource, kept, usage) for resource in resources) if kept else (*resources,)

    def _overlaid(self, resource: Resource, kept: Mapping[str, Kept], usage: Usage) -> Resource:
        held = usage.held.get(resource.name, {})
        waiting = {pod.owner for name, pod in self._asking.items() if lacks(name, pod, resource.name, held)}
        waiting = set() if self._is_stormed() else waiting
        devices: dict[str, Device] = {}
        for key, device in resource.devices.items():
            record = kept.get(str(device.functions[0]) if device.functions else key)
            if record is None or not device.healthy or key in held:
                continue
            if resource.dra and record.owner is not None:
                devices[key] = device._replace(kept_for="/".join(record.owner))
            if record.wish == "required" and record.owner not in waiting:
                devices[key] = devices.get(key, device)._replace(
                    problem=Problem("kept", f"{record.device} is kept {record}")
                )
        return resource._replace(devices={**resource.devices, **devices}) if devices else resource

    # What the kubelet asks

    async def order(self, resource: str, available: Collection[str]) -> tuple[list[str], list[str]]:
        """Which devices the pod should get first, and which last."""
        kept = self.kept_now()
        return order(available, kept, await self._callers(resource)) if kept else ([], [])

    async def check(self, resource: str, ids: Collection[str]) -> None:
        """Check that the pod may have devices.

        Raises:
            UnreadableFile: it is unknown which devices are kept.
            LauncherkitError: see `launcherkit_plugin.allocation.kept.check`.
        """
        self._check_read(resource)
        kept = self.kept_now()
        if kept:
            callers = await self._callers(resource)
            try:
                check(resource, ids, kept, callers)
            except LauncherkitError:
                self._refusals.append(self._clock())
                raise

    def _check_read(self, name: str) -> None:
        resource = self._resources.get(name)
        if self._unread is not None and resource is not None and resource.same_device:
            raise UNREADABLE_FILE(
                self._unread,
                "The kernel's log (dmesg) may say why. No pod gets these devices until it is known who had them.",
                file=self._records.folder,
            )

    def _is_stormed(self) -> bool:
        """Whether pods of others come so fast that none of the VM has a chance: a ReplicaSet makes each again at once.

        Then a device that is waited for is Unhealthy for a while, until the scheduler has heard of it and those others
        wait. It tries those first then that have waited the longest.
        """
        last = self._refusals
        fast = len(last) == STORM and last[-1] - last[0] < STORM_SECONDS
        return fast and self._clock() - last[-1] < QUIET_SECONDS

    async def starting(self, resource: Resource, ids: Collection[str]) -> None:
        """Check and record what the pod has whose container is about to start: the kubelet's list names it now.

        Raises:
            DEVICE_KEPT, CALLER_UNKNOWN: it may not have one of them.
            UnreadableFile: it is unknown whether it may.
            UnwritableFile: it requires them, and that can't be recorded.
        """
        self._check_read(resource.name)
        holders, name = await self._holders_of(resource.name, ids)
        pod = self._here.get(name)
        if pod is not None and resource.same_device:
            await self.record(resource, name, pod, [key for key, holder in holders.items() if holder.pod == name])
        else:
            check(resource.name, ids, self.kept_now(), Callers(doubt=pod is None))

    async def record(self, resource: Resource, name: str, pod: AskingPod, ids: Collection[str]) -> None:
        """Check and record all devices of a resource that a pod or a ResourceClaim has; raises the same as `starting`.

        Args:
            resource, ids: what it has.
            name: of the holder, as in usage.
            pod: its VM, and what it asks for.
        """
        self._check_read(resource.name)
        check(resource.name, ids, self.kept_now(), Callers((pod,)))
        wish: Wish = "required" if pod.wish == resource.same_device == "required" else "preferred"
        mine = ids if pod.wish else ()
        had = [each.device for each in self._kept.values() if (each.owner, each.resource) == (pod.owner, resource.name)]
        changes: dict[str, Kept | None] = {key: None for key in had if key not in mine}
        for key in mine:
            before = self._kept.get(key)
            since = before.since if before is not None and before.pod == name else self._clock()
            changes[key] = Kept(key, resource.name, pod.owner, wish, name, since, None, resource.keep_for)
        if not await self._recorded(changes) and wish == "required":
            raise UNWRITABLE_FILE(
                f"{resource.name}: it can't be recorded that {pod.owner} has {', '.join(ids)}",
                "The log of the device plugin says why. The kubelet tries again by itself.",
                resource=resource.name,
            )

    async def _holders_of(self, resource: str, ids: Collection[str]) -> tuple[Mapping[str, Holder], str]:
        """The holders of a resource by ID; and who has these, once the API server has told of it or is late."""
        holders: Mapping[str, Holder] = {}
        name = ""
        with suppress(TimeoutError, UsageUnknown):
            async with asyncio.timeout(PODS_SECONDS):
                holders = (await self._list_pods())[1].get(resource, {})
                name = next((holders[key].pod for key in ids if key in holders), "")
                while name and name not in self._here:
                    await asyncio.sleep(PAUSE_SECONDS)
        return holders, name

    async def _callers(self, resource: str) -> Callers:
        """The pods for which the kubelet may be asking, once they are certain, or at last."""
        callers, listed = Callers(doubt=True), frozenset[str]()
        with suppress(TimeoutError, UsageUnknown):
            async with asyncio.timeout(PODS_SECONDS):
                while not callers.is_certain:
                    names, held = await self._list_pods()
                    listed = frozenset(names)
                    callers = callers_among(resource, listed - self._in_vain, held.get(resource, {}), self._here)
                    if not callers.is_certain:
                        await asyncio.sleep(PAUSE_SECONDS)
        self._in_vain = (self._in_vain & listed) | (listed - self._here.keys())
        return callers

    # The records

    def wants(self, function: PciFunction) -> bool:  # noqa: ARG002
        """See `launcherkit_plugin.devices.provider.Reconciler`."""
        return False

    def reconcile(self, host: HostFacts, usage: Usage, now: float) -> Sequence[asyncio.Task[bool]]:  # noqa: ARG002
        """Record which pods have ended, and remove what has expired. Of resources that aren't advertised all stays."""
        self._read()
        changes: dict[str, Kept | None] = {}
        at = self._clock()
        for key, kept in self._kept.items() if usage.known else ():
            resource = self._resources.get(kept.resource)
            if resource is not None:
                ended = None if _has(usage, kept) else _ended(kept, at)
                renewed = kept._replace(ended=ended, seconds=resource.keep_for)
                over = not resource.same_device or renewed.until <= at
                if over or renewed != kept:
                    changes[key] = None if over else renewed
        return (asyncio.create_task(self._recorded(changes)),) if changes else ()

    def _read(self) -> None:
        try:
            records = self._records.read()
        except OSError as problem:
            self._reporter.once(_RECORDS, "error", f"{_RECORDS} can't be read: {problem}")
            if self._unread is not None:
                self._unread = f"{_RECORDS} can't be read: {problem}"
            return
        self._unread = None
        self._kept = dict(records.whole)
        for name, broken in records.broken.items():
            self._reporter.once(broken, "error", f"{broken.path} can't be read: {broken.why}; remove it to free {name}")
            with suppress(OSError):
                first = self._broken_since.setdefault(name, self._clock())
                at = min(max(os.lstat(broken.path).st_mtime, first), self._clock())
                self._kept[name] = Kept(name, "", None, "required", "", at, at, _BROKEN_SECONDS)

    async def _recorded(self, changes: Mapping[str, Kept | None]) -> bool:
        """Write records, then remove those that are None. Returns whether that succeeded; the next turn tries again."""
        changes = {key: kept for key, kept in changes.items() if kept != self._kept.get(key)}
        try:
            if changes:
                await self._queue.run_to_end(_RECORDS, "writing them", partial(self._write, changes), _WRITE_SECONDS)
        except LauncherkitError as problem:
            self._reporter.problem(_RECORDS, problem)
            return False
        self._reporter.solved(_RECORDS)
        self._read()
        return True

    def _write(self, changes: Mapping[str, Kept | None]) -> None:
        for name, kept in sorted(changes.items(), key=lambda change: change[1] is None):
            if kept is None:
                self._records.remove(name)
            else:
                self._records.write(name, encode(kept))


def _ended(kept: Kept, at: float) -> float:
    """When a pod ended that has ended: a clock that was set back keeps nothing for longer.

    If it ended before it had the device, the clock was wrong then, as until the time is set after a boot.
    """
    if kept.ended is None or kept.ended < kept.since - _WRONG_SECONDS <= at:
        return at
    return min(kept.ended, at)


def _unknown(resource: Resource, usage: Usage, reason: str) -> Resource:
    """A resource while it is unknown which of its devices are kept."""
    if not resource.same_device:
        return resource
    held = usage.held.get(resource.name, {})
    marked = {
        key: device if key in held else device._replace(problem=Problem("kept", reason))
        for key, device in resource.devices.items()
    }
    return resource._replace(devices=marked)


def _has(usage: Usage, kept: Kept) -> bool:
    """Whether its pod has a device, or may have it: the kubelet's checkpoint doesn't name pods."""
    holders = [devices[kept.device] for devices in usage.kept.values() if kept.device in devices]
    names = {str(holder) if holder.claim is not None else holder.pod for holder in holders}
    return any(name in ("", kept.pod) or name.startswith("uid:") for name in names)


def _load(name: str, stored: Stored) -> Kept:
    kept = decode(Kept, stored.content)
    if kept.device != name:
        raise ValueError(f"device: it is the record of {kept.device}")
    return kept
