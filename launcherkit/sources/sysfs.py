"""Reads host facts from a tree with ``sys/`` and ``dev/``: everything, or by need."""

from __future__ import annotations

from typing import TYPE_CHECKING

from launcherkit.model.address import PciAddress
from launcherkit.model.function import PciDetail, PciFunction
from launcherkit.model.host import HostFacts, Mdev
from launcherkit.sources.detail import DetailReader
from launcherkit.sources.identity import DEVICES, IdentityReader

if TYPE_CHECKING:
    from collections.abc import Iterable

    from launcherkit.model.address import MdevAddress
    from launcherkit.sources.tree import Tree

_DRIVERS = "sys/bus/pci/drivers"


def scan_identity(tree: Tree) -> HostFacts:
    """All functions and groups; no details, no mdevs, no nodes."""
    reader = IdentityReader()
    functions = {}
    with tree.below(DEVICES) as devices:
        for name in devices.names(""):
            address = reader.address(name)
            if address is not None:
                function = reader.read(devices, name + "/", address)
                if function is not None:
                    functions[address] = function
    return HostFacts(True, functions, {}, _groups(functions.values()), {}, {}, None)


def scan_all(tree: Tree) -> HostFacts:
    """All that there is."""
    from launcherkit.sources.mdev import read_mdevs, read_parents  # the hook rarely gets here

    facts = scan_identity(tree)
    details = {}
    with tree.below(DEVICES) as devices, tree.below(_DRIVERS) as drivers:
        reader = DetailReader(drivers, IdentityReader())
        for address, function in facts.functions.items():
            name = str(address)
            with devices.below(name) as directory:
                details[address] = reader.whole(directory, function, devices.link(name))
    return facts._replace(
        details=details,
        mdevs=read_mdevs(tree),
        mdev_parents=read_parents(tree),
        nodes=read_nodes(tree),
        container_dev=is_container_dev(tree),
    )


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


def read_needed(tree: Tree, addresses: Iterable[PciAddress], mdevs: Iterable[MdevAddress]) -> HostFacts:
    """See `Host.facts`."""
    with tree.below(DEVICES) as devices, tree.below(_DRIVERS) as drivers:
        return _NeedReader(tree, devices, drivers).facts(addresses, mdevs)


class _NeedReader:
    """Reads what rules need to know about some functions, and nothing else."""

    def __init__(self, tree: Tree, devices: Tree, drivers: Tree) -> None:
        self._tree = tree
        self._devices = devices
        self._has_dev = tree.exists("dev")
        self._has_iommufd = tree.exists("dev/iommu")
        self._identities = IdentityReader(numa=False)
        # Without /dev/iommu no one can open a function's own device, whatever its name.
        cdevs = self._has_iommufd or not self._has_dev
        self._detail_reader = DetailReader(drivers, self._identities, cdevs=cdevs)
        self._taken: dict[str, PciFunction | None] = {}
        self._functions: dict[PciAddress, PciFunction] = {}
        self._details: dict[PciAddress, PciDetail] = {}
        self._groups: dict[int, tuple[PciAddress, ...]] = {}

    def facts(self, addresses: Iterable[PciAddress], mdevs: Iterable[MdevAddress]) -> HostFacts:
        names = [str(address) for address in dict.fromkeys(addresses)]
        named = {name: function for name in names if (function := self._take(name)) is not None}
        for name, function in named.items():
            self._take_group(name, function)
        for name, function in named.items():
            if function.physfn is None:  # a VF is a device of its own (C2), and has no siblings
                self._take_slot(name[:-1])
        for detail in tuple(self._details.values()):
            if detail.virtfns:  # the first VF tells whether the card is an SR-IOV vGPU one (V3)
                self._take(str(detail.virtfns[0]))
        found = self._mdevs(mdevs)
        for mdev in found.values():
            self._take(mdev.parent)  # what it is decides whether the mdev counts as a GPU (Q1)
        nodes = self._nodes(found)
        return HostFacts(
            True,
            self._functions,
            self._details,
            self._groups,
            found,
            {},
            nodes,
            is_container_dev(self._tree) and read_nodes(self._tree) == nodes,
        )

    def _take(self, name: str) -> PciFunction | None:
        """Read a function once, details too, while its directory is open."""
        if name in self._taken:
            return self._taken[name]
        function = None
        address = self._identities.address(name)
        if address is not None:
            directory = self._devices.below(name)
            function = self._identities.read(directory, "", address)
            if function is not None:
                self._functions[address] = function
                self._details[address] = self._detail_reader.needed(directory, function)
            directory.close()
        self._taken[name] = function
        return function

    def _take_slot(self, beginning: str) -> None:
        """The functions whose names begin so, and the groups of those that may come along (S2)."""
        for number in "01234567":
            name = beginning + number
            if name not in self._taken and self._devices.exists(name):
                function = self._take(name)
                if function is not None and function.physfn is None:
                    self._take_group(name, function)

    def _take_group(self, name: str, function: PciFunction) -> None:
        group = function.iommu_group
        if group is None or group in self._groups:
            return
        members = [found for member in self._members(name, group) if (found := self._take(member)) is not None]
        self._groups[group] = tuple(sorted([member.address for member in members if member.iommu_group == group]))

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

    def _nodes(self, mdevs: dict[str, Mdev]) -> frozenset[str] | None:
        """Which of the nodes exist by which what was read could be opened (V2)."""
        if not self._has_dev:
            return None
        names = ["vfio", *map(str, self._groups), *(str(mdev.iommu_group) for mdev in mdevs.values())]
        names += [f"devices/{detail.vfio_dev}" for detail in self._details.values() if detail.vfio_dev]
        with self._tree.below("dev/vfio") as nodes:
            found = [f"/dev/vfio/{name}" for name in names if nodes.exists(name)]
        return frozenset([*found, "/dev/iommu"] if self._has_iommufd else found)


def _groups(functions: Iterable[PciFunction]) -> dict[int, tuple[PciAddress, ...]]:
    """Who is in which group, by the functions' own links."""
    members: dict[int, list[PciAddress]] = {}
    for function in functions:
        if function.iommu_group is not None:
            members.setdefault(function.iommu_group, []).append(function.address)
    return {group: tuple(sorted(addresses)) for group, addresses in sorted(members.items())}
