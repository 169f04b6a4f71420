"""Looks at the node: everything a little, what may be advertised closely; one stalled device holds up nobody else."""

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
from launcherkit.sources.host import Host
from launcherkit.sources.identity_memory import IdentityMemory
from launcherkit.sources.tree import PAGE, DiskTree
from launcherkit_plugin.host.files import NodeTree
from launcherkit_plugin.host.guarded import Guarded
from launcherkit_plugin.model.device import Problem, Resource, Usage


class _Judged(NamedTuple):
    """Which functions are wanted, in their order."""

    wanted: Callable[[PciFunction], bool] | None
    functions: Mapping[PciAddress, PciFunction]
    yes: Mapping[PciAddress, None]


_NOT_JUDGED = _Judged(None, {}, {})


class NodeReader:
    """Looks at one node again and again.

    A node may have thousands of functions, virtual ones, and it is looked at every few seconds. Who a function is
    doesn't change while it is there, so that is read once; what can change is read of the wanted ones, each time.
    """

    def __init__(self, *, numa: bool = False) -> None:
        """With ``numa`` the NUMA nodes of what is not wanted are read, too."""
        self._numa = numa
        self._memory = IdentityMemory(numa=numa)
        self._judged = _NOT_JUDGED

    def prepare(self, host: Host) -> None:
        """Learn who the functions are, which doesn't depend on what is wanted.

        Raises:
            UnreadableFile: see `read`, which then finds it too.
        """
        host.identities(self._memory)

    def read(
        self, host: Host, wanted: Callable[[PciFunction], bool], *, vgpu: bool, without: Collection[str] = ()
    ) -> HostFacts:
        """Who all functions are and who is in which group; details, drivers and nodes of what is wanted alone.

        Args:
            host: the same one each time, in whatever way it is read.
            wanted: whether the rest about a function, its slot and its group is read: driver and NUMA node, details,
                and which of the device nodes are there. Nodes of others are not among ``nodes``. It must not depend on
                the driver or the NUMA node, and be equal for the same answers.
            vgpu: whether mediated devices with their nodes, and the parents of such, are read.
            without: names of functions that are not really read this time.

        Raises:
            UnreadableFile: the host can't be looked at: nothing is known then (T2).
        """
        identity = host.identities(self._memory, without)
        addresses = self._wanted_of(identity, wanted)
        mediated = host.mdevs() if vgpu else NO_FACTS
        needed = _closely(host, addresses, mediated.mdevs)
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


def _closely(host: Host, addresses: Collection[PciAddress], mdevs: Iterable[str] = ()) -> HostFacts:
    """What is wanted, with its slots and groups."""
    needed = host.facts(addresses, map(MdevAddress, mdevs), numa=True)
    paths = host.paths(address for address in addresses if address in needed.functions)
    details = {
        address: detail._replace(parents=paths.get(address, detail.parents))
        for address, detail in needed.details.items()
    }
    return needed._replace(details=details)


def read_bound(host: Host) -> HostFacts:
    """What VFIO drivers have, with the slots and groups of that: so little is soon read on a host of thousands.

    Raises:
        UnreadableFile: see `NodeReader.read`.
    """
    return _closely(host, host.bound_to_vfio())


def _has_moved(function: PciFunction, identity: HostFacts) -> bool:
    """Whether a function is in another group than when it was read first: then nothing that is remembered holds."""
    known = identity.functions.get(function.address)
    return known is not None and known.iommu_group != function.iommu_group


def read_node(host: Host, wanted: Callable[[PciFunction], bool], *, vgpu: bool) -> HostFacts:
    """One look at everything: see `NodeReader.read`."""
    return NodeReader(numa=True).read(host, wanted, vgpu=vgpu)


STALL_SECONDS = 1.0
"""A file of sysfs that takes longer than that to be read makes its device a stalled one."""

LATE_SECONDS = 600.0
"""No look takes that long: it is called late when it stalls."""

_UNANSWERED = b"DRIVER=unknown\nPCI_CLASS=0\nPCI_ID=0000:0000\nPCI_SUBSYS_ID=0000:0000\n"
"""Instead of the file ``uevent`` of a device that doesn't answer. It stays a member of its group, with a driver that is
none of VFIO's: what has never been read is not free (T2)."""

_DEVICE = re.compile(r"/(?:devices|mdev_bus)/([^/]+)")


class Progress:
    """How far a look is; written by the thread that looks.

    Args:
        without: names of devices whose files are not read.
    """

    def __init__(self, without: Collection[str] = frozenset()) -> None:
        self.without = without
        self.reads = 0
        """So many files were begun to be read."""
        self.path = ""
        """The last of them."""

    @property
    def device(self) -> str | None:
        """The device whose file is being read: a BDF, an mdev's UUID, or the name of a parent."""
        found = _DEVICE.findall(self.path)
        return found[-1] if found else None

    def text(self) -> str:
        """What is being done, in words."""
        return f"reading {self.path}"

    def open_tree(self, path: str) -> DiskTree:
        """A tree of the disk that keeps this up to date."""
        return _FollowedTree(path, self)


class _FollowedTree(NodeTree):
    """Only reads are followed: links and directories are the kernel's own, and wait for no driver."""

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
"""Looks at the host, by which functions are wanted and whether vGPUs are; blocks."""


class Looks:
    """Looks one after the other.

    Args:
        guarded: does them.
        scan: how.
        read_bound: reads what VFIO drivers have, where `at_bound` may be called.
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
        """The names of the devices that have not answered yet."""
        return frozenset(name for name, look in self._stalled.items() if not look.done())

    async def at_bound(self) -> HostFacts | None:
        """What VFIO drivers have; None where that isn't all that could be advertised, or can't be read at once."""
        if self._read_bound is None:
            return None
        try:
            return await self._guarded.run("what VFIO drivers have", "reading it", self._read_bound, self._stall)
        except LauncherkitError:
            return None  # `look` reports it, or can do without the device that is in trouble

    async def look(self, wanted: Callable[[PciFunction], bool], vgpu: bool) -> HostFacts:
        """What there is; of devices that don't answer what was known last, for they may be in use (T2).

        Where something else than a device makes it wait the last look counts, and the first one is waited for.
        """
        while True:
            without = self.stalled
            progress = Progress(without)
            key = f"the host without {', '.join(sorted(without))}" if without else "the host"
            begun = self._guarded.begin(key, progress.text, partial(self._scan, wanted, vgpu, progress), LATE_SECONDS)
            if begun is None:  # one that nobody could say of where it stalls
                if self._last is not None:
                    return self._last
                await asyncio.sleep(self._stall)
                continue
            if await self._comes_back(begun, progress):
                found = begun.result()
                self._last = found if self._last is None else with_last(found, self._last, without)
                return self._last
            self._guarded.give_up(key)
            if progress.device is not None:
                self._stalled = {name: look for name, look in self._stalled.items() if not look.done()}
                self._stalled[progress.device] = begun
            elif self._last is not None:
                return self._last
            else:
                await asyncio.wait({begun})

    async def _comes_back(self, begun: asyncio.Future[HostFacts], progress: Progress) -> bool:
        """Whether a look ends; False where one read takes too long."""
        while True:
            before = progress.reads
            await asyncio.wait({begun}, timeout=self._stall)
            if begun.done():
                return True
            if progress.reads == before:
                return False


def with_stalled(resource: Resource, stalled: Collection[str], usage: Usage) -> Resource:
    """A resource with the devices that don't answer Unhealthy, but for those that somebody has. Pure."""
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
    """A look from which some devices were left out, with what was known of them. Pure.

    Args:
        found: without them.
        last: the look before.
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
        nodes=None if found.nodes is None else found.nodes | (last.nodes or frozenset()).intersection(near),
    )
