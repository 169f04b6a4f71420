"""Trees of text: lines with what precedes them, and where they may be broken."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from launcherkit.render.columns import width


@dataclass(frozen=True, slots=True)
class Line:
    """One line, as on an infinitely wide terminal."""

    parts: tuple[str, ...]
    """Texts that are never broken themselves."""
    rail: str = ""
    """The lines of the tree before the text."""
    below: str = ""
    """The same, for a continuation line."""

    def within(self, first: str, rest: str) -> Line:
        return Line(self.parts, first + self.rail, rest + self.below)


def broken(line: Line, across: int) -> Iterator[str]:
    """A line as the lines that it takes on a terminal of ``across`` columns."""
    text, started = line.rail, False
    for part in line.parts:
        gap = "  " if started else ""
        if started and width(text) + len(gap) + width(part.rstrip()) > across:
            yield text.rstrip()
            text, gap = f"{line.below}    ", ""
        text, started = text + gap + part, True
    yield text.rstrip()


def branched(children: Sequence[list[Line]]) -> Iterator[Line]:
    """The lines of all children of one point, each child's first line joined to the rail."""
    for position, child in enumerate(children):
        last = position == len(children) - 1
        first, rest = ("└─ ", "   ") if last else ("├─ ", "│  ")
        for number, line in enumerate(child):
            yield line.within(rest if number else first, rest)
