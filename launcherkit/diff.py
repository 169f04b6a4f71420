"""Unified diffs of documents, and the nearest of several words."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def unified_diff(before: bytes, after: bytes, name: str, renamed: str | None = None) -> bytes:
    """A unified diff with three lines of context; empty if nothing differs.

    Args:
        before: the first document.
        after: the second.
        name: the first one's name in the header.
        renamed: the second one's name in the header; ``<name> (translated)`` if not given.
    """
    lines = difflib.unified_diff(
        _lines(before), _lines(after), fromfile=name, tofile=f"{name} (translated)" if renamed is None else renamed
    )
    return "".join(lines).encode("utf-8", "surrogateescape")


def did_you_mean(text: str, words: Iterable[str], prefix: str = "") -> str:
    """``; did you mean siblings?``, for the end of a sentence; nothing if no known word is near.

    Args:
        text: what was written.
        words: what could have been.
        prefix: what precedes all of them, and isn't compared.
    """
    near = difflib.get_close_matches(text[:60], sorted(words), n=1, cutoff=0.7)
    return f"; did you mean {prefix}{near[0]}?" if near else ""


def _lines(document: bytes) -> list[str]:
    """Lines as ``diff`` and ``patch`` define them: only line feeds separate them."""
    *lines, last = document.decode("utf-8", "surrogateescape").split("\n")
    ended = [line + "\n" for line in lines]
    return [*ended, last + "\n\\ No newline at end of file\n"] if last else ended
