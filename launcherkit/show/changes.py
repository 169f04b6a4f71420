"""What changed on a host between two readings: found, and shown as a list and in the tree of its present state."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from launcherkit.colour import Colours
from launcherkit.model.address import PciAddress
from launcherkit.model.host import HostFacts, PciDetail, PciFunction
from launcherkit.show.host import bar_sizes, topology_of
from launcherkit.show.item import Spans
from launcherkit.show.layout import columns, visible
from launcherkit.show.outline import outline
from launcherkit.show.text import draw

Moves = Mapping[PciAddress, PciAddress]
"""The old and the new address of each function that is on both."""


@dataclass(frozen=True, slots=True)
class HostChange:
    """One difference."""

    kind: str
    """``gone``, ``new``, ``moved``, ``driver``, ``group``, ``link`` and so on."""
    subject: str
    """The function's present address, or its old one if it is gone."""
    before: str
    after: str


def changes(old: HostFacts, new: HostFacts) -> tuple[HostChange, ...]:
    """All differences, function by function.

    Whatever differs between boots anyway is left out: numbers of groups, addresses of BARs, speeds of idle links.

    If one function is gone, and another with the same model and function number is new, it has moved.
    """
    moves = _moves(old, new)
    here = set(moves.values())
    differences = [HostChange("gone", str(each), _ids(old.functions[each]), "") for each in _own(old, moves)]
    differences += [HostChange("new", str(each), "", _ids(new.functions[each])) for each in _own(new, here)]
    for was, now in moves.items():
        differences += [HostChange("moved", str(now), str(was), str(now))] if was != now else []
        differences += _function_changes(now, _values(was, old), _values(now, new))
    differences += _group_changes(old, new, moves)
    mdevs = {uuid: mdev.type_name or mdev.type_id for uuid, mdev in old.mdevs.items()}
    made = {uuid: mdev.type_name or mdev.type_id for uuid, mdev in new.mdevs.items()}
    differences += [HostChange("gone", uuid, mdevs[uuid], "") for uuid in sorted(mdevs.keys() - made.keys())]
    differences += [HostChange("new", uuid, "", made[uuid]) for uuid in sorted(made.keys() - mdevs.keys())]
    return tuple(differences)


def _ids(function: PciFunction) -> str:
    return f"{function.ids} class {function.class_code >> 8:04x}"


def _own(facts: HostFacts, shared: Iterable[PciAddress]) -> list[PciAddress]:
    """The functions that the other host lacks, without VFs, whose number is compared on their physical function."""
    others = set(shared)
    functions = facts.functions
    return sorted(
        address
        for address, function in functions.items()
        if address not in others and (function.physfn is None or function.physfn not in functions)
    )


def _moves(old: HostFacts, new: HostFacts) -> Moves:
    same = {
        address: address
        for address in sorted(old.functions)
        if _is_same(old.functions[address], new.functions, address)
    }
    left = _by_model(old, same)
    arrived = _by_model(new, same)
    moved = {
        was: now
        for model, addresses in left.items()
        for was, now in zip(addresses, arrived.get(model, ()), strict=False)
    }
    return dict(sorted((same | moved).items()))


def _is_same(function: PciFunction, others: Mapping[PciAddress, PciFunction], address: PciAddress) -> bool:
    other = others.get(address)
    return other is not None and _model(other) == _model(function)


def _model(function: PciFunction) -> tuple[object, ...]:
    subsystem = (function.subsystem_vendor, function.subsystem_device)
    return (*function.model, *subsystem, function.class_code, function.is_vf or function.address.function)


def _by_model(facts: HostFacts, without: Iterable[PciAddress]) -> Mapping[tuple[object, ...], list[PciAddress]]:
    left_out, addresses = set(without), dict[tuple[object, ...], list[PciAddress]]()
    for address in sorted(facts.functions):
        function = facts.functions[address]
        if address not in left_out and not function.is_vf:
            addresses.setdefault(_model(function), []).append(address)
    return addresses


def _values(address: PciAddress, facts: HostFacts) -> Mapping[str, str]:
    """The compared properties of a function, in words."""
    function, detail = facts.functions[address], facts.details.get(address)
    values = {
        "driver": function.driver or "none",
        "NUMA node": "none" if function.numa_node is None else str(function.numa_node),
        "IOMMU group": "none" if function.iommu_group is None else "one",
    }
    return values if detail is None else values | _detail_values(detail)


def _detail_values(detail: PciDetail) -> dict[str, str]:
    values = {"config space": "readable" if detail.config_readable else "all ones: fallen off the bus"}
    if detail.link is not None and detail.link.width is not None:
        values["link"] = f"x{detail.link.width}"
    if detail.sriov_numvfs is not None:
        values["VFs"] = str(detail.sriov_numvfs)
    if sizes := bar_sizes(detail):
        values["BARs"] = " + ".join(f"{each >> 20} MiB" if each >> 20 else f"{each} bytes" for each in sizes)
    values["power"] = "D3cold" if detail.power_state == "D3cold" else "on"
    if detail.vgpu is not None:
        values["vGPU type"] = str(detail.vgpu.current_type or "none")
    return values


def _function_changes(now: PciAddress, before: Mapping[str, str], after: Mapping[str, str]) -> Iterator[HostChange]:
    """Changes of properties that both readings have; a property that only one has counts as unchanged."""
    for name, value in before.items():
        if name in after and after[name] != value:
            yield HostChange(name, str(now), value, after[name])


def _group_changes(old: HostFacts, new: HostFacts, moves: Moves) -> Iterator[HostChange]:
    """Groups whose members were separated or joined, by present addresses."""
    before = {now: old.functions[was].iommu_group for was, now in moves.items()}
    after = {now: new.functions[now].iommu_group for now in moves.values()}
    kept = [now for now in before if before[now] is not None and after[now] is not None]
    for event, ones, others in (("split", before, after), ("joined", after, before)):
        members: dict[int | None, list[PciAddress]] = {}
        for now in kept:
            members.setdefault(ones[now], []).append(now)
        for together in members.values():
            parts: dict[int | None, list[str]] = {}
            for now in together:
                parts.setdefault(others[now], []).append(str(now))
            if len(parts) > 1:
                whole, apart = ", ".join(map(str, together)), " | ".join(", ".join(part) for part in parts.values())
                texts = (whole, apart) if event == "split" else (apart, whole)
                yield HostChange(f"group {event}", str(together[0]), *texts)


def draw_changes(
    differences: Sequence[HostChange],
    old: HostFacts,
    now: HostFacts,
    tables: Iterable[str],
    colours: Colours,
    across: int,
) -> str:
    """A line for each change, with the address and both values; below that, the tree of the slots with changes.

    Args:
        differences: from `changes`; if there are none, the text is empty.
        old, now: the host's earlier state, and its present one.
        tables: where ``pci.ids`` may be.
        colours: ANSI colours or none.
        across: columns for the picture.
    """
    if not differences:
        return ""
    ordered = sorted(differences, key=lambda difference: difference.subject)
    rows = [(visible(each.subject), colours.head(each.kind), _values_text(each, colours)) for each in ordered]
    lost = {each.subject for each in differences if each.kind == "gone"}
    gone = {address for address in old.functions if str(address) in lost and address not in now.functions}
    picture = _picture(ordered, _with_gone(now, old, gone), gone, tables, colours, across)
    return "".join(f"{line}\n" for line in columns(rows, "")) + picture


def _picture(
    differences: Sequence[HostChange],
    facts: HostFacts,
    gone: Collection[PciAddress],
    tables: Iterable[str],
    colours: Colours,
    across: int,
) -> str:
    """The tree of the slots with changes, below an empty line; nothing if only mediated devices have changed.

    Args:
        differences: between the two readings.
        facts: the host's, with what is gone.
        gone: functions that the host no longer has.
        tables, colours, across: as for `draw_changes`.
    """
    subjects = {each.subject for each in differences}
    slots = {address.slot for address in facts.functions if str(address) in subjects}
    if not slots:
        return ""
    only = {address for address in facts.functions if address.slot in slots}
    marked = subjects - set(map(str, gone))
    marks: dict[str, Spans] = {each: ((", ".join(_marks(differences, each)), "odd"),) for each in marked}
    topology = topology_of(facts, tables, every=True, only=only)
    return "\n" + draw(outline(topology, marks, gone), colours, across)


def _with_gone(now: HostFacts, old: HostFacts, gone: Iterable[PciAddress]) -> HostFacts:
    """The host with functions that it no longer has; nothing holds them, and they keep no group from guests."""
    functions = {each: old.functions[each]._replace(driver=None, iommu_group=None) for each in gone}
    details = {each: old.details[each] for each in gone if each in old.details}
    return now._replace(functions={**now.functions, **functions}, details={**now.details, **details})


def _values_text(change: HostChange, colours: Colours) -> str:
    return " -> ".join(filter(None, (colours.bad(visible(change.before)), colours.good(visible(change.after)))))


def _marks(differences: Iterable[HostChange], subject: str) -> Iterable[str]:
    """The marks of a function: ``new``, ``link was x16``, ``moved from 0000:02:00.0``; ``was 10de:2204 class 0300`` if
    another one had its address.
    """
    for change in differences:
        if change.subject == subject:
            texts = {"new": "new", "moved": f"moved from {change.before}", "gone": f"was {change.before}"}
            yield visible(texts.get(change.kind, f"{change.kind} was {change.before}"))
