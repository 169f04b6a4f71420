"""Text for people: what may be printed, columns, sizes, and lines of trees that can be broken."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from launcherkit.colour import unmarked

_WIDTH = 110


def columns(rows: Sequence[Sequence[str]], indent: str = "  ") -> Iterator[str]:
    """Rows with aligned columns, two spaces apart; colours have no width."""
    for cells in padded(rows):
        yield (indent + "  ".join(cells)).rstrip()


def padded(rows: Sequence[Sequence[str]]) -> Iterator[list[str]]:
    """The cells of each row, padded with spaces to the width of their column."""
    widths = [max(map(width, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield [cell + " " * (wide - width(cell)) for cell, wide in zip(row, widths, strict=True)]


def width(cell: str) -> int:
    """Columns that a text takes on a terminal; colours have no width."""
    return len(unmarked(cell))


def visible(text: str) -> str:
    """Untrusted text with terminal controls escaped: ``\\x1b``."""
    return text if text.isprintable() else "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def short_address(address: object) -> str:
    """An address without its domain, if that is 0000, as lspci prints it."""
    return str(address).removeprefix("0000:")


def wrapped(text: str, indent: str) -> Iterator[str]:
    """A list separated by commas, wrapped between entries."""
    import textwrap

    yield from textwrap.wrap(
        text, _WIDTH, initial_indent=indent, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    ) or [indent + "nothing"]


_UNITS = ("bytes", "KiB", "MiB", "GiB", "TiB", "PiB")


def size(number: int) -> str:
    """``8 MiB``, ``17.5 GiB``: a number of bytes in the largest unit that fits, with a decimal unless it is whole."""
    value, unit = float(number), 0
    while value >= 1024 and unit < len(_UNITS) - 1:
        value, unit = value / 1024, unit + 1
    return f"{value:.0f} {_UNITS[unit]}" if value == int(value) else f"{value:.1f} {_UNITS[unit]}"


def link_speed(speed: int) -> str:
    """``16 GT/s``: the speed of a PCIe link, given in MT/s per lane."""
    return f"{speed / 1000:g} GT/s"


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
