"""Draws a rehearsal for a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from launcherkit.colour import Colours
from launcherkit.errors import counted, on_one_line
from launcherkit.host.pci_ids import find_names
from launcherkit.model.address import PciAddress
from launcherkit.model.candidate import PromisedDevice
from launcherkit.model.host import class_name
from launcherkit.model.plan import PlannedFunction
from launcherkit.rehearse.rehearsal import NodeOutcome
from launcherkit.show.guest import guest_of
from launcherkit.show.layout import Line, broken, size, visible
from launcherkit.show.outline import guest_item
from launcherkit.show.plan import migrations
from launcherkit.show.text import guest_lines

_CHOICE = {"all": "no other is free", "preferred": "preferred among those that are free"}


def draw_rehearsal(
    name: str, outcomes: Sequence[NodeOutcome], colours: Colours, across: int, *, whole: bool, tables: Iterable[str]
) -> str:
    """Each node with the VM's devices there, or why it would not start; one line for each error, remedy and note.

    Args:
        name: the VM's.
        outcomes: one for each node.
        colours: ANSI colours or none.
        across: columns at which the lines of devices and of the guest's tree are broken.
        whole: whether to show what the guest finds and what to do about errors, too.
        tables: where ``pci.ids`` may be.
    """
    started = sum(outcome.starts for outcome in outcomes)
    lines = [colours.head(f"{visible(name)} starts on {started} of {counted(len(outcomes), 'node')}")]
    for outcome in outcomes:
        lines += [
            "",
            f"{colours.head(visible(outcome.node))}  " + (colours.good("yes") if outcome.starts else colours.bad("no")),
        ]
        lines += _node(outcome, colours, across, whole=whole)
        if whole and outcome.starts:
            lines += ["", *_guest(name, outcome, colours, across, tuple(tables))]
    codes = dict.fromkeys(error.code for outcome in outcomes for error in outcome.errors)
    if codes:
        lines += ["", *([] if whole else ["--node NAME says what to do."])]
        lines += [f"`launcherkit explain {code}` says more." for code in codes]
    return "\n".join(lines) + "\n"


def _node(outcome: NodeOutcome, colours: Colours, across: int, *, whole: bool) -> Iterator[str]:
    for device in outcome.allocation.devices if outcome.allocation else ():
        yield from broken(_device(device), across)
    for error in outcome.errors:
        yield f"  {colours.bad(error.code)}  {visible(error.message)}"
        if whole:
            yield f"  help   {visible(on_one_line(error.remedy))}"
    for note in outcome.translation.notes if outcome.translation else ():
        yield f"  {colours.odd('note')}  {visible(note.text)}"
    if outcome.translation and outcome.allocation:
        for texts in migrations(outcome.translation.plan, outcome.allocation.facts):
            yield from broken(Line(texts, "  ", "  "), across)
    for match in outcome.problems:
        yield f"  {colours.odd('known problem')}  {match.problem.id}: {match.text}"
        if whole:
            yield f"  help   {match.problem.remedy}"


def _device(device: PromisedDevice) -> Line:
    parts = [device.resource, device.id]
    if device.functions[1:]:
        parts.append(f"with {', '.join(device.functions[1:])}")
    if device.groups:
        parts.append(("group " if len(device.groups) == 1 else "groups ") + ", ".join(map(str, device.groups)))
    parts.append("no NUMA node" if device.numa_node is None else f"NUMA node {device.numa_node}")
    return Line((*map(visible, parts), _CHOICE[device.choice]), "  ", "  ")


def _guest(name: str, outcome: NodeOutcome, colours: Colours, across: int, tables: tuple[str, ...]) -> Iterator[str]:
    assert outcome.translation is not None
    assert outcome.tree is not None
    plan = outcome.translation.plan
    for line in guest_lines(guest_item(guest_of(name, plan, outcome.tree)), colours):
        yield from broken(line.within("  ", "  "), across)
    shown = [each for device in plan.devices for each in device.functions if each.attachment.role != "reserved"]
    if shown:
        yield f"  {colours.head('lspci')}, with the buses as libvirt counts them"
        for line in _lspci(shown, outcome, tables):
            yield from broken(line, across)
    if outcome.bars and plan.window is None:
        yield f"  {colours.head('64-bit window')}: the BARs need {size(outcome.bars)}; the machine has room for that"


def _lspci(shown: Sequence[PlannedFunction], outcome: NodeOutcome, tables: tuple[str, ...]) -> Iterator[Line]:
    facts = outcome.allocation.facts if outcome.allocation else None
    functions = {
        planned.source: facts.functions[planned.source]
        for planned in shown
        if facts is not None and isinstance(planned.source, PciAddress) and planned.source in facts.functions
    }
    names = find_names(functions.values(), tables)
    for planned in shown:
        where = "??:??.?" if planned.guest is None else str(planned.guest.address).partition(":")[2]
        function = functions.get(planned.source) if isinstance(planned.source, PciAddress) else None
        if function is None:
            yield Line((where, "mediated device", str(planned.source)), "    ", "    ")
            continue
        kind = names.class_(function) or class_name(function)
        yield Line(
            (where, kind, visible(" ".join(filter(None, (names.device(function), f"[{function.ids}]"))))),
            "    ",
            "    ",
        )
