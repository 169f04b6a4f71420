"""Reads the facts that rules need about some functions, and no more, from a tree with ``sys/`` and ``dev/``."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence

from launcherkit.errors import UnreadableFile
from launcherkit.host.functions import (
    DEVICES,
    DRIVERS,
    BarsOf,
    DetailReader,
    IdentityReader,
    base_name,
    group_number,
    parents_of,
    text,
)
from launcherkit.host.tree import Tree, why_unread
from launcherkit.model.address import MdevAddress, PciAddress, parse_cpuset
from launcherkit.model.host import HostFacts, Mdev, NumaNode, PciDetail, PciFunction

_MANY_SLOTS = 32
"""From this number of slots on, all functions of the host are listed once, instead of trying each possible one."""


def read_needed(
    tree: Tree,
    addresses: Iterable[PciAddress],
    mdevs: Iterable[MdevAddress],
    *,
    places: bool = False,
    bars: bool = True,
    topology: bool = False,
) -> HostFacts:
    """See `Host.facts`."""
    with tree.below(DEVICES) as devices, tree.below(DRIVERS) as drivers:
        named = {str(address): address for address in dict.fromkeys(addresses)}
        identities = IdentityReader(named, numa=places or topology)
        bars_of: BarsOf = "all" if topology else "cards" if bars else "none"
        reader = _NeedReader(tree, devices, drivers, identities, places=places or topology, bars_of=bars_of)
        facts = reader.facts(named, mdevs)
        if not topology:
            return facts
        return facts._replace(numa=read_numa(tree))


class _NeedReader:
    """Reads only the facts that rules need about some functions."""

    def __init__(
        self,
        tree: Tree,
        devices: Tree,
        drivers: Tree,
        identities: IdentityReader,
        *,
        places: bool,
        bars_of: BarsOf,
    ) -> None:
        self._tree = tree
        self._places = places
        self._devices = devices
        self._has_dev = tree.exists("dev")
        self._has_iommufd = tree.exists("dev/iommu")
        self._identities = identities
        # A container may get /dev/iommu opened, without its node; the functions' own nodes it needs in any case (V2).
        cdevs = self._has_iommufd or not self._has_dev or tree.exists("dev/vfio/devices")
        self._detail_reader = DetailReader(drivers, self._identities, cdevs=cdevs, bars_of=bars_of)
        self._by_name: dict[str, PciFunction | None] = {}
        self._functions: dict[PciAddress, PciFunction] = {}
        self._details: dict[PciAddress, PciDetail] = {}
        self._groups: dict[int, tuple[PciAddress, ...]] = {}
        self._unknown: dict[PciAddress, str] = {}

    def facts(self, names: Iterable[str], mdevs: Iterable[MdevAddress]) -> HostFacts:
        named = {name: function for name in names if (function := self._read_once(name)) is not None}
        for name, function in named.items():
            self._read_group(name, function)
        # A VF is a device of its own (C2), and has no siblings.
        for name in self._others_in(dict.fromkeys([name[:-1] for name, each in named.items() if each.physfn is None])):
            other = self._read_once(name)
            if other is not None and other.physfn is None:
                self._read_group(name, other)  # it may be a sibling (S2)
        for detail in tuple(self._details.values()):
            if detail.virtfns:  # the first VF tells whether the card is an SR-IOV vGPU one (V3)
                self._read_once(str(detail.virtfns[0]))
        mdev_facts = self._mdevs(mdevs)
        for mdev in mdev_facts.values():
            self._read_once(mdev.parent)  # its class decides whether the mdev counts as a GPU (Q1)
        nodes, others = self._nodes(mdev_facts)
        return HostFacts(
            True,
            self._functions,
            self._details,
            self._groups,
            mdev_facts,
            {},
            nodes,
            not others and is_container_dev(self._tree),
            unknown=self._unknown,
            noiommu=frozenset([group for group in self._groups if is_noiommu(self._tree, group)]),
        )

    def _read_once(self, name: str) -> PciFunction | None:
        """Read a function once, with its details while its directory is open."""
        if name in self._by_name:
            return self._by_name[name]
        function = None
        address = self._identities.address(name)
        if address is not None:
            try:
                function = self._read(name, address)
            except UnreadableFile as problem:
                self._unknown[address] = why_unread(problem)
        self._by_name[name] = function
        return function

    def _read(self, name: str, address: PciAddress) -> PciFunction | None:
        directory = self._devices.below(name)
        try:
            function = self._identities.read(directory, "", address)
            if function is not None:
                parents = parents_of(self._devices.link(name)) if self._places else ()
                self._details[address] = self._detail_reader.needed(directory, function, parents)
                self._functions[address] = function
            return function
        finally:
            directory.close()

    def _others_in(self, slots: Collection[str]) -> Iterator[str]:
        """The names of functions in ``slots`` that have not been read; a slot is a name without its last digit."""
        if len(slots) >= _MANY_SLOTS:
            return (name for name in self._devices.names("") if name[:-1] in slots and name not in self._by_name)
        names = (slot + number for slot in slots for number in "01234567")
        return (name for name in names if name not in self._by_name and self._devices.exists(name))

    def _read_group(self, name: str, function: PciFunction) -> None:
        group = function.iommu_group
        if group is None or group in self._groups:
            return
        names = self._members(name, group)
        members = [member for each in names if (member := self._read_once(each)) is not None]
        readable = [member.address for member in members if member.iommu_group == group]
        unread = [address for address in self._unknown if str(address) in names] if self._unknown else []
        self._groups[group] = tuple(sorted([*readable, *unread]))

    def _members(self, name: str, group: int) -> list[str]:
        names = self._tree.names(f"sys/kernel/iommu_groups/{group}/devices")
        if name in names:
            return names
        # A tree made by hand may have only the functions' own links; missing a member would be the worst mistake.
        return [str(member) for member in scan_identity(self._tree).groups.get(group, ())]

    def _mdevs(self, mdevs: Iterable[MdevAddress]) -> dict[str, Mdev]:
        mdev_facts = {}
        for mdev in mdevs:
            fact = read_mdev(self._tree, mdev.uuid)
            if fact is not None:
                mdev_facts[mdev.uuid] = fact
        return mdev_facts

    def _nodes(self, mdevs: dict[str, Mdev]) -> tuple[frozenset[str] | None, bool]:
        """The existing nodes that could open the functions and mdevs (V2), and whether there are others."""
        if not self._has_dev:
            return None, False
        names = {"vfio", *map(str, self._groups), *(str(mdev.iommu_group) for mdev in mdevs.values())}
        cdevs = {f"devices/{detail.vfio_dev}" for detail in self._details.values() if detail.vfio_dev}
        present = self._tree.names("dev/vfio")
        if "devices" in present:
            present += [f"devices/{name}" for name in self._tree.names("dev/vfio/devices")]
            names.add("devices")
        usable = (names | cdevs).intersection(present)
        nodes = frozenset(f"/dev/vfio/{name}" for name in usable if name != "devices")
        return nodes | {"/dev/iommu"} if self._has_iommufd else nodes, len(usable) < len(present)


# All functions and groups.


def scan_identity(tree: Tree) -> HostFacts:
    """All functions and groups, without details, mdevs and nodes."""
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
                unknown[address] = why_unread(problem)
                continue
            if function is not None:
                functions[address] = function
    groups = groups_of(functions.values())
    if unknown:
        groups = with_unread(groups, unknown, tree)
    return HostFacts(True, functions, {}, groups, {}, {}, None, unknown=unknown)


def with_unread(
    groups: dict[int, tuple[PciAddress, ...]], unknown: Iterable[PciAddress], tree: Tree
) -> dict[int, tuple[PciAddress, ...]]:
    """The groups, with members added whose own link to their group can't be read."""
    missing = {str(address): address for address in unknown}
    members_of = {group: set(members) for group, members in groups.items()}
    for name in tree.names("sys/kernel/iommu_groups"):
        if name.isascii() and name.isdigit():
            members = missing.keys() & set(tree.names(f"sys/kernel/iommu_groups/{name}/devices"))
            if members:
                members_of.setdefault(int(name), set()).update(missing[member] for member in members)
    return {group: tuple(sorted(members)) for group, members in sorted(members_of.items())}


def groups_of(functions: Iterable[PciFunction]) -> dict[int, tuple[PciAddress, ...]]:
    """The members of each group, by the functions' own links."""
    members: dict[int, list[PciAddress]] = {}
    for function in functions:
        if function.iommu_group is not None:
            members.setdefault(function.iommu_group, []).append(function.address)
    return {group: tuple(sorted(addresses)) for group, addresses in sorted(members.items())}


# The other facts: mediated devices, NUMA nodes, and whose device nodes a tree has.

MDEVS = "sys/bus/mdev/devices"


def read_mdev(tree: Tree, uuid: str) -> Mdev | None:
    """The mdev with that UUID; None if it doesn't exist."""
    device = f"{MDEVS}/{uuid}"
    type_id = base_name(tree.link(device + "/mdev_type"))
    if type_id is None:
        return None
    path = (tree.link(device) or "").split("/")
    return Mdev(
        uuid,
        path[-2] if len(path) > 1 else "",
        type_id,
        text(tree.read(device + "/mdev_type/name")),
        text(tree.read(device + "/mdev_type/device_api")),
        group_number(tree.link(device + "/iommu_group")),
    )


def is_noiommu(tree: Tree, group: int) -> bool:
    """Whether VFIO made a PCI function's group itself, in its no-IOMMU mode (V1).

    Linux names such a group (``drivers/vfio/group.c``). It names those of mediated devices likewise, in every mode.
    """
    return (tree.read(f"sys/kernel/iommu_groups/{group}/name", 32) or b"").rstrip() == b"vfio-noiommu"


_EVERY_HOSTS = ("dev/kmsg", "dev/mem", "dev/cpu_dma_latency")
"""Nodes that the kernel itself makes. Runtimes give them only to privileged containers, with all other nodes."""


def is_container_dev(tree: Tree) -> bool:
    """Whether a container runtime made ``dev/``, with only the nodes that were given to the container (S2)."""
    return tree.exists("dev") and not any(tree.exists(node) for node in _EVERY_HOSTS)


_NODES = "sys/devices/system/node"


def read_numa(tree: Tree) -> dict[int, NumaNode]:
    """The nodes by number; empty if the kernel was built without NUMA."""
    numbers = sorted(
        int(name[4:])
        for name in tree.names(_NODES)
        if name.startswith("node") and name[4:].isascii() and name[4:].isdigit() and len(name) < 10
    )
    with tree.below(_NODES) as nodes:
        return {number: _read_node(nodes, f"node{number}", numbers) for number in numbers}


def _read_node(nodes: Tree, name: str, numbers: list[int]) -> NumaNode:
    try:
        cpus = parse_cpuset((nodes.read(f"{name}/cpulist") or b"").decode("ascii", "replace"))
    except ValueError:
        cpus = frozenset()
    figures = (nodes.read(f"{name}/distance") or b"").split()
    readable = all(figure.isdigit() and len(figure) < 10 for figure in figures)
    return NumaNode(cpus, distances_of(numbers, [int(figure) for figure in figures]) if readable else {})


def distances_of(numbers: Sequence[int], figures: Sequence[int]) -> dict[int, int]:
    """The distances by node, from one figure for each node in order; empty if the numbers don't match."""
    return dict(zip(numbers, figures, strict=True)) if len(numbers) == len(figures) else {}
