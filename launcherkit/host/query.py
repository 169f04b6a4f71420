"""Reads only the facts that rules need about some functions, from a tree with ``sys/`` and ``dev/``."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from launcherkit.errors import UnreadableFile
from launcherkit.host.facts import is_container_dev, is_noiommu, read_mdev, read_numa, scan_identity
from launcherkit.host.functions import BarsOf, DetailReader, parents_of
from launcherkit.host.identity import DEVICES, DRIVERS, IdentityReader
from launcherkit.host.tree import Tree, why_unread
from launcherkit.model.address import MdevAddress, PciAddress
from launcherkit.model.host import HostFacts, Mdev, PciDetail, PciFunction

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
