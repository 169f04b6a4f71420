"""Shows what changed on a host: as a list, and in the tree of its present state."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from launcherkit.colour import Ink
from launcherkit.model.host import HostFacts
from launcherkit.render.columns import columns, visible
from launcherkit.render.host import topology_of
from launcherkit.render.topology import draw
from launcherkit.topology.changes import HostChange


def draw_changes(found: Sequence[HostChange], now: HostFacts, tables: Iterable[str], ink: Ink, across: int) -> str:
    """A line for each change, with the address and both values; below that, the tree of the slots with changes.

    Args:
        found: the changes; if there are none, the text is empty.
        now: the host's present state.
        tables: where ``pci.ids`` may be.
        ink: colours or none.
        across: columns for the picture.
    """
    if not found:
        return ""
    ordered = sorted(found, key=lambda each: each.subject)
    lines = [*columns([(visible(each.subject), ink.head(each.what), _how(each, ink)) for each in ordered], "")]
    subjects = {each.subject for each in found}
    slots = {address.slot for address in now.functions if str(address) in subjects}
    picture = ""
    if slots:
        only = {address for address in now.functions if address.slot in slots}
        told = {each: ink.odd(", ".join(_marks(ordered, each))) for each in subjects}
        picture = "\n" + draw(topology_of(now, tables, every=True, only=only), ink, across, told=told)
    return "".join(f"{line}\n" for line in lines) + picture


def _how(change: HostChange, ink: Ink) -> str:
    return " -> ".join(filter(None, (ink.bad(visible(change.before)), ink.good(visible(change.after)))))


def _marks(found: Iterable[HostChange], subject: str) -> Iterable[str]:
    """The marks of a function: ``new``, ``link was x16``, ``moved from 0000:02:00.0``."""
    for each in found:
        if each.subject == subject:
            was = {"new": "", "moved": f" from {each.before}"}.get(each.what, f" was {each.before}")
            yield visible(each.what + was)
