"""Scans the node: the identity of all functions, and the details of those that may be advertised. A device whose files
can't be read in time doesn't delay the others.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from typing import TypeAlias

from launcherkit.errors import LauncherkitError
from launcherkit.model.address import MdevAddress, PciAddress
from launcherkit.model.function import PciFunction
from launcherkit.model.host import NO_FACTS, HostFacts, Mdev
from launcherkit.model.value import NamedTuple
from launcherkit.resolve.vfio import cdev_node, group_node
from launcherkit.sources.file_tree import PAGE, DiskTree
from launcherkit.sources.host import Host
from launcherkit.sources.identity_memory import IdentityMemory
from launcherkit_plugin.host.files import NodeTree
from launcherkit_plugin.host.guarded import Guarded
from launcherkit_plugin.model.device import Problem, Resource, Usage


class _Judged(NamedTuple):
    """Which functions are wanted, in order; remembered from one scan to the next."""

    wanted: Callable[[PciFunction], bool] | None
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
        host.identities(self._memory)

    def read(
        self, host: Host, wanted: Callable[[PciFunction], bool], *, vgpu: bool, without: Collection[str] = ()
    ) -> HostFacts:
        """The identities and groups of all functions; drivers, details and device nodes only of wanted ones.

        Args:
            host: always the same host, though it may be read in different ways.
            wanted: whether to read the rest about a function, its slot and its group: driver, NUMA node, details, and
                which device nodes exist; ``nodes`` has no others. It must not depend on driver or NUMA node. Two
                callables that are equal must give the same answers.
            vgpu: whether to read mediated devices with their nodes, and the parents of mediated devices.
            without: names of functions whose files are not read this time.

        Raises:
            UnreadableFile: the host can't be read, so nothing is known (T2).
        """
        identity = host.identities(self._memory, without)
        addresses = self._wanted_of(identity, wanted)
        mediated = host.mdevs() if vgpu else NO_FACTS
        needed = host.facts(addresses, map(MdevAddress, mediated.mdevs), places=True)
        if any(_has_moved(function, identity) for function in needed.functions.values()):
            self._memory = IdentityMemory(numa=self._numa)
            return self.read(host, wanted, vgpu=vgpu, without=without)
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

    def _wanted_of(self, identity: HostFacts, wanted: Callable[[PciFunction], bool]) -> list[PciAddress]:
        last = self._judged
        if last.wanted != wanted:
            last = _NOT_JUDGED
        if last.functions is not identity.functions:
            yes = [
                address
                for address, function in identity.functions.items()
                if (address in last.yes if last.functions.get(address) is function else wanted(function))
            ]
            last = _Judged(wanted, identity.functions, dict.fromkeys(yes))
        self._judged = last
        return list(last.yes)


def read_bound(host: Host) -> HostFacts:
    """The functions that are bound to VFIO drivers, with their slots and groups: fast even with thousands of functions.

    They come without BARs: only DRA publishes these, and it waits for a scan.

    Raises:
        UnreadableFile: see `NodeReader.read`.
    """
    return host.facts(host.bound_to_vfio(), places=True, bars=False)


def _has_moved(function: PciFunction, identity: HostFacts) -> bool:
    """Whether a function is in another group than at its first reading; then nothing remembered is valid any more."""
    known = identity.functions.get(function.address)
    return known is not None and known.iommu_group != function.iommu_group


def read_node(host: Host, wanted: Callable[[PciFunction], bool], *, vgpu: bool) -> HostFacts:
    """A single scan: see `NodeReader.read`."""
    return NodeReader(numa=True).read(host, wanted, vgpu=vgpu)


STALL_SECONDS = 1.0
"""If reading a file of sysfs takes longer, its device is stalled."""

LATE_SECONDS = 600.0
"""Longer than any scan: `Scanner` detects stalls itself."""

_UNANSWERED = b"DRIVER=unknown\nPCI_CLASS=0\nPCI_ID=0000:0000\nPCI_SUBSYS_ID=0000:0000\n"
"""Stands for the file ``uevent`` of a stalled device. The device stays a member of its group, with a driver that isn't
VFIO's: a device that was never read is not free (T2)."""

_DEVICE = re.compile(r"/(?:devices|mdev_bus)/([^/]+)")


class Progress:
    """The progress of a scan; updated by the thread that scans.

    Args:
        without: names of devices whose files are not read.
    """

    def __init__(self, without: Collection[str] = frozenset()) -> None:
        self.without = without
        self.reads = 0
        """How many reads of files were begun."""
        self.path = ""
        """The file of the last of them."""

    @property
    def device(self) -> str | None:
        """The device whose file is being read: a BDF, the UUID of an mdev, or the name of a parent."""
        found = _DEVICE.findall(self.path)
        return found[-1] if found else None

    def text(self) -> str:
        """The present activity, in words."""
        return f"reading {self.path}"

    def open_tree(self, path: str) -> DiskTree:
        """A tree of files that updates this progress."""
        return _FollowedTree(path, self)


class _FollowedTree(NodeTree):
    """Follows only reads of files: links and directories never wait for a driver."""

    __slots__ = ("_progress",)

    def __init__(self, path: str, progress: Progress, parent: DiskTree | None = None) -> None:
        super().__init__(path, parent)
        self._progress = progress

    def read(self, path: str, limit: int = PAGE, offset: int = 0) -> bytes | None:
        progress = self._progress
        progress.path = f"{self._path}/{path}"
        progress.reads += 1
        if progress.without and progress.device in progress.without:
            return _UNANSWERED if path.endswith("uevent") else None
        return super().read(path, limit, offset)

    def below(self, path: str) -> DiskTree:
        return _FollowedTree(path, self._progress, self)


Scan: TypeAlias = Callable[[Callable[[PciFunction], bool], bool, Progress], HostFacts]
"""Scans the host; the arguments say which functions and whether vGPUs are wanted. Blocks."""


class Scanner:
    """Scans of the host, one after the other.

    Args:
        guarded: runs them.
        scan: one scan.
        read_bound: reads the functions with VFIO drivers, for `at_bound`; None: it returns None.
        stall: seconds, see `STALL_SECONDS`.
    """

    def __init__(
        self,
        guarded: Guarded,
        scan: Scan,
        read_bound: Callable[[], HostFacts] | None = None,
        stall: float = STALL_SECONDS,
    ) -> None:
        self._guarded = guarded
        self._scan = scan
        self._read_bound = read_bound
        self._stall = stall
        self._stalled: dict[str, asyncio.Future[HostFacts]] = {}
        self._last: HostFacts | None = None

    @property
    def stalled(self) -> frozenset[str]:
        """The names of the devices that are stalled."""
        return frozenset(name for name, scan in self._stalled.items() if not scan.done())

    async def at_bound(self) -> HostFacts | None:
        """The functions with VFIO drivers; None if others could be advertised too, or if reading stalls or fails."""
        if self._read_bound is None:
            return None
        try:
            return await self._guarded.run("functions with VFIO drivers", "reading them", self._read_bound, self._stall)
        except LauncherkitError:
            return None  # `scan` reports it, or leaves out the stalled device

    async def scan(self, wanted: Callable[[PciFunction], bool], vgpu: bool) -> HostFacts:
        """Scan the host. Of stalled devices, the last known facts are returned, since they may be in use (T2).

        If the scan stalls at something that is no device, the last scan is returned; the very first one is waited for.
        """
        while True:
            without = self.stalled
            progress = Progress(without)
            key = f"the host without {', '.join(sorted(without))}" if without else "the host"
            begun = self._guarded.begin(key, progress.text, partial(self._scan, wanted, vgpu, progress), LATE_SECONDS)
            if begun is None:  # an earlier scan still hangs, and not at a device
                if self._last is not None:
                    return self._last
                await asyncio.sleep(self._stall)
                continue
            if await self._comes_back(begun, progress):
                found = begun.result()
                self._last = found if self._last is None else with_last(found, self._last, without)
                return self._last
            device = progress.device  # once: the scan may go on at any time
            self._guarded.give_up(key)
            if device is not None:
                self._stalled = {name: scan for name, scan in self._stalled.items() if not scan.done()}
                self._stalled[device] = begun
            elif self._last is not None:
                return self._last
            else:
                await asyncio.wait({begun})

    async def _comes_back(self, begun: asyncio.Future[HostFacts], progress: Progress) -> bool:
        """Whether a scan ends; False if one read takes too long."""
        while True:
            before = progress.reads
            await asyncio.wait({begun}, timeout=self._stall)
            if begun.done():
                return True
            if progress.reads == before:
                return False


def with_stalled(resource: Resource, stalled: Collection[str], usage: Usage) -> Resource:
    """A resource with its stalled devices Unhealthy, except those that pods have. Pure."""
    if not stalled:
        return resource
    devices = {
        key: device._replace(problem=Problem("failed", f"{key}: reading one of its files in sysfs hangs"))
        if device.healthy
        and usage.holder(resource.name, key) is None
        and not {key, *map(str, device.functions)}.isdisjoint(stalled)
        else device
        for key, device in resource.devices.items()
    }
    return resource._replace(devices=devices)


def with_last(found: HostFacts, last: HostFacts, stalled: Iterable[str]) -> HostFacts:
    """A scan that left out some devices, completed by what was known about them. Pure.

    Args:
        found: the scan without them.
        last: the scan before.
        stalled: their names.
    """
    names = frozenset(stalled)
    if not names:
        return found
    functions = {address: function for address, function in last.functions.items() if str(address) in names}
    details = {address: detail for address, detail in last.details.items() if address in functions}
    everything = {**found.functions, **functions}
    groups: dict[int, list[PciAddress]] = {}
    for address, function in sorted(everything.items()):
        if function.iommu_group is not None:
            groups.setdefault(function.iommu_group, []).append(address)
    mdevs = {uuid: mdev for uuid, mdev in last.mdevs.items() if uuid in names or mdev.parent in names}
    members: tuple[PciFunction | Mdev, ...] = (*functions.values(), *mdevs.values())
    near: set[str | None] = {*map(cdev_node, details.values()), *(group_node(member.iommu_group) for member in members)}
    return found._replace(
        functions=dict(sorted(everything.items())),
        details={**found.details, **details},
        groups={group: tuple(members) for group, members in sorted(groups.items())},
        mdevs={**found.mdevs, **mdevs},
        mdev_parents={
            **found.mdev_parents,
            **{name: parent for name, parent in last.mdev_parents.items() if name in names},
        },
        noiommu=found.noiommu | last.noiommu.intersection([each.iommu_group for each in functions.values()]),
        nodes=None if found.nodes is None else found.nodes | (last.nodes or frozenset()).intersection(near),
    )
