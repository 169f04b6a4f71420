"""Lines of text: columns, wrapped lists."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

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


def wrapped(text: str, indent: str) -> Iterator[str]:
    """A list separated by commas, wrapped between entries."""
    import textwrap

    yield from textwrap.wrap(
        text, _WIDTH, initial_indent=indent, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    ) or [indent + "nothing"]
