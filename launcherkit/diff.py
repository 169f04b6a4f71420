"""Unified diffs of documents, and the nearest of several words."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


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


def did_you_mean(text: str, known: Iterable[str], prefix: str = "") -> str:
    """``; did you mean siblings?``, for the end of a sentence; nothing where no known word is near.

    Args:
        text: what was written.
        known: what could have been.
        prefix: what precedes all of them, and isn't compared.
    """
    near = difflib.get_close_matches(text[:60], sorted(known), n=1, cutoff=0.7)
    return f"; did you mean {prefix}{near[0]}?" if near else ""


def _lines(document: bytes) -> list[str]:
    """Lines as ``diff`` and ``patch`` know them: at line feeds alone."""
    *lines, last = document.decode("utf-8", "surrogateescape").split("\n")
    ended = [line + "\n" for line in lines]
    return [*ended, last + "\n\\ No newline at end of file\n"] if last else ended
