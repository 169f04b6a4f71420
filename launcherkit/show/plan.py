"""Describes a successful translation."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from launcherkit.choose.migration import migration_of_all
from launcherkit.colour import Colours
from launcherkit.errors import counted
from launcherkit.model.address import HostAddress
from launcherkit.model.host import HostFacts
from launcherkit.model.plan import Match, Plan, PlannedDevice, PlannedFunction, TouchedGroup
from launcherkit.pipeline import Translation
from launcherkit.show.evidence import Evidence, describe, driver_of, part_in_group
from launcherkit.show.layout import columns, visible, wrapped

_SHOWN_ABOVE = ("stayed", "left-alone")
"""Topics of notes that the explanation covers itself."""


def explain_plan(
    translation: Translation, evidence: Evidence, colours: Colours, *, groups: bool = True, picture: str = ""
) -> str:
    """Each request with its devices and their places; the groups, the nodes, what stays, and the notes.

    Args:
        translation: from the pipeline.
        evidence: the facts behind it.
        colours: ANSI colours or none.
        groups: whether the members of IOMMU groups are listed.
        picture: a drawing of host and guest; empty leaves it out.
    """
    plan = translation.plan
    lines = [_summary(translation, evidence), ""]
    shown: set[str] = set()
    for device in plan.devices:
        lines += [*_device(device, evidence, shown, colours), ""]
    for group in plan.groups if groups else ():
        lines += [*_group(group, translation, evidence, colours), ""]
    if picture:
        lines += [colours.head("PCI tree"), *picture.splitlines(), ""]
    lines += [*_needs(translation, evidence, colours), *_left(translation, evidence, colours)]
    lines += [
        f"{colours.odd('note')}: {visible(note.text)}" for note in translation.notes if note.topic not in _SHOWN_ABOVE
    ]
    return "\n".join(lines).rstrip("\n") + "\n"


def _summary(translation: Translation, evidence: Evidence) -> str:
    functions = _functions(translation)
    if not functions:
        asked = "The VMI asks for no device" if evidence.asked is not None else "There is nothing to attach"
        return f"{asked}; {visible(evidence.name)} stays as it is."
    present = sum(function.attachment.hostdev is not None for function in functions)
    done = [f"{len(functions) - present} added"] if len(functions) > present else []
    done += [f"{present} there already"] if present else []
    return (
        f"{visible(evidence.name)}: {counted(len(translation.plan.devices), 'device')}, "
        f"{counted(len(functions), 'hostdev')} ({', '.join(done)})"
    )


def _functions(translation: Translation) -> list[PlannedFunction]:
    return [function for device in translation.plan.devices for function in device.functions]


def _device(device: PlannedDevice, evidence: Evidence, shown: set[str], colours: Colours) -> Iterator[str]:
    match = device.primary.attachment.match
    yield colours.head(_title(match))
    if match is not None and match.variable is not None:
        yield from _answer(match.variable, evidence, shown)
    addresses = (
        *(function.source for function in device.functions),
        *(absent.address for absent in device.not_attached),
    )
    width = max(len(str(address)) for address in addresses)
    for function in device.functions:
        yield from _function(function, evidence, width, colours)
    for absent in device.not_attached:
        role = colours.odd(f"{'stays':7}")
        yield f"  {absent.address!s:{width}}  {role}  {describe(absent.address, evidence.facts, evidence.names)}"
        yield f"{_blank(width)}it is {absent.why}"


def _title(match: Match | None) -> str:
    if match is None:
        return "a device"
    if match.origin == "vmi":
        held = "what a DRA claim holds" if match.sriov is None else "the device of an SR-IOV network"
        return f"{match.section} {match.name!r} asks for {visible(match.resource or held)}"
    if match.origin == "environment":
        return f"{match.section} {match.name!r}, from the environment alone"
    return f"{match.section} {match.name!r}, a hostdev of the domain"


def _answer(variable: str, evidence: Evidence, shown: set[str]) -> Iterator[str]:
    """The variable that answers and, the first time, its content."""
    if variable in shown:
        yield f"  answered by {visible(variable)}, as above"
        return
    shown.add(variable)
    allocation = evidence.allocations.get(variable)
    entries = allocation.entries if allocation else ()
    yield f"  answered by {visible(variable)}, which holds"
    yield from wrapped(", ".join(map(str, entries)), "    ")


def _function(function: PlannedFunction, evidence: Evidence, width: int, colours: Colours) -> Iterator[str]:
    attachment = function.attachment
    role = colours.good(f"{attachment.role:8}")
    yield f"  {function.source!s:{width}}  {role} {describe(function.source, evidence.facts, evidence.names)}"
    blank = _blank(width)
    match = attachment.match
    if attachment.role == "sibling" and match is not None and match.origin == "vmi":
        yield f"{blank}attached: {_title(match)},"
        yield f"{blank}answered by {visible(match.variable or '')}"
    elif attachment.role != "primary":
        yield f"{blank}attached: {attachment.why}"
    where = "not shown to the guest" if attachment.role == "reserved" else "guest address left to libvirt"
    if function.guest is not None:
        where = f"guest {function.guest.address}" + (", multifunction" if function.guest.multifunction else "")
    parts = [where, *([f"alias {function.alias}"] if function.alias else [])]
    if function.shown is not None:
        parts += [f"{key} {value}" for key, value in function.shown._asdict().items() if value is not None]
    if attachment.hostdev is None:
        parts.append("added")
    else:
        here = "already" if attachment.replaces is None else f"for {attachment.replaces}, which it replaces"
        parts.append(f"in the domain {here}")
    yield blank + ", ".join(parts)


def _blank(width: int) -> str:
    """Spaces as wide as what precedes a function's description."""
    return " " * (width + 13)


def _group(group: TouchedGroup, translation: Translation, evidence: Evidence, colours: Colours) -> Iterator[str]:
    yield colours.head(f"IOMMU group {group.number}")
    rows = []
    for member in group.members:
        function = evidence.facts.functions.get(member.address)
        if function is not None:
            part = "goes to the guest" if member.attached else f"stays, {part_in_group(function, evidence.facts)}"
            rows.append((str(member.address), driver_of(function, evidence.facts, colours), part))
    for planned in _functions(translation):
        mdev = evidence.facts.mdevs.get(str(planned.source))
        if mdev is not None and mdev.iommu_group == group.number:
            rows.append((mdev.uuid, "mediated device", "goes to the guest"))
    yield from columns(rows)


def migrations(plan: Plan, facts: HostFacts) -> Iterable[tuple[str, str]]:
    """Whether the devices can migrate: for each answer a question that names its devices, and the answer."""
    answers: dict[str, list[str]] = {}
    for device in plan.devices:
        answer = migration_of_all([function.source for function in device.functions], facts)
        answers.setdefault(visible(str(answer)), []).append(str(device.primary.source))
    return [(f"can {', '.join(devices)} migrate?", answer) for answer, devices in answers.items()]


def _needs(translation: Translation, evidence: Evidence, colours: Colours) -> Iterator[str]:
    """What the domain and the container need for the devices (P2, V2), and whether these can migrate."""
    plan, present = translation.plan, evidence.facts.nodes
    if plan.root_ports:
        yield f"{colours.head('root ports')} added: pcie-root-port of index {', '.join(map(str, plan.root_ports))}"
    if plan.nodes:
        vfio = (node for node in plan.nodes if not node.startswith("/dev/bus/usb/"))
        missing = [node for node in vfio if present is not None and node not in present]
        lack = f"; not here: {', '.join(missing)}" if missing else ""
        yield f"{colours.head('QEMU opens')} {', '.join(plan.nodes)}{lack}"
    for question, answer in migrations(plan, evidence.facts):
        yield f"{colours.head(question)} {answer}"


def _left(translation: Translation, evidence: Evidence, colours: Colours) -> Iterator[str]:
    """Devices in the used variables that don't go to the guest (C4)."""
    attached: set[HostAddress] = set()
    variables: dict[str, None] = {}
    not_attached: set[HostAddress] = set()
    for device in translation.plan.devices:
        not_attached.update(entry.address for entry in device.not_attached)
        for function in device.functions:
            attached.add(function.source)
            match = function.attachment.match
            if match is not None and match.variable is not None:
                variables[match.variable] = None
    left = [entry for entry in _entries(variables, evidence) if entry not in attached and entry not in not_attached]
    if left:
        yield f"{colours.head('left alone')}: allocated, but neither asked for nor a sibling"
        yield from columns([(str(entry), describe(entry, evidence.facts, evidence.names)) for entry in left])


def _entries(variables: Iterable[str], evidence: Evidence) -> list[HostAddress]:
    lists = (evidence.allocations[variable].entries for variable in variables if variable in evidence.allocations)
    return list(dict.fromkeys(entry for entries in lists for entry in entries))
