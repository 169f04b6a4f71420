"""A host, and a VM's guest, as nested items, from which drawings are made."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import Literal, TypeAlias

from launcherkit.colour import PLAIN
from launcherkit.errors import LauncherkitError
from launcherkit.model.readiness import Blocker, ReadyState
from launcherkit.show.guest import GuestBridge, GuestFunction
from launcherkit.show.guest_text import guest_bridge_text, guest_function_texts, subject_of, window_texts
from launcherkit.show.layout import size, visible
from launcherkit.show.marks import marks_of
from launcherkit.show.texts import blocker_texts, link_texts, mdevs_text, state_text, vfs_texts
from launcherkit.show.topology import (
    HostTopology,
    RootComplex,
    TreeBridge,
    TreeFunction,
    TreeGroup,
    TreeNode,
    TreeSlot,
)

Tone: TypeAlias = Literal["plain", "good", "odd", "bad"]


@dataclass(frozen=True, slots=True)
class Item:
    """One item of a drawing, with the items in it."""

    kind: Literal["node", "branch", "slot", "group", "function", "guest"]
    label: str
    details: tuple[str, ...] = ()
    name: str = ""
    """Names of vendor and device."""
    badge: str = ""
    tone: Tone = "plain"
    """The badge's."""
    items: tuple[Item, ...] = ()


def outline(topology: HostTopology) -> tuple[Item, ...]:
    """The NUMA nodes of a host, then the guest if there is one."""
    marks = marks_of(topology, PLAIN)
    groups = {group.number: group for group in topology.groups}
    nodes = [_node(node, groups, marks) for node in topology.nodes]
    if not nodes:
        nodes = [Item("node", "no GPUs, no accelerators, and no functions bound to a VFIO driver")]
    if found := [blocker_texts(*each) for each in topology.in_the_way()]:
        blockers = tuple(Item("branch", device, (why,), "", code, "bad") for device, code, why in found)
        nodes.insert(0, Item("node", "in the way", items=blockers))
    if topology.guest is None:
        return tuple(nodes)
    guest = topology.guest
    items = [_guest_bridge(each) for each in guest.bridges]
    if guest.unplaced:
        items.append(Item("branch", "where libvirt puts it", items=tuple(map(_guest_function, guest.unplaced))))
    if guest.window is not None:
        label, *details = window_texts(guest.window)
        items.append(Item("guest", label, tuple(details)))
    return (*nodes, Item("node", "guest", (visible(guest.name),), items=tuple(items)))


def refused_items(name: str, errors: Collection[LauncherkitError]) -> tuple[Item, ...]:
    """A guest that can't have what it asks for, in the place of that of the topology; nothing without errors."""
    items = tuple(Item("guest", visible(subject_of(each)), (), "", each.code, "bad") for each in errors)
    return (Item("node", f"guest {visible(name)}", (), "", "can't start", "bad", items),) if items else ()


def _node(node: TreeNode, groups: Mapping[int, TreeGroup], marks: Mapping[str, str]) -> Item:
    label = "no NUMA node" if node.number is None else f"NUMA node {node.number}"
    complexes = tuple(
        _branch(each, [visible(each.name or "on a path that isn't known")], groups, marks) for each in node.complexes
    )
    return Item("node", label, (f"CPUs {node.cpus}",) if node.cpus else (), items=complexes)


def _behind(
    branch: RootComplex | TreeBridge, groups: Mapping[int, TreeGroup], marks: Mapping[str, str]
) -> Iterator[Item]:
    for slot in branch.slots:
        yield _slot(slot, groups, marks)
    for bridge in branch.bridges:
        yield _branch(bridge, [f"{visible(bridge.address)} {bridge.kind}"], groups, marks)


def _branch(
    branch: RootComplex | TreeBridge, names: list[str], groups: Mapping[int, TreeGroup], marks: Mapping[str, str]
) -> Item:
    """A bridge that leads only to another bridge is one item with it."""
    while len(branch.bridges) == 1 and not branch.slots:
        (branch,) = branch.bridges
        names = [*names, f"{visible(branch.address)} {branch.kind}"]
    return Item("branch", " > ".join(names), items=tuple(_behind(branch, groups, marks)))


def _slot(slot: TreeSlot, groups: Mapping[int, TreeGroup], marks: Mapping[str, str]) -> Item:
    link = next((link_texts(each.link, each.wider, PLAIN) for each in slot.functions if each.link), ())
    items: list[Item] = []
    for number, functions in groupby(slot.functions, key=lambda each: each.group):
        them = tuple(functions)
        inner = tuple(item for each in them for item in _function(each, marks))
        items += [_group(groups[number], inner)] if number in groups else inner
        items += (item for each in them for item in _vfs(each, marks, inside=False))
    return Item("slot", f"slot {slot.slot}", link[:1], "", "".join(link[1:]), "odd", tuple(items))


def _group(group: TreeGroup, functions: tuple[Item, ...]) -> Item:
    here = {item.label for item in functions}
    elsewhere = [str(member) for member in group.members if str(member) not in here]
    details = (f"with {', '.join(elsewhere)}",) if elsewhere else ()
    why = "; ".join(f"{each.code} {each.device} is {visible(each.why)}" for each in group.blockers)
    return Item("group", f"IOMMU group {group.number}", details, "", why, "bad", functions)


def _function(function: TreeFunction, marks: Mapping[str, str]) -> Iterator[Item]:
    address = str(function.address)
    details = [visible(each.why) for each in function.blockers if not each.whole]
    details += [marks[address]] if address in marks else []
    details += [visible(function.driver or "no driver"), visible(function.kind), f"[{function.ids}]"]
    details += [f"BARs of {' + '.join(map(size, function.bars))}"] if function.bars else []
    name = visible(function.name or "")
    yield Item("function", address, tuple(details), name, *_badge(function.state, function.blockers))
    yield from _vfs(function, marks, inside=True)
    for slots in function.mdevs:
        marked = (f"{uuid} {marks[uuid]}" for uuid in slots.uuids if uuid in marks)
        yield Item("function", mdevs_text(slots), tuple(marked))


def _vfs(function: TreeFunction, marks: Mapping[str, str], *, inside: bool) -> Iterator[Item]:
    """The VFs in the IOMMU group of their physical function, or the others."""
    for vfs in function.vfs:
        if vfs.share(function.group) == inside:
            number, word, *others = vfs_texts(vfs, function.possible_vfs, PLAIN)
            marked = (f"{name} {marks[name]}" for name in map(str, vfs.addresses) if name in marks)
            yield Item("function", number, (*others, *marked), "", word, _badge(vfs.state, vfs.blockers)[1])


def _badge(state: ReadyState, blockers: Iterable[Blocker]) -> tuple[str, Tone]:
    them = tuple(blockers)
    tones: dict[ReadyState, Tone] = {"ready": "good", "parent": "good", "idle": "odd"}
    return state_text(state, them, PLAIN), "bad" if them else tones.get(state, "plain")


def _guest_bridge(bridge: GuestBridge) -> Item:
    items = (*map(_guest_function, bridge.functions), *map(_guest_bridge, bridge.bridges))
    return Item("branch", guest_bridge_text(bridge), items=items)


def _guest_function(function: GuestFunction) -> Item:
    address, *details = guest_function_texts(function, PLAIN)
    return Item("guest", address, tuple(details))
