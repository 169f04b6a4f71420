"""The tree of a host, made from its facts."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from itertools import groupby

from launcherkit.choose.readiness import Readiness, readiness_of
from launcherkit.host.pci_ids import PciNames, find_names
from launcherkit.model.address import PciAddress, format_cpuset
from launcherkit.model.host import HostFacts, PciDetail, PciFunction, class_name
from launcherkit.show.topology import (
    HostTopology,
    MdevSlots,
    RootComplex,
    TreeBridge,
    TreeFunction,
    TreeGroup,
    TreeNode,
    TreeSlot,
    VirtualFunctions,
)

_MEMORY = 0x200
_FIRST_OF_THE_ROM = 6


def topology_of(
    facts: HostFacts, tables: Iterable[str], *, every: bool, only: Collection[PciAddress] | None = None
) -> HostTopology:
    """The tree of a host.

    Args:
        facts: a scan.
        tables: where ``pci.ids`` may be.
        every: show all functions, not only devices for guests and the functions in their slots and groups.
        only: show just these functions, and don't count the others.
    """
    readiness = readiness_of(facts)
    names = find_names((facts.functions[each] for each in (facts.functions if only is None else only)), tables)
    endpoints = {address for address, ready in readiness.items() if ready.state != "bridge"}
    endpoints = endpoints if only is None else endpoints.intersection(only)
    shown = endpoints if every else _for_guests(facts, readiness) & endpoints
    whole = {address for address in shown if _holder(address, facts) == address}
    return HostTopology(
        tuple(_nodes(facts, readiness, names, whole)),
        tuple(_groups(facts, readiness, shown)),
        len(endpoints) - len(shown),
    )


def bar_sizes(detail: PciDetail) -> tuple[int, ...]:
    """The sizes of its memory BARs, in bytes; I/O BARs don't matter to devices that are passed through."""
    bars = (bar for bar in detail.resources if bar.line < _FIRST_OF_THE_ROM and bar.flags & _MEMORY)
    return tuple(bar.size for bar in bars if bar.size > 0)


def _holder(address: PciAddress, facts: HostFacts) -> PciAddress:
    """The function with which it is shown: the physical function of a VF, else itself."""
    physfn = facts.functions[address].physfn
    return physfn if physfn in facts.functions and physfn is not None else address


def _for_guests(facts: HostFacts, readiness: Mapping[PciAddress, Readiness]) -> set[PciAddress]:
    """Devices for guests, the functions of their slots and groups, physical functions of VFs; and all VFs of these."""
    for_guests = {address for address, ready in readiness.items() if ready.for_guests}
    slots = {address.slot for address in for_guests}
    groups = {facts.functions[address].iommu_group for address in for_guests} - {None}
    shown = {
        address
        for address, function in facts.functions.items()
        if address.slot in slots or function.iommu_group in groups
    }
    shown.update(_holder(address, facts) for address in for_guests)
    for address in tuple(shown):
        detail = facts.details.get(address)
        shown.update(vf for vf in (detail.virtfns if detail else ()) if vf in facts.functions)
    return shown


def _nodes(
    facts: HostFacts,
    readiness: Mapping[PciAddress, Readiness],
    names: PciNames,
    shown: Iterable[PciAddress],
) -> Iterable[TreeNode]:
    """The slots by NUMA node and root complex; those without a node come last."""
    vfs = _vfs_by_holder(facts)
    places: dict[tuple[int | None, str | None], dict[tuple[str, ...], list[TreeFunction]]] = {}
    for address in sorted(shown):
        function, detail = facts.functions[address], facts.details.get(address)
        path = detail.parents if detail else ()
        made = _function(function, facts, readiness, names, vfs.get(address, []))
        branch = places.setdefault((function.numa_node, path[0] if path else None), {})
        branch.setdefault(path[1:], []).append(made)
    for number in sorted({number for number, _ in places}, key=lambda node: (node is None, node or 0)):
        roots = sorted((name for node, name in places if node == number), key=lambda root: root or "~")
        complexes = (RootComplex(name, *_branch(places[number, name], 0, facts)) for name in roots)
        numa = None if number is None else facts.numa.get(number)
        yield TreeNode(number, format_cpuset(numa.cpus) if numa else "", tuple(complexes))


def _branch(
    paths: Mapping[tuple[str, ...], list[TreeFunction]], depth: int, facts: HostFacts
) -> tuple[tuple[TreeBridge, ...], tuple[TreeSlot, ...]]:
    """The bridges and slots directly below one point of the tree.

    Args:
        paths: functions by the bridges above them; all paths go through this point.
        depth: how many bridges are above this point.
        facts: tell the links of bridges.
    """
    below: dict[str, dict[tuple[str, ...], list[TreeFunction]]] = {}
    here: list[TreeFunction] = []
    for path, functions in paths.items():
        if len(path) > depth:
            below.setdefault(path[depth], {})[path] = functions
        else:
            here += functions
    bridges = []
    for name in sorted(below):
        inner, slots = _branch(below[name], depth + 1, facts)
        detail = _detail_of(name, facts)
        kind = "root port" if depth == 0 else "switch" if inner else "switch port" if depth > 1 else "bridge"
        bridges.append(TreeBridge(name, kind, detail.link if detail else None, inner, slots))
    return tuple(bridges), _slots(here)


def _slots(functions: Iterable[TreeFunction]) -> tuple[TreeSlot, ...]:
    """Functions of one bus by slot."""
    ordered = sorted(functions, key=lambda function: function.address)
    by_slot = groupby(ordered, key=lambda function: function.address.slot)
    return tuple(TreeSlot(slot, tuple(in_slot)) for slot, in_slot in by_slot)


def _detail_of(name: str, facts: HostFacts) -> PciDetail | None:
    """The details of a bridge by its name in a device path, which may contain other things than PCI."""
    try:
        return facts.details.get(PciAddress.parse(name))
    except ValueError:
        return None


def _function(
    function: PciFunction,
    facts: HostFacts,
    readiness: Mapping[PciAddress, Readiness],
    names: PciNames,
    vfs: list[PciFunction],
) -> TreeFunction:
    detail = facts.details.get(function.address)
    ready = readiness[function.address]
    return TreeFunction(
        address=function.address,
        ids=function.ids,
        kind=names.class_(function) or class_name(function),
        name=names.device(function),
        driver=function.driver,
        group=function.iommu_group,
        state=ready.state,
        blockers=ready.blockers,
        link=detail.link if detail else None,
        wider=_wider(detail, facts) if detail else None,
        bars=bar_sizes(detail) if detail else (),
        vfs=tuple(_folded(vfs, facts, readiness)),
        possible_vfs=detail.sriov_totalvfs if detail else None,
        mdevs=tuple(_mdevs(function.address, facts)),
    )


def _wider(detail: PciDetail, facts: HostFacts) -> int | None:
    """The lanes that the card and its slot support, if the link has fewer; a narrower slot is no fault."""
    link = detail.link
    if link is None or link.width is None or link.max_width is None:
        return None
    above = _detail_of(detail.parents[-1], facts) if detail.parents else None
    theirs = above.link.max_width if above and above.link else None
    could = link.max_width if theirs is None else min(link.max_width, theirs)
    return could if link.width < could else None


def _vfs_by_holder(facts: HostFacts) -> dict[PciAddress, list[PciFunction]]:
    vfs: dict[PciAddress, list[PciFunction]] = {}
    for address in sorted(facts.functions):
        function = facts.functions[address]
        if function.physfn is not None:
            vfs.setdefault(function.physfn, []).append(function)
    return vfs


def _folded(
    vfs: Iterable[PciFunction], facts: HostFacts, readiness: Mapping[PciAddress, Readiness]
) -> Iterable[VirtualFunctions]:
    """VFs, grouped by model, driver, state and type."""
    alike: dict[tuple[object, ...], list[PciFunction]] = {}
    for vf in vfs:
        whys = tuple((blocker.code, blocker.why) for blocker in readiness[vf.address].blockers)
        key = (vf.model, vf.driver, readiness[vf.address].state, _vgpu_type(vf, facts), whys)
        alike.setdefault(key, []).append(vf)
    for them in alike.values():
        first = them[0]
        yield VirtualFunctions(
            addresses=tuple(vf.address for vf in them),
            ids=first.ids,
            driver=first.driver,
            state=readiness[first.address].state,
            type=_vgpu_type(first, facts),
            groups=tuple(sorted({vf.iommu_group for vf in them if vf.iommu_group is not None})),
            blockers=readiness[first.address].blockers,
        )


def _vgpu_type(vf: PciFunction, facts: HostFacts) -> str | None:
    detail = facts.details.get(vf.address)
    if detail is None or detail.vgpu is None or not detail.vgpu.current_type:
        return None
    return dict(detail.vgpu.creatable).get(detail.vgpu.current_type, f"vGPU type {detail.vgpu.current_type}")


def _mdevs(address: PciAddress, facts: HostFacts) -> Iterable[MdevSlots]:
    """The existing and possible mdevs of each type; types without either are left out."""
    made: dict[str, list[str]] = {}
    names: dict[str, str] = {}
    for uuid, mdev in sorted(facts.mdevs.items()):
        if mdev.parent == str(address):
            made.setdefault(mdev.type_id, []).append(uuid)
            names[mdev.type_id] = mdev.type_name or mdev.type_id
    possible: dict[str, int | None] = {}
    for parent in facts.mdev_parents.values():
        for offered in parent.types if parent.address == address else ():
            possible[offered.id] = offered.available_instances
            names[offered.id] = offered.name or offered.id
    for type_id in sorted(names):
        slots = MdevSlots(names[type_id], tuple(made.get(type_id, ())), possible.get(type_id))
        if slots.uuids or slots.possible:
            yield slots


def _groups(
    facts: HostFacts, readiness: Mapping[PciAddress, Readiness], shown: Iterable[PciAddress]
) -> Iterable[TreeGroup]:
    """The groups of the shown functions."""
    numbers = {facts.functions[address].iommu_group for address in shown}
    for number in sorted(number for number in numbers if number is not None):
        members = facts.groups.get(number, ())
        endpoints = [member for member in members if member not in readiness or readiness[member].state != "bridge"]
        blockers = dict.fromkeys(
            blocker
            for member in endpoints
            for blocker in (readiness[member].blockers if member in readiness else ())
            if blocker.whole
        )
        yield TreeGroup(number, tuple(endpoints), tuple(blockers))
