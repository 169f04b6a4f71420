"""Lines of text: columns, wrapped lists, counts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from launcherkit.colour import unmarked

_WIDTH = 110


def columns(rows: Sequence[Sequence[str]], indent: str = "  ") -> Iterator[str]:
    """Rows with their columns lined up, two blanks between them; colours count for no width."""
    for cells in padded(rows):
        yield (indent + "  ".join(cells)).rstrip()


def padded(rows: Sequence[Sequence[str]]) -> Iterator[list[str]]:
    """The cells of each row, blanks behind them, so that those of a column are equally wide."""
    widths = [max(map(width, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield [cell + " " * (wide - width(cell)) for cell, wide in zip(row, widths, strict=True)]


def width(cell: str) -> int:
    """Columns that a text takes on a terminal; colours count for none."""
    return len(unmarked(cell))


def visible(text: str) -> str:
    """Text of unknown origin with what would steer a terminal written out: ``\\x1b``."""
    return text if text.isprintable() else "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def wrapped(text: str, indent: str) -> Iterator[str]:
    """A list with commas, broken between its entries."""
    import textwrap

    yield from textwrap.wrap(
        text, _WIDTH, initial_indent=indent, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    ) or [indent + "nothing"]


def counted(number: int, noun: str) -> str:
    """``1 device``, ``2 devices``."""
    return f"{number} {noun}" + ("" if number == 1 else "s")
