"""The tree of a host on a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from launcherkit.colour import Ink
from launcherkit.model.function import PciLink
from launcherkit.model.readiness import Blocker, State
from launcherkit.render.columns import counted, padded, visible, width
from launcherkit.render.size import size
from launcherkit.topology.tree import (
    Bridge,
    Function,
    Group,
    MdevSlots,
    Node,
    RootComplex,
    Slot,
    Topology,
    VirtualFunctions,
)

_WORDS: Mapping[State, str] = {"idle": "no driver", "parent": "shared", "unused": "no driver"}
"""Where the state's own name isn't what people say."""


@dataclass(frozen=True, slots=True)
class _Line:
    """One line as it would be on an endless terminal."""

    parts: tuple[str, ...]
    """None of them is broken."""
    rail: str = ""
    """The lines of the tree before it."""
    below: str = ""
    """The same, for what of it goes on the next line."""

    def within(self, first: str, rest: str) -> _Line:
        return _Line(self.parts, first + self.rail, rest + self.below)


def draw(topology: Topology, ink: Ink, across: int) -> str:
    """The tree as text.

    Args:
        topology: of a host.
        ink: colours or none.
        across: columns of the terminal. A line that is longer goes on below itself, broken between its parts alone.
    """
    groups = {group.number: group for group in topology.groups}
    lines = [line for node in topology.nodes for line in _node(node, groups, ink)]
    if not lines:
        lines.append(_Line(("no GPU, no accelerator, and nothing that has a VFIO driver",)))
    if topology.left_out:
        several = counted(topology.left_out, "other function")
        lines.append(_Line((ink.faint(f"{several} not shown; --all shows {'it' if several[:2] == '1 ' else 'them'}"),)))
    return "".join(f"{text}\n" for line in lines for text in _broken(line, across))


def _broken(line: _Line, across: int) -> Iterator[str]:
    text, started = line.rail, False
    for part in line.parts:
        gap = "  " if started else ""
        if started and width(text) + len(gap) + width(part.rstrip()) > across:
            yield text.rstrip()
            text, gap = f"{line.below}    ", ""
        text, started = text + gap + part, True
    yield text.rstrip()


def _branched(children: Sequence[list[_Line]]) -> Iterator[_Line]:
    """What hangs below one point, each child's first line at the rail."""
    for position, child in enumerate(children):
        last = position == len(children) - 1
        first, rest = ("└─ ", "   ") if last else ("├─ ", "│  ")
        for number, line in enumerate(child):
            yield line.within(rest if number else first, rest)


def _node(node: Node, groups: Mapping[int, Group], ink: Ink) -> Iterator[_Line]:
    cpus = (f"CPUs {node.cpus}",) if node.cpus else ()
    yield _Line((ink.head("no NUMA node" if node.number is None else f"NUMA node {node.number}"), *cpus))
    yield from _branched([[*_complex(each, groups, ink)] for each in node.complexes])


def _complex(root: RootComplex, groups: Mapping[int, Group], ink: Ink) -> Iterator[_Line]:
    yield _Line((visible(root.name or "on a path that isn't known"),))
    yield from _behind(root, groups, ink)


def _behind(branch: RootComplex | Bridge, groups: Mapping[int, Group], ink: Ink) -> Iterator[_Line]:
    bridges = [[*_bridge(each, groups, ink)] for each in branch.bridges]
    slots = [[*_slot(each, groups, ink)] for each in branch.slots]
    yield from _branched([*slots, *bridges])


def _bridge(bridge: Bridge, groups: Mapping[int, Group], ink: Ink) -> Iterator[_Line]:
    """A bridge that leads to one other bridge alone stands on one line with that."""
    names = [f"{visible(bridge.address)} {bridge.kind}"]
    while len(bridge.bridges) == 1 and not bridge.slots:
        (bridge,) = bridge.bridges
        names.append(f"> {visible(bridge.address)} {bridge.kind}")
    yield _Line(tuple(ink.faint(name) for name in names))
    yield from _behind(bridge, groups, ink)


def _slot(slot: Slot, groups: Mapping[int, Group], ink: Ink) -> Iterator[_Line]:
    link = next((_link(each.link, each.wider, ink) for each in slot.functions if each.link), ())
    yield _Line((f"slot {slot.slot}", *link))
    heads = iter(_heads(slot.functions, ink))
    for number, functions in groupby(slot.functions, key=lambda each: each.group):
        them = list(functions)
        if number in groups:
            yield _Line(tuple(_group(groups[number], them, ink)), "┌ ", "│ ")
        rows = [line for each in them for line in _function(next(heads), each, ink)]
        for position, row in enumerate(rows):
            rail, below = ("", "") if number is None else ("│ ", "│ ") if position < len(rows) - 1 else ("└ ", "  ")
            yield row.within(rail, below)


def _group(group: Group, here: Iterable[Function], ink: Ink) -> Iterator[str]:
    own = {each.address for each in here}
    elsewhere = [str(member) for member in group.members if member not in own]
    yield ink.head(f"IOMMU group {group.number}")
    if elsewhere:
        yield f"with {', '.join(elsewhere[:3])}" + (f" and {len(elsewhere) - 3} more" if elsewhere[3:] else "")
    yield from (ink.bad(f"{each.code} {each.device} is {visible(each.why)}") for each in group.blockers)


def _heads(functions: Iterable[Function], ink: Ink) -> Iterator[list[str]]:
    """What is said of every function of a slot, lined up."""
    rows = []
    for each in functions:
        state, driver = _state(each.state, each.blockers, ink), visible(each.driver or "")
        rows.append((str(each.address), state, driver or ("no driver" if each.blockers else ""), visible(each.kind)))
    return ([cell for cell in cells if cell] for cells in padded(rows))


def _function(head: Iterable[str], function: Function, ink: Ink) -> Iterator[_Line]:
    parts = [
        *head,
        *([visible(function.name)] if function.name else []),
        f"[{function.ids}]",
    ]
    parts += [f"BARs of {' + '.join(map(size, function.bars))}"] if function.bars else []
    parts += [ink.bad(visible(each.why)) for each in function.blockers if not each.whole]
    yield _Line(tuple(parts))
    possible = function.possible_vfs
    for vfs in function.vfs:
        yield _Line(tuple(_vfs(vfs, possible, ink)), "  ", "  ")
    if function.mdevs:
        yield _Line(tuple(map(_mdevs, function.mdevs)), "  ", "  ")


def _state(state: State, blockers: Iterable[Blocker], ink: Ink) -> str:
    """One word: the code of what is in the way, else what it is."""
    codes = dict.fromkeys(blocker.code for blocker in blockers)
    if codes:
        return ink.bad(",".join(code or "no group" for code in codes))
    word = _WORDS.get(state, state)
    return ink.good(word) if state in ("ready", "parent") else ink.odd(word) if state == "idle" else word


def _vfs(vfs: VirtualFunctions, possible: int | None, ink: Ink) -> Iterator[str]:
    number = len(vfs.addresses)
    yield counted(number, "VF") if possible in (None, number) else f"{number} of {possible} VFs"
    yield "no vGPU type" if vfs.state == "idle" and vfs.driver else _state(vfs.state, vfs.blockers, ink)
    yield visible(vfs.driver or "no driver")
    yield f"[{vfs.ids}]"
    if vfs.type:
        yield visible(vfs.type)
    if vfs.groups:
        yield f"IOMMU {'group' if len(vfs.groups) == 1 else 'groups'} {_ranges(vfs.groups)}"
    yield f"from {vfs.addresses[0]} on" if len(vfs.addresses) > 1 else str(vfs.addresses[0])


def _ranges(numbers: Sequence[int]) -> str:
    from launcherkit.model.cpuset import format_cpuset

    return format_cpuset(frozenset(numbers))


def _mdevs(slots: MdevSlots) -> str:
    more = "" if slots.possible is None else f", {slots.possible} more possible"
    return f"{visible(slots.type)}: {len(slots.uuids)} made{more}"


def _link(link: PciLink | None, wider: int | None, ink: Ink) -> tuple[str, ...]:
    """``16 GT/s x8``; a speed below the device's own is usual while it is idle, fewer lanes are not."""
    if link is None or link.width is None:
        return ()
    speed = f"{_gigatransfers(link.speed)} " if link.speed else ""
    if link.speed and link.max_speed and link.speed < link.max_speed:
        speed = f"{_gigatransfers(link.speed)} of {_gigatransfers(link.max_speed)} "
    text = f"PCIe {speed}x{link.width}"
    return (text,) if wider is None else (text, ink.odd(f"could have x{wider}"))


def _gigatransfers(speed: int) -> str:
    return f"{speed / 1000:g} GT/s"
