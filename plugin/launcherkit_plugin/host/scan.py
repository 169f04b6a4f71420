"""Scans the node: the identity of all functions, and the details of those that may be advertised. A device whose files
can't be read in time doesn't delay the others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Container, Iterable, Mapping
from functools import partial
from typing import NamedTuple, TypeAlias

from launcherkit.choose.nodes import cdev_node, group_node
from launcherkit.errors import LauncherkitError
from launcherkit.host.identity_memory import IdentityMemory
from launcherkit.host.source import Host
from launcherkit.model.address import MdevAddress, PciAddress
from launcherkit.model.host import NO_FACTS, HostFacts, Mdev, PciFunction
from launcherkit_plugin.host.progress import STALL_SECONDS, Progress
from launcherkit_plugin.host.work_queue import WorkQueue
from launcherkit_plugin.model.device import Device, Problem, Resource, Usage


class _Judged(NamedTuple):
    """Which functions are wanted, in order; remembered from one scan to the next."""

    wants: Callable[[PciFunction], bool] | None
    functions: Mapping[PciAddress, PciFunction]
    yes: Mapping[PciAddress, None]


_NOT_JUDGED = _Judged(None, {}, {})


class NodeReader:
    """Scans one node repeatedly.

    A node may have thousands of VFs, and is scanned every few seconds. The identity of a function doesn't change while
    it exists, so it is read once. What can change is read in each scan, but only of wanted functions.
    """

    def __init__(self, *, numa: bool = False) -> None:
        """With ``numa``, the NUMA nodes of functions that aren't wanted are read, too."""
        self._numa = numa
        self._memory = IdentityMemory(numa=numa)
        self._judged = _NOT_JUDGED

    def prepare(self, host: Host) -> None:
        """Read the identities of all functions, which don't depend on which are wanted.

        Raises:
            UnreadableFile: see `read`, which will raise it too.
        """
        self._memory.scan(host)

    def read(
        self, host: Host, wants: Callable[[PciFunction], bool], *, vgpu: bool, without: Collection[str] = ()
    ) -> HostFacts:
        """The identities and groups of all functions; drivers, details and device nodes only of wanted ones.

        Args:
            host: always the same host, though it may be read in different ways.
            wants: whether to read the rest about a function, its slot and its group: driver, NUMA node, details, and
                which device nodes exist; ``nodes`` has no others. It must not depend on driver or NUMA node. Two
                callables that are equal must give the same answers.
            vgpu: whether to read mediated devices with their nodes, and the parents of mediated devices.
            without: names of functions whose files are not read this time.

        Raises:
            UnreadableFile: the host can't be read, so nothing is known (T2).
        """
        identity = self._memory.scan(host, without)
        addresses = self._wanted_of(identity, wants)
        mediated = host.mdevs() if vgpu else NO_FACTS
        needed = host.facts(addresses, map(MdevAddress, mediated.mdevs), places=True)
        if any(_has_moved(function, identity) for function in needed.functions.values()):
            self._memory = IdentityMemory(numa=self._numa)
            return self.read(host, wants, vgpu=vgpu, without=without)
        return identity._replace(
            functions={**identity.functions, **needed.functions},
            groups={**identity.groups, **needed.groups},
            details=needed.details,
            nodes=needed.nodes,
            mdevs=mediated.mdevs,
            mdev_parents=mediated.mdev_parents,
            unknown={**identity.unknown, **needed.unknown},
            noiommu=needed.noiommu,
        )

    def _wanted_of(self, identity: HostFacts, wants: Callable[[PciFunction], bool]) -> list[PciAddress]:
        last = self._judged
        if last.wants != wants:
            last = _NOT_JUDGED
        if last.functions is not identity.functions:
            yes = [
                address
                for address, function in identity.functions.items()
                if (address in last.yes if last.functions.get(address) is function else wants(function))
            ]
            last = _Judged(wants, identity.functions, dict.fromkeys(yes))
        self._judged = last
        return list(last.yes)


def read_bound(host: Host) -> HostFacts:
    """The functions that are bound to VFIO drivers, with their slots and groups: fast even with thousands of functions.

    They come without BARs: only DRA publishes these, and it waits for a scan.

    Raises:
        UnreadableFile: see `NodeReader.read`.
    """
    return host.facts(host.bound_to_vfio(), places=True, bars=False)


def near(addresses: Iterable[PciAddress], host: HostFacts) -> set[PciAddress]:
    """These functions and those of their groups and slots: whoever uses one of them may use the others."""
    near_ones = set(addresses)
    for function in [host.functions[address] for address in near_ones if address in host.functions]:
        if function.iommu_group is not None:
            near_ones.update(host.groups.get(function.iommu_group, ()))
        if not function.is_vf:
            near_ones.update(each.address for each in host.slot_functions(function.address) if not each.is_vf)
    return near_ones


def _has_moved(function: PciFunction, identity: HostFacts) -> bool:
    """Whether a function is in another group than at its first reading; then nothing remembered is valid any more."""
    before = identity.functions.get(function.address)
    return before is not None and before.iommu_group != function.iommu_group


def read_node(host: Host, wants: Callable[[PciFunction], bool], *, vgpu: bool) -> HostFacts:
    """A single scan: see `NodeReader.read`."""
    return NodeReader(numa=True).read(host, wants, vgpu=vgpu)


LATE_SECONDS = 600.0
"""Longer than any scan: `Scanner` detects stalls itself."""

Scan: TypeAlias = Callable[[Callable[[PciFunction], bool], bool, Progress], HostFacts]
"""Scans the host; the arguments say which functions and whether vGPUs are wanted. Blocks."""


class Scanner:
    """Scans of the host, one after the other.

    Args:
        queue: runs them.
        scan: one scan.
        read_bound: reads only the functions with VFIO drivers; without it, `at_bound` returns None.
        stall: after how many seconds a step of a scan counts as hanging.
    """

    def __init__(
        self,
        queue: WorkQueue,
        scan: Scan,
        read_bound: Callable[[], HostFacts] | None = None,
        stall: float = STALL_SECONDS,
    ) -> None:
        self._queue = queue
        self._scan = scan
        self._read_bound = read_bound
        self._stall = stall
        self._stalled: dict[str, asyncio.Future[HostFacts]] = {}
        self._groups: dict[str, str] = {}
        self._last: HostFacts | None = None

    @property
    def stalled(self) -> frozenset[str]:
        """The names of the devices that are stalled."""
        return frozenset(name for name, scan in self._stalled.items() if not scan.done())

    @property
    def hanging(self) -> Mapping[str, str]:
        """What hangs, in words, by the name of its device: a step of a scan, or other work."""
        return {**self._queue.late, **dict.fromkeys(self.stalled, "reading one of its files in sysfs hangs")}

    async def at_bound(self) -> HostFacts | None:
        """The functions with VFIO drivers; None if others could be advertised too, or if reading stalls or fails."""
        if self._read_bound is None:
            return None
        try:
            return await self._queue.run("functions with VFIO drivers", "reading them", self._read_bound, self._stall)
        except LauncherkitError:
            return None  # `scan` reports it, or leaves out the stalled device

    async def scan(self, wants: Callable[[PciFunction], bool], vgpu: bool) -> HostFacts:
        """Scan the host. Of stalled devices, the last known facts are returned, since they may be in use (T2).

        If the scan stalls at something that is no device, the last scan is returned; the very first one is waited for.
        """
        while True:
            without = self.stalled
            progress = Progress(without, self._groups)
            key = f"the host without {', '.join(sorted(without))}" if without else "the host"
            begun = self._queue.begin(key, progress.text, partial(self._scan, wants, vgpu, progress), LATE_SECONDS)
            if begun is None:  # an earlier scan still hangs, and not at a device
                if self._last is not None:
                    return self._last
                await asyncio.sleep(self._stall)
                continue
            if await _comes_back(begun, progress, self._stall):
                facts = begun.result()
                self._last = facts if self._last is None else with_last(facts, self._last, without)
                return self._last
            device = progress.device  # once: the scan may go on at any time
            self._queue.give_up(key)
            if device is not None:
                self._stalled = {name: scan for name, scan in self._stalled.items() if not scan.done()}
                self._stalled[device] = begun
            elif self._last is not None:
                return self._last
            else:
                await asyncio.wait({begun})


async def _comes_back(scan: asyncio.Future[HostFacts], progress: Progress, stall: float) -> bool:
    """Whether a scan ends; False if one step takes longer than ``stall`` seconds."""
    while True:
        before = progress.steps
        await asyncio.wait({scan}, timeout=stall)
        if scan.done():
            return True
        if progress.steps == before:
            return False


def with_hanging(resource: Resource, hanging: Mapping[str, str], host: HostFacts, usage: Usage) -> Resource:
    """A resource with devices that hang Unhealthy, except those that pods have. Pure.

    A guest can't get a device either if another of its IOMMU group hangs: of that one nothing is known (T2).

    Args:
        resource: with all its devices.
        hanging: see `Scanner.hanging`.
        host: facts, for the groups.
        usage: which pod has which device.
    """
    if not hanging:
        return resource
    groups = {
        group: name
        for group, members in (() if resource.use == "container" else host.groups.items())
        for name in map(str, members)
        if name in hanging
    }
    devices = {
        key: device._replace(problem=Problem("failed", f"{name}: {hanging[name]}"))
        if device.healthy
        and (name := _at_fault(device, hanging, groups)) is not None
        and not usage.is_held(resource.name, key)
        else device
        for key, device in resource.devices.items()
    }
    return resource._replace(devices=devices)


def _at_fault(device: Device, hanging: Container[str], groups: Mapping[int, str]) -> str | None:
    """The device that hangs and keeps a device from pods; ``groups``: the one that hangs of each group."""
    own = next((name for name in (device.id, device.card, *map(str, device.functions)) if name in hanging), None)
    return own or next((groups[group] for group in sorted(device.groups) if group in groups), None)


def with_last(now: HostFacts, last: HostFacts, stalled: Iterable[str]) -> HostFacts:
    """A scan that left out some devices, completed by what was known about them. Pure.

    Args:
        now: the scan without them.
        last: the scan before.
        stalled: their names.
    """
    names = frozenset(stalled)
    if not names:
        return now
    functions = {address: function for address, function in last.functions.items() if str(address) in names}
    details = {address: detail for address, detail in last.details.items() if address in functions}
    mdevs = {uuid: mdev for uuid, mdev in last.mdevs.items() if uuid in names or mdev.parent in names}
    parents = {name: parent for name, parent in last.mdev_parents.items() if name in names}
    members: tuple[PciFunction | Mdev, ...] = (*functions.values(), *mdevs.values())
    nodes: set[str | None] = {*map(cdev_node, details.values()), *(group_node(each.iommu_group) for each in members)}
    return now._replace(
        functions=dict(sorted({**now.functions, **functions}.items())),
        details={**now.details, **details},
        groups=_with_members(now.groups, functions.values()),
        mdevs={**now.mdevs, **mdevs},
        mdev_parents={**now.mdev_parents, **parents},
        unknown={address: problem for address, problem in now.unknown.items() if address not in functions},
        noiommu=now.noiommu | last.noiommu.intersection([function.iommu_group for function in functions.values()]),
        nodes=None if now.nodes is None else now.nodes | (last.nodes or frozenset()).intersection(nodes),
    )


def _with_members(
    groups: Mapping[int, Iterable[PciAddress]], functions: Iterable[PciFunction]
) -> dict[int, tuple[PciAddress, ...]]:
    """The IOMMU groups, with these functions in theirs; everything sorted."""
    members = {group: set(addresses) for group, addresses in groups.items()}
    for function in functions:
        if function.iommu_group is not None:
            members.setdefault(function.iommu_group, set()).add(function.address)
    return {group: tuple(sorted(addresses)) for group, addresses in sorted(members.items())}
