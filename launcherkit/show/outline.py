"""The outline of what is shown of a host and of a VM's guest, made from their trees."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby
from types import MappingProxyType

from launcherkit.choose.readiness import Blocker, ReadyState
from launcherkit.colour import Tone
from launcherkit.errors import LauncherkitError, counted
from launcherkit.model.address import PciAddress, format_cpuset
from launcherkit.model.host import PciLink
from launcherkit.model.plan import Window
from launcherkit.show.guest import GuestBridge, GuestFunction, TreeGuest
from launcherkit.show.item import Item, Outline, Part, Spans, part
from launcherkit.show.layout import link_speed, size, visible
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

_BRIDGES: Mapping[str, str] = {
    "pcie-expander-bus": "expander",
    "pcie-root-port": "root port",
    "pcie-switch-upstream-port": "switch",
    "pcie-switch-downstream-port": "switch port",
}
"""What libvirt's models of controllers are called."""


@dataclass(frozen=True, slots=True)
class _Context:
    """What the items of functions depend on besides the function."""

    groups: Mapping[int, TreeGroup]
    marks: Mapping[str, Spans]
    """By address or UUID."""
    gone: Collection[PciAddress]
    held: Mapping[str, Part]
    """The badges of functions that nobody else could have now, by address."""


def outline(
    topology: HostTopology, marks: Mapping[str, Spans] = MappingProxyType({}), gone: Collection[PciAddress] = ()
) -> Outline:
    """The outline of a host, with its guest.

    Args:
        topology: the host's.
        marks: further marks on functions and mediated devices, by address or UUID.
        gone: functions of the topology that the host no longer has.
    """
    groups = {group.number: group for group in topology.groups}
    context = _Context(groups, {**_marks(topology), **marks}, gone, _holdings(topology))
    return Outline(
        tuple(_node(node, context) for node in topology.nodes),
        tuple(_blocker(blocker, group) for blocker, group in topology.blockers()),
        topology.left_out,
        None if topology.guest is None else guest_item(topology.guest),
    )


def guest_item(guest: TreeGuest) -> Item:
    """A VM's guest, with the tree of its devices and where on the host they are."""
    items = [_guest_bridge(bridge) for bridge in guest.bridges]
    if guest.unplaced:
        label = part("label", "where libvirt puts it")
        items.append(Item("branch", (label,), tuple(map(_guest_function, guest.unplaced))))
    if guest.window is not None:
        items.append(_window(guest.window))
    return Item("node", (part("label", "guest", "head"), part("detail", visible(guest.name))), tuple(items))


def refused_item(name: str, errors: Iterable[LauncherkitError]) -> Item:
    """A guest that can't have its devices: the code and subject of each error."""
    labels = (part("label", "guest", "head"), part("label", visible(name)))
    items = (
        Item("guest", (part("badge", error.code, "bad"), part("label", visible(subject(error))))) for error in errors
    )
    return Item("node", (*labels, part("badge", "can't start", "bad")), tuple(items))


def subject(error: LauncherkitError) -> str:
    """The subject of an error: its device, else whatever else it names."""
    group = "" if error.group is None else f"IOMMU group {error.group}"
    about = (error.device, group, None if error.driver is None else f"bound to {error.driver}")
    return ", ".join(filter(None, about)) or error.resource or error.variable or error.file or error.message


def _marks(topology: HostTopology) -> Mapping[str, Spans]:
    """By address or UUID: who holds it, for which request it is, or why it stays."""
    marks: dict[str, Spans] = {}
    for device, text, tone in (*_holders(topology), *_goals(topology.guest)):
        before: Spans = (*marks[device], ("  ", "plain")) if device in marks else ()
        marks[device] = (*before, (text, tone))
    return marks


def _holders(topology: HostTopology) -> Iterator[tuple[str, str, Tone]]:
    for held in topology.held or ():
        who = f"pod {held.pod}" if held.pod else f"ResourceClaim {held.claim}"
        yield held.device, visible(f"held by {who}" + (f" (VM {held.vm})" if held.vm else "")), "odd"
    for withheld in topology.withheld:
        yield withheld.device, visible(withheld.text), "bad" if withheld.state == "quarantined" else "odd"


def _holdings(topology: HostTopology) -> dict[str, Part]:
    """The badges of held and withheld devices; what is held is clean only after that."""
    badges = {each.device: part("badge", each.state, "odd") for each in topology.withheld}
    return badges | {each.device: part("badge", "held", "odd") for each in topology.held or ()}


def _goals(guest: TreeGuest | None) -> Iterator[tuple[str, str, Tone]]:
    if guest is not None:
        for function in guest.functions():
            yield function.source, f"\u2192 {request_label(function)}", "good"
        for absent in guest.stayed:
            yield str(absent.address), f"stays: {visible(absent.why)}", "odd"


def request_label(function: GuestFunction) -> str:
    """``gpu1``, ``gpu1, sibling``."""
    return visible(function.request) + ("" if function.role == "primary" else ", sibling")


def _blocker(blocker: Blocker, group: int | None) -> Item:
    """``0000:61:00.1``, ``LK204``, ``bound to snd_hda_intel, keeps IOMMU group 14 from guests``."""
    reason = visible(blocker.why) + ("" if group is None else f", keeps IOMMU group {group} from guests")
    return Item(
        "branch", (part("label", str(blocker.device)), part("badge", blocker.code, "bad"), part("detail", reason))
    )


def node_label(node: TreeNode) -> str:
    """``NUMA node 1``."""
    return "no NUMA node" if node.number is None else f"NUMA node {node.number}"


def _node(node: TreeNode, context: _Context) -> Item:
    parts = (part("label", node_label(node), "head"), *([part("detail", f"CPUs {node.cpus}")] if node.cpus else ()))
    return Item("node", parts, tuple(_complex(root, context) for root in node.complexes))


def _complex(root: RootComplex, context: _Context) -> Item:
    label = part("label", visible(root.name or "on a path that isn't known"))
    return Item("complex", (label,), tuple(_behind(root, context)))


def _behind(branch: RootComplex | TreeBridge, context: _Context) -> Iterator[Item]:
    yield from (_slot(slot, context) for slot in branch.slots)
    yield from (_bridge(bridge, context) for bridge in branch.bridges)


def _bridge(bridge: TreeBridge, context: _Context) -> Item:
    """A bridge that leads only to another bridge is one item with it."""
    labels = [part("label", f"{visible(bridge.address)} {bridge.kind}", "faint")]
    while len(bridge.bridges) == 1 and not bridge.slots:
        (bridge,) = bridge.bridges
        labels.append(part("label", f"> {visible(bridge.address)} {bridge.kind}", "faint"))
    return Item("branch", tuple(labels), tuple(_behind(bridge, context)))


def _slot(slot: TreeSlot, context: _Context) -> Item:
    items: list[Item] = []
    for number, neighbours in groupby(slot.functions, key=lambda function: function.group):
        functions = tuple(neighbours)
        inner = tuple(item for function in functions for item in _function(function, context))
        items += [_group(context.groups[number], inner)] if number in context.groups else inner
        items += (item for function in functions for item in _vfs_items(function, context, inside=False))
    link = next((_link(function.link, function.wider) for function in slot.functions if function.link), ())
    return Item("slot", (part("label", f"slot {slot.slot}"), *link), tuple(items))


def _link(link: PciLink | None, wider: int | None) -> tuple[Part, ...]:
    """``16 GT/s x8``; idle devices usually run below their own speed, but not with fewer lanes."""
    if link is None or link.width is None:
        return ()
    speed = f"{link_speed(link.speed)} " if link.speed else ""
    if link.speed and link.max_speed and link.speed < link.max_speed:
        speed = f"{link_speed(link.speed)} of {link_speed(link.max_speed)} "
    lanes = part("detail", f"PCIe {speed}x{link.width}")
    return (lanes,) if wider is None else (lanes, part("badge", f"could have x{wider}", "odd"))


def _group(group: TreeGroup, items: tuple[Item, ...]) -> Item:
    parts = [part("label", f"IOMMU group {group.number}", "head")]
    here = {item.label for item in items}
    elsewhere = [str(member) for member in group.members if str(member) not in here]
    if elsewhere:
        brief = f"with {', '.join(elsewhere[:3])}" + (f" and {len(elsewhere) - 3} more" if elsewhere[3:] else "")
        parts.append(part("detail", f"with {', '.join(elsewhere)}", "plain", brief))
    for blocker in group.blockers:
        parts.append(part("badge", f"{blocker.code} {blocker.device} is {visible(blocker.why)}", "bad"))
    return Item("group", tuple(parts), items)


def _function(function: TreeFunction, context: _Context) -> Iterator[Item]:
    """A function, the VFs in its IOMMU group, and its mediated devices."""
    address = str(function.address)
    gone = function.address in context.gone
    state = part("badge", "gone", "bad") if gone else _state(function.state, function.blockers)
    if address in context.held and not gone and function.state == "ready":
        state = context.held[address]  # who has it isn't somebody who could have it
    # Without a blocker, a text's state says of a function without a driver that it has none.
    brief = None if function.driver or function.blockers else ""
    parts = [part("label", address), state, part("driver", visible(function.driver or "no driver"), "plain", brief)]
    parts += [part("note", visible(blocker.why), "bad") for blocker in function.blockers if not blocker.whole]
    parts += [Part("note", context.marks[address])] if address in context.marks else []
    parts += [part("name", visible(function.name), "head")] if function.name else []
    parts += [part("detail", visible(function.kind)), part("detail", f"[{function.ids}]")]
    parts += [part("detail", f"BARs of {' + '.join(map(size, function.bars))}")] if function.bars else []
    yield Item("function", tuple(parts))
    yield from _vfs_items(function, context, inside=True)
    yield from (_mdevs(slots, context) for slots in function.mdevs)


def _state(state: ReadyState, blockers: Iterable[Blocker]) -> Part:
    """The codes of what is in the way, else one word."""
    if codes := dict.fromkeys(blocker.code for blocker in blockers):
        return part("badge", ",".join(codes), "bad")
    words: dict[ReadyState, str] = {"idle": "no driver", "parent": "shared", "unused": "no driver"}
    tones: dict[ReadyState, Tone] = {"ready": "good", "parent": "good", "idle": "odd"}
    return part("badge", words.get(state, state), tones.get(state, "plain"))


def _vfs_items(function: TreeFunction, context: _Context, *, inside: bool) -> Iterator[Item]:
    """The VFs in the IOMMU group of their physical function, or the others."""
    for vfs in function.vfs:
        if vfs.share(function.group) == inside:
            marks = _marks_below(map(str, vfs.addresses), context)
            yield Item("vfs", (*_vfs(vfs, function.possible_vfs), *marks))


def _vfs(vfs: VirtualFunctions, possible: int | None) -> Iterator[Part]:
    """Their number, state, driver, IDs, vGPU type and IOMMU groups, and the first address."""
    number = len(vfs.addresses)
    yield part("label", counted(number, "VF") if possible in (None, number) else f"{number} of {possible} VFs")
    state = _state(vfs.state, vfs.blockers)
    untyped = vfs.state == "idle" and vfs.driver
    yield part("badge", "no vGPU type", state.tone, "no vGPU type") if untyped else state
    yield part("detail", visible(vfs.driver or "no driver"))
    yield part("detail", f"[{vfs.ids}]")
    if vfs.type:
        yield part("detail", visible(vfs.type))
    if vfs.groups:
        groups = f"IOMMU {'group' if len(vfs.groups) == 1 else 'groups'} {format_cpuset(frozenset(vfs.groups))}"
        yield part("detail", groups)
    yield part("detail", f"from {vfs.addresses[0]} on" if number > 1 else str(vfs.addresses[0]))


def _mdevs(slots: MdevSlots, context: _Context) -> Item:
    """``GRID T4-1Q: 2 made, 14 more possible``."""
    more = "" if slots.possible is None else f", {slots.possible} more possible"
    label = part("label", f"{visible(slots.type)}: {len(slots.uuids)} made{more}")
    return Item("mdevs", (label, *_marks_below(slots.uuids, context)))


def _marks_below(names: Iterable[str], context: _Context) -> Iterator[Part]:
    """The marks of devices that share an item."""
    for name in names:
        if name in context.marks:
            yield Part("detail", ((f"{name} ", "plain"), *context.marks[name]))


def bridge_label(bridge: GuestBridge) -> str:
    """``root port 5``, ``expander 7, bus e0, NUMA cell 1``."""
    number = "" if not bridge.bus_number else f", bus {bridge.bus_number:02x}"
    cell = "" if bridge.cell is None else f", NUMA cell {bridge.cell}"
    return f"{visible(_BRIDGES.get(bridge.model, bridge.model))} {bridge.index}{number}{cell}"


def _guest_bridge(bridge: GuestBridge) -> Item:
    items = (*map(_guest_function, bridge.functions), *map(_guest_bridge, bridge.bridges))
    return Item("branch", (part("label", bridge_label(bridge), "faint"),), items)


def _guest_function(function: GuestFunction) -> Item:
    """Its address in the guest, its address on the host, and its request."""
    address = "not shown" if function.role == "reserved" else function.guest or "address left to libvirt"
    source, request = part("detail", f"\u2190 {function.source}"), part("detail", request_label(function), "good")
    return Item("guest", (part("label", address), source, request))


def _window(window: Window) -> Item:
    """How much of the guest's 64-bit window the BARs need, and what is written for it (P5)."""
    hole = f"<pcihole64> of {size(window.hole)}" if window.hole else ""
    bits = "<maxphysaddr mode='passthrough'>" if window.pass_bits else ""
    written = " and ".join(filter(None, (hole, bits))) or "nothing"
    label = part("label", f"64-bit window: the BARs need {size(window.need)}")
    return Item("guest", (label, part("detail", f"written for it: {written}")))
