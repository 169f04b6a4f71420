"""Reads host facts from a tree with ``sys/`` and ``dev/``: everything, or by need."""

from __future__ import annotations

from typing import TYPE_CHECKING

from launcherkit.errors import UnreadableFile
from launcherkit.model.address import PciAddress
from launcherkit.model.function import PciDetail, PciFunction, is_vfio_name
from launcherkit.model.host import HostFacts, Mdev
from launcherkit.model.value import NamedTuple
from launcherkit.sources.detail import DetailReader, parents_of
from launcherkit.sources.identity import DEVICES, IdentityReader
from launcherkit.sources.tree import DiskTree, is_about_one_file

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from launcherkit.model.address import MdevAddress
    from launcherkit.sources.tree import Tree

_DRIVERS = "sys/bus/pci/drivers"
EVENTS = "sys/kernel/uevent_seqnum"
"""How many uevents the kernel has sent: one for each new device, and after each binding, unbinding and removal."""


def scan_identity(tree: Tree) -> HostFacts:
    """All functions and groups; no details, no mdevs, no nodes."""
    reader = IdentityReader()
    functions = {}
    unknown: dict[PciAddress, str] = {}
    with tree.below(DEVICES) as devices:
        for name in devices.names(""):
            address = reader.address(name)
            if address is None:
                continue
            try:
                function = reader.read(devices, name + "/", address)
            except UnreadableFile as problem:
                unknown[address] = _why(problem)
                continue
            if function is not None:
                functions[address] = function
    groups = _groups(functions.values())
    if unknown:
        groups = _with_unknown(groups, unknown, tree)
    return HostFacts(True, functions, {}, groups, {}, {}, None, unknown=unknown)


class _Remembered(NamedTuple):
    """What a look left behind."""

    inodes: Mapping[str, int]
    """Of the entries whose functions are remembered, by name."""
    functions: Mapping[PciAddress, PciFunction]
    groups: Mapping[int, tuple[PciAddress, ...]]
    bound: frozenset[str]
    """The names of those that VFIO drivers had."""
    events: bytes | None
    """What `EVENTS` held before the look; None where a part of it must be tried again."""


class IdentityMemory:
    """Who the functions of a host are, read anew only where an entry of sysfs is another one than at the last look.

    A function keeps its IDs, its group and its physical function for as long as it is there. Its driver may change:
    which functions have a VFIO driver is looked at each time, other drivers are those of when it was read. So are NUMA
    nodes with ``numa``, without it they are not read. Looks may overlap: what a look leaves behind holds for as long as
    the entries are the same. Nothing is listed while the kernel has sent no uevent, on a host that counts them.
    """

    def __init__(self, *, numa: bool = False) -> None:
        self._numa = numa
        self._last = _Remembered({}, {}, {}, frozenset(), None)

    def scan(self, tree: Tree, without: Collection[str] = ()) -> HostFacts:
        """As `scan_identity`. What can't be read is tried again by the next look.

        Args:
            tree: of the same host each time. One that isn't on a disk is read as a whole.
            without: names of functions of which what is read now is not to be remembered.
        """
        if not isinstance(tree, DiskTree):
            return scan_identity(tree)
        last, events = self._last, tree.read(EVENTS)
        if events is not None and events == last.events:
            return HostFacts(True, last.functions, {}, last.groups, {}, {}, None, events=events)
        inodes, bound = tree.inodes(DEVICES), bound_names(tree)
        kept, changed = last.inodes, last.bound ^ bound
        if changed:
            kept = {name: inode for name, inode in kept.items() if name not in changed}
        unknown: dict[PciAddress, str] = {}
        if inodes == kept:
            self._last = last._replace(events=events)
            return HostFacts(True, last.functions, {}, last.groups, {}, {}, None, events=events)
        reader, functions = IdentityReader(numa=self._numa), {}
        with tree.below(DEVICES) as devices:
            for name in sorted(inodes):
                address = reader.address(name)
                if address is None:
                    continue
                function = last.functions.get(address) if kept.get(name) == inodes[name] else None
                if function is None:
                    try:
                        function = reader.read(devices, name + "/", address)
                    except UnreadableFile as problem:
                        unknown[address] = _why(problem)
                if function is not None:
                    functions[address] = function
        groups = _groups(functions.values())
        unsure = {*map(str, unknown), *(name for name in without if name not in kept)}
        sure = {name: inode for name, inode in inodes.items() if name not in unsure}
        events = None if unsure else events
        self._last = _Remembered(sure, functions, groups, bound, events)
        if unknown:
            groups = _with_unknown(groups, unknown, tree)
        return HostFacts(True, functions, {}, groups, {}, {}, None, unknown=unknown, events=events)


def bound_names(tree: Tree) -> frozenset[str]:
    """The functions that VFIO drivers list, by name."""
    drivers = [name for name in tree.names(_DRIVERS) if is_vfio_name(name)]
    return frozenset(entry for driver in drivers for entry in tree.names(f"{_DRIVERS}/{driver}") if ":" in entry)


def scan_all(tree: Tree) -> HostFacts:
    """All that there is."""
    from launcherkit.sources.mdev import read_mdevs, read_parents  # the hook rarely gets here
    from launcherkit.sources.numa import read_numa

    facts = scan_identity(tree)
    details = {}
    unknown = dict(facts.unknown)
    with tree.below(DEVICES) as devices, tree.below(_DRIVERS) as drivers:
        reader = DetailReader(drivers, IdentityReader())
        for address, function in facts.functions.items():
            name = str(address)
            with devices.below(name) as directory:
                try:
                    details[address] = reader.whole(directory, function, devices.link(name))
                except UnreadableFile as problem:
                    unknown[address] = _why(problem)
    return facts._replace(
        details=details,
        mdevs=read_mdevs(tree),
        mdev_parents=read_parents(tree),
        nodes=read_nodes(tree),
        container_dev=is_container_dev(tree),
        unknown=unknown,
        numa=read_numa(tree),
    )


def _why(problem: UnreadableFile) -> str:
    """What kept one function from being read.

    Raises:
        UnreadableFile: it is none of the function's: nothing else can be read either.
    """
    if not is_about_one_file(problem):
        raise problem
    return problem.message


def _with_unknown(
    groups: dict[int, tuple[PciAddress, ...]], unknown: Iterable[PciAddress], tree: Tree
) -> dict[int, tuple[PciAddress, ...]]:
    """Groups with those members whose own link to their group can't be read."""
    missing = {str(address): address for address in unknown}
    found = {group: set(members) for group, members in groups.items()}
    for name in tree.names("sys/kernel/iommu_groups"):
        if name.isascii() and name.isdigit():
            members = missing.keys() & set(tree.names(f"sys/kernel/iommu_groups/{name}/devices"))
            if members:
                found.setdefault(int(name), set()).update(missing[member] for member in members)
    return {group: tuple(sorted(members)) for group, members in sorted(found.items())}


def read_nodes(tree: Tree) -> frozenset[str] | None:
    """The paths of VFIO's device nodes; None where the tree has no ``dev/`` to tell by."""
    nodes = ["/dev/vfio/" + name for name in tree.names("dev/vfio") if name != "devices"]
    nodes += ["/dev/vfio/devices/" + name for name in tree.names("dev/vfio/devices")]
    if tree.exists("dev/iommu"):
        nodes.append("/dev/iommu")
    return frozenset(nodes) if nodes or tree.exists("dev") else None


_EVERY_HOSTS = ("dev/kmsg", "dev/mem", "dev/cpu_dma_latency")
"""Nodes that the kernel itself makes. A runtime gives them to privileged containers, with all others that there are."""


def is_container_dev(tree: Tree) -> bool:
    """Whether ``dev/`` is one that a container runtime made, with nothing in it that wasn't given to it (S2)."""
    return tree.exists("dev") and not any(tree.exists(node) for node in _EVERY_HOSTS)


_MANY_SLOTS = 32
"""From so many on all functions of the host are listed once, instead of looking for each that a slot may have."""


def read_needed(
    tree: Tree,
    addresses: Iterable[PciAddress],
    mdevs: Iterable[MdevAddress],
    *,
    numa: bool = False,
    topology: bool = False,
) -> HostFacts:
    """See `Host.facts`."""
    with tree.below(DEVICES) as devices, tree.below(_DRIVERS) as drivers:
        named = list(dict.fromkeys(addresses))
        identities = IdentityReader(named, numa=numa or topology)
        facts = _NeedReader(tree, devices, drivers, identities, small_bars=topology).facts(named, mdevs)
        if not topology:
            return facts
        from launcherkit.sources.numa import read_numa  # only guests with NUMA cells pay for it

        details = {
            address: detail._replace(parents=parents_of(devices.link(str(address))))
            for address, detail in facts.details.items()
        }
        return facts._replace(details=details, numa=read_numa(tree))


class _NeedReader:
    """Reads what rules need to know about some functions, and nothing else."""

    def __init__(
        self, tree: Tree, devices: Tree, drivers: Tree, identities: IdentityReader, *, small_bars: bool
    ) -> None:
        self._tree = tree
        self._devices = devices
        self._has_dev = tree.exists("dev")
        self._has_iommufd = tree.exists("dev/iommu")
        self._identities = identities
        # Without /dev/iommu no one can open a function's own device, whatever its name.
        cdevs = self._has_iommufd or not self._has_dev
        self._detail_reader = DetailReader(drivers, self._identities, cdevs=cdevs, small_bars=small_bars)
        self._taken: dict[str, PciFunction | None] = {}
        self._functions: dict[PciAddress, PciFunction] = {}
        self._details: dict[PciAddress, PciDetail] = {}
        self._groups: dict[int, tuple[PciAddress, ...]] = {}
        self._unknown: dict[PciAddress, str] = {}
        self._there: set[str] | None = None
        """The names of all functions, where they were listed."""

    def facts(self, addresses: Iterable[PciAddress], mdevs: Iterable[MdevAddress]) -> HostFacts:
        names = [str(address) for address in addresses]
        named = {name: function for name in names if (function := self._take(name)) is not None}
        for name, function in named.items():
            self._take_group(name, function)
        # A VF is a device of its own (C2), and has no siblings.
        slots = [name[:-1] for name, function in named.items() if function.physfn is None]
        self._there = set(self._devices.names("")) if len(slots) >= _MANY_SLOTS else None
        for slot in dict.fromkeys(slots):
            self._take_slot(slot)
        for detail in tuple(self._details.values()):
            if detail.virtfns:  # the first VF tells whether the card is an SR-IOV vGPU one (V3)
                self._take(str(detail.virtfns[0]))
        found = self._mdevs(mdevs)
        for mdev in found.values():
            self._take(mdev.parent)  # what it is decides whether the mdev counts as a GPU (Q1)
        nodes, others = self._nodes(found)
        return HostFacts(
            True,
            self._functions,
            self._details,
            self._groups,
            found,
            {},
            nodes,
            not others and is_container_dev(self._tree),
            unknown=self._unknown,
        )

    def _take(self, name: str) -> PciFunction | None:
        """Read a function once, details too, while its directory is open."""
        if name in self._taken:
            return self._taken[name]
        function = None
        address = self._identities.address(name)
        if address is not None:
            try:
                function = self._read(name, address)
            except UnreadableFile as problem:
                self._unknown[address] = _why(problem)
        self._taken[name] = function
        return function

    def _read(self, name: str, address: PciAddress) -> PciFunction | None:
        with self._devices.below(name) as directory:
            function = self._identities.read(directory, "", address)
            if function is not None:
                self._details[address] = self._detail_reader.needed(directory, function)
                self._functions[address] = function
            return function

    def _take_slot(self, beginning: str) -> None:
        """The functions whose names begin so, and the groups of those that may come along (S2)."""
        for number in "01234567":
            name = beginning + number
            if name in self._taken:
                continue
            if self._devices.exists(name) if self._there is None else name in self._there:
                function = self._take(name)
                if function is not None and function.physfn is None:
                    self._take_group(name, function)

    def _take_group(self, name: str, function: PciFunction) -> None:
        group = function.iommu_group
        if group is None or group in self._groups:
            return
        names = self._members(name, group)
        members = [found for member in names if (found := self._take(member)) is not None]
        known = [member.address for member in members if member.iommu_group == group]
        unread = [address for address in self._unknown if str(address) in names] if self._unknown else []
        self._groups[group] = tuple(sorted([*known, *unread]))

    def _members(self, name: str, group: int) -> list[str]:
        names = self._tree.names(f"sys/kernel/iommu_groups/{group}/devices")
        if name in names:
            return names
        # A tree that was made by hand may have the links of the functions alone; a missed member is the worst mistake.
        everything = _groups(scan_identity(self._tree).functions.values())
        return [str(member) for member in everything.get(group, ())]

    def _mdevs(self, mdevs: Iterable[MdevAddress]) -> dict[str, Mdev]:
        found = {}
        for mdev in mdevs:
            from launcherkit.sources.mdev import read_mdev  # only VMs with mdevs pay for the import

            fact = read_mdev(self._tree, mdev.uuid)
            if fact is not None:
                found[mdev.uuid] = fact
        return found

    def _nodes(self, mdevs: dict[str, Mdev]) -> tuple[frozenset[str] | None, bool]:
        """Which of the nodes exist by which what was read could be opened (V2), and whether there are others."""
        if not self._has_dev:
            return None, False
        names = {"vfio", *map(str, self._groups), *(str(mdev.iommu_group) for mdev in mdevs.values())}
        cdevs = {f"devices/{detail.vfio_dev}" for detail in self._details.values() if detail.vfio_dev}
        there = self._tree.names("dev/vfio")
        if "devices" in there:
            there += [f"devices/{name}" for name in self._tree.names("dev/vfio/devices")]
            names.add("devices")
        found = (names | cdevs).intersection(there)
        nodes = frozenset(f"/dev/vfio/{name}" for name in found if name != "devices")
        return nodes | {"/dev/iommu"} if self._has_iommufd else nodes, len(found) < len(there)


def _groups(functions: Iterable[PciFunction]) -> dict[int, tuple[PciAddress, ...]]:
    """Who is in which group, by the functions' own links."""
    members: dict[int, list[PciAddress]] = {}
    for function in functions:
        if function.iommu_group is not None:
            members.setdefault(function.iommu_group, []).append(function.address)
    return {group: tuple(sorted(addresses)) for group, addresses in sorted(members.items())}
