"""Unified diffs of documents."""

from __future__ import annotations

import difflib


def unified_diff(before: bytes, after: bytes, name: str, renamed: str | None = None) -> bytes:
    """A unified diff with three lines of context; empty where nothing differs.

    Args:
        before: the one document.
        after: the other.
        name: what the header calls it.
        renamed: what it calls the other; ``name`` without.
    """
    lines = difflib.unified_diff(
        _lines(before), _lines(after), fromfile=name, tofile=f"{name} (translated)" if renamed is None else renamed
    )
    return "".join(lines).encode("utf-8", "surrogateescape")


def _lines(document: bytes) -> list[str]:
    """Lines as ``diff`` and ``patch`` know them: at line feeds alone."""
    *lines, last = document.decode("utf-8", "surrogateescape").split("\n")
    ended = [line + "\n" for line in lines]
    return [*ended, last + "\n\\ No newline at end of file\n"] if last else ended
