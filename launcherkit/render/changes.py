"""Shows what changed on a host: as a list, and in the tree of its present state, with what is gone where it was."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from launcherkit.colour import Colours
from launcherkit.model.address import PciAddress
from launcherkit.model.host import HostFacts
from launcherkit.render.columns import columns, visible
from launcherkit.render.host import topology_of
from launcherkit.render.topology import draw
from launcherkit.topology.changes import HostChange


def draw_changes(
    found: Sequence[HostChange], old: HostFacts, now: HostFacts, tables: Iterable[str], colours: Colours, across: int
) -> str:
    """A line for each change, with the address and both values; below that, the tree of the slots with changes.

    Args:
        found: the changes; if there are none, the text is empty.
        old, now: the host's earlier state, and its present one.
        tables: where ``pci.ids`` may be.
        colours: ANSI colours or none.
        across: columns for the picture.
    """
    if not found:
        return ""
    ordered = sorted(found, key=lambda each: each.subject)
    lines = [*columns([(visible(each.subject), colours.head(each.what), _how(each, colours)) for each in ordered], "")]
    lost = {each.subject for each in found if each.what == "gone"}
    gone = {address for address in old.functions if str(address) in lost and address not in now.functions}
    both = _with_gone(now, old, gone)
    subjects = {each.subject for each in found}
    slots = {address.slot for address in both.functions if str(address) in subjects}
    picture = ""
    if slots:
        only = {address for address in both.functions if address.slot in slots}
        marks = {each: ", ".join(_marks(ordered, each)) for each in subjects - set(map(str, gone))}
        further = {each: colours.odd(mark) for each, mark in marks.items()}
        picture = "\n" + draw(
            topology_of(both, tables, every=True, only=only), colours, across, marks=further, gone=gone
        )
    return "".join(f"{line}\n" for line in lines) + picture


def _with_gone(now: HostFacts, old: HostFacts, gone: Iterable[PciAddress]) -> HostFacts:
    """The host with functions that it no longer has; nothing holds them, and they keep no group from guests."""
    functions = {each: old.functions[each]._replace(driver=None, iommu_group=None) for each in gone}
    details = {each: old.details[each] for each in gone if each in old.details}
    return now._replace(functions={**now.functions, **functions}, details={**now.details, **details})


def _how(change: HostChange, colours: Colours) -> str:
    return " -> ".join(filter(None, (colours.bad(visible(change.before)), colours.good(visible(change.after)))))


def _marks(found: Iterable[HostChange], subject: str) -> Iterable[str]:
    """The marks of a function: ``new``, ``link was x16``, ``moved from 0000:02:00.0``; ``was 10de:2204 class 0300`` if
    another one had its address.
    """
    for each in found:
        if each.subject == subject:
            texts = {"new": "new", "moved": f"moved from {each.before}", "gone": f"was {each.before}"}
            yield visible(texts.get(each.what, f"{each.what} was {each.before}"))
