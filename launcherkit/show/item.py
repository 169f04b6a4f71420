"""The values of an outline: items, and the texts that they consist of. Every form of a picture is written from them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from launcherkit.colour import Tone

ItemKind: TypeAlias = Literal["node", "complex", "branch", "slot", "group", "function", "vfs", "mdevs", "guest"]
"""A NUMA node or a guest as a whole; a root complex; a bridge; and so on; ``guest`` is a function of the guest."""
PartRole: TypeAlias = Literal["label", "badge", "driver", "note", "name", "detail"]
"""A ``badge`` is a state or the code of an error; a ``note`` is about this VM or this moment."""
Spans: TypeAlias = tuple[tuple[str, Tone], ...]
"""Texts, each in one colour."""
NOTHING_FOR_GUESTS = "no GPUs, no accelerators, and no functions bound to a VFIO driver"
"""Instead of the NUMA nodes of a host, if there are none to be shown."""


@dataclass(frozen=True, slots=True)
class Part:
    """A text that is never broken."""

    role: PartRole
    spans: Spans
    brief: str | None = None
    """What a terminal shows in its place, without colour; empty: nothing."""

    @property
    def text(self) -> str:
        return "".join(text for text, _ in self.spans)

    @property
    def tone(self) -> Tone:
        return self.spans[0][1]


@dataclass(frozen=True, slots=True)
class Item:
    """One line of the outline, with the items below it."""

    kind: ItemKind
    parts: tuple[Part, ...]
    """In the order of a line of text."""
    items: tuple[Item, ...] = ()

    @property
    def label(self) -> str:
        return " ".join(self._texts("label"))

    @property
    def badge(self) -> str:
        return "; ".join(self._texts("badge"))

    @property
    def tone(self) -> Tone:
        """The badge's."""
        return next((part.tone for part in self.parts if part.role == "badge"), "plain")

    @property
    def name(self) -> str:
        """The names of vendor and device."""
        return " ".join(self._texts("name"))

    @property
    def details(self) -> tuple[str, ...]:
        """All other texts, what is noted first."""
        return (*self._texts("note"), *self._texts("driver", "detail"))

    def _texts(self, *roles: PartRole) -> list[str]:
        return [part.text for part in self.parts if part.role in roles]


@dataclass(frozen=True, slots=True)
class Outline:
    """A host, and a guest if a VM was given."""

    nodes: tuple[Item, ...]
    """The NUMA nodes."""
    blockers: tuple[Item, ...]
    """What is in the way of guests."""
    left_out: int
    """How many endpoints of the host are not shown."""
    guest: Item | None


def part(role: PartRole, text: str, tone: Tone = "plain", brief: str | None = None) -> Part:
    """A part with one text, in one colour."""
    return Part(role, ((text, tone),), brief)
