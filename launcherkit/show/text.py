"""Draws the tree of a host for a terminal."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, zip_longest
from types import MappingProxyType

from launcherkit.colour import Colours
from launcherkit.errors import counted
from launcherkit.model.address import PciAddress
from launcherkit.show.guest_text import guest_lines
from launcherkit.show.layout import Line, branched, broken, padded, size, visible, width
from launcherkit.show.marks import marks_of
from launcherkit.show.texts import blocker_texts, link_texts, mdevs_text, state_text, vfs_texts
from launcherkit.show.topology import HostTopology, RootComplex, TreeBridge, TreeFunction, TreeGroup, TreeNode, TreeSlot


@dataclass(frozen=True, slots=True)
class _Pen:
    """What drawing every part of the tree takes."""

    colours: Colours
    groups: Mapping[int, TreeGroup]
    marks: Mapping[str, str]
    """Marks on functions and mediated devices, by address or UUID."""
    gone: Collection[PciAddress]
    """Functions that the host no longer has."""


_HOST_COLUMNS = 72
"""Columns for the host if the guest is beside it."""
_GAP = 3
_MAX_BLOCKERS = 10


def draw(
    topology: HostTopology,
    colours: Colours,
    across: int,
    refused: Sequence[Line] = (),
    marks: Mapping[str, str] = MappingProxyType({}),
    gone: Collection[PciAddress] = (),
) -> str:
    """The tree as text, with the guest beside it if there is room, else below it.

    Args:
        topology: the host's.
        colours: ANSI colours or none.
        across: columns of the terminal; longer lines are broken between their parts.
        refused: the lines for a guest that can't have its devices, in place of the topology's guest.
        marks: further marks on functions and mediated devices, by address or UUID.
        gone: functions of the topology that the host no longer has.
    """
    guest = refused or ([] if topology.guest is None else [*guest_lines(topology.guest, colours)])
    groups = {group.number: group for group in topology.groups}
    pen = _Pen(colours, groups, {**marks_of(topology, colours), **marks}, gone)
    host = _host(topology, pen, alone=not guest)
    right = [text for line in guest for text in broken(line, across)]
    room = across - _GAP - max(map(width, right), default=0)
    if host and right and room >= _HOST_COLUMNS:
        left = [text for line in host for text in broken(line, room)]
        wide = max(map(width, left)) + _GAP
        both = zip_longest(left, right, fillvalue="")
        texts = [f"{one}{' ' * (wide - width(one))}{other}".rstrip() for one, other in both]
    else:
        texts = [text for line in host for text in broken(line, across)]
        texts += [*([""] if host and right else []), *right]
    return "".join(f"{text}\n" for text in texts)


def _host(topology: HostTopology, pen: _Pen, *, alone: bool) -> list[Line]:
    lines = [line for node in topology.nodes for line in _node(node, pen)]
    if not lines and alone:
        lines.append(Line(("no GPUs, no accelerators, and no functions bound to a VFIO driver",)))
    lines += _in_the_way(topology, pen.colours)
    if topology.left_out:
        several = counted(topology.left_out, "other function")
        lines.append(
            Line((pen.colours.faint(f"{several} not shown; --all shows {'it' if several[:2] == '1 ' else 'them'}"),))
        )
    return lines


def _in_the_way(topology: HostTopology, colours: Colours) -> Iterator[Line]:
    """What is in the way; at the end, because that is what a terminal shows of a large host."""
    found = [blocker_texts(*each) for each in topology.in_the_way()]
    for device, code, why in found[:_MAX_BLOCKERS]:
        yield Line(("in the way:", device, colours.bad(code), why))
    if found[_MAX_BLOCKERS:]:
        yield Line((f"and {len(found) - _MAX_BLOCKERS} more",))


def _node(node: TreeNode, pen: _Pen) -> Iterator[Line]:
    cpus = (f"CPUs {node.cpus}",) if node.cpus else ()
    yield Line((pen.colours.head("no NUMA node" if node.number is None else f"NUMA node {node.number}"), *cpus))
    yield from branched([[*_complex(each, pen)] for each in node.complexes])


def _complex(root: RootComplex, pen: _Pen) -> Iterator[Line]:
    yield Line((visible(root.name or "on a path that isn't known"),))
    yield from _behind(root, pen)


def _behind(branch: RootComplex | TreeBridge, pen: _Pen) -> Iterator[Line]:
    bridges = [[*_bridge(each, pen)] for each in branch.bridges]
    slots = [[*_slot(each, pen)] for each in branch.slots]
    yield from branched([*slots, *bridges])


def _bridge(bridge: TreeBridge, pen: _Pen) -> Iterator[Line]:
    """A bridge that leads only to another bridge is on one line with it."""
    names = [f"{visible(bridge.address)} {bridge.kind}"]
    while len(bridge.bridges) == 1 and not bridge.slots:
        (bridge,) = bridge.bridges
        names.append(f"> {visible(bridge.address)} {bridge.kind}")
    yield Line(tuple(pen.colours.faint(name) for name in names))
    yield from _behind(bridge, pen)


def _slot(slot: TreeSlot, pen: _Pen) -> Iterator[Line]:
    link = next((link_texts(each.link, each.wider, pen.colours) for each in slot.functions if each.link), ())
    yield Line((f"slot {slot.slot}", *link))
    heads = iter(_heads(slot.functions, pen))
    for number, functions in groupby(slot.functions, key=lambda each: each.group):
        them = list(functions)
        if number in pen.groups:
            yield Line(tuple(_group(pen.groups[number], them, pen.colours)), "┌ ", "│ ")
        rows = [line for each in them for line in _function(next(heads), each, pen)]
        for position, row in enumerate(rows):
            rail, below = ("", "") if number is None else ("│ ", "│ ") if position < len(rows) - 1 else ("└ ", "  ")
            yield row.within(rail, below)
        yield from (line for each in them for line in _vfs(each, pen, inside=False))


def _group(group: TreeGroup, here: Iterable[TreeFunction], colours: Colours) -> Iterator[str]:
    own = {each.address for each in here}
    elsewhere = [str(member) for member in group.members if member not in own]
    yield colours.head(f"IOMMU group {group.number}")
    if elsewhere:
        yield f"with {', '.join(elsewhere[:3])}" + (f" and {len(elsewhere) - 3} more" if elsewhere[3:] else "")
    yield from (colours.bad(f"{each.code} {each.device} is {visible(each.why)}") for each in group.blockers)


def _heads(functions: Iterable[TreeFunction], pen: _Pen) -> Iterator[list[str]]:
    """The aligned first columns of a slot's functions."""
    rows = []
    for each in functions:
        gone = each.address in pen.gone
        state = pen.colours.bad("gone") if gone else state_text(each.state, each.blockers, pen.colours)
        driver = visible(each.driver or "")
        rows.append((str(each.address), state, driver or ("no driver" if each.blockers else "")))
    return ([cell for cell in cells if cell] for cells in padded(rows))


def _function(head: Iterable[str], function: TreeFunction, pen: _Pen) -> Iterator[Line]:
    parts = [*head, *(pen.colours.bad(visible(each.why)) for each in function.blockers if not each.whole)]
    parts += [pen.marks[str(function.address)]] if str(function.address) in pen.marks else []
    parts += [
        *([pen.colours.head(visible(function.name))] if function.name else []),
        visible(function.kind),
        f"[{function.ids}]",
    ]
    parts += [f"BARs of {' + '.join(map(size, function.bars))}"] if function.bars else []
    yield Line(tuple(parts))
    yield from _vfs(function, pen, inside=True)
    if function.mdevs:
        uuids = (uuid for slots in function.mdevs for uuid in slots.uuids)
        yield Line((*map(mdevs_text, function.mdevs), *_marked(uuids, pen)), "  ", "  ")


def _vfs(function: TreeFunction, pen: _Pen, *, inside: bool) -> Iterator[Line]:
    """The VFs in the IOMMU group of their physical function, or the others, which are drawn below its bracket."""
    margin = "  " if inside or function.group is None else "    "
    for vfs in function.vfs:
        if vfs.share(function.group) == inside:
            texts = vfs_texts(vfs, function.possible_vfs, pen.colours)
            yield Line((*texts, *_marked(map(str, vfs.addresses), pen)), margin, margin)


def _marked(names: Iterable[str], pen: _Pen) -> Iterator[str]:
    """The marks of devices that share a line."""
    yield from (f"{name} {pen.marks[name]}" for name in names if name in pen.marks)
