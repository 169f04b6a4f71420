"""What changed on a host, a line each."""

from __future__ import annotations

from collections.abc import Sequence

from launcherkit.colour import Ink
from launcherkit.render.columns import columns, visible
from launcherkit.topology.changes import HostChange


def draw_changes(found: Sequence[HostChange], ink: Ink) -> str:
    """The address, what is different, and how it was and is; nothing where nothing changed."""
    if not found:
        return ""
    rows = [
        (
            visible(each.subject),
            ink.head(each.what),
            " -> ".join(filter(None, (ink.bad(visible(each.before)), ink.good(visible(each.after))))),
        )
        for each in sorted(found, key=lambda each: each.subject)
    ]
    return "".join(f"{line}\n" for line in columns(rows, ""))
