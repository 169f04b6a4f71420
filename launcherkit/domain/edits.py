"""Edits of a document's bytes; all other bytes stay as they are (X4)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from launcherkit.domain.style import Style
from launcherkit.domain.tags import Span


class Edit(NamedTuple):
    """Replace the bytes from start to end."""

    start: int
    end: int
    text: bytes


def apply_edits(data: bytes, edits: Iterable[Edit]) -> bytes:
    """The data with the edits applied. Edits must not overlap; those at one place are applied in the given order."""
    parts: list[bytes] = []
    at = 0
    for edit in sorted(edits, key=lambda edit: edit.start):  # stable: edits at one place stay in order
        parts += data[at : edit.start], edit.text
        at = edit.end
    return b"".join((*parts, data[at:]))


def append_children(data: bytes, span: Span, texts: Sequence[str], style: Style, depth: int) -> Edit:
    """An edit that appends texts to an element, after its last child or comment.

    Args:
        data: the document.
        span: the element's.
        texts: one element each, in ASCII.
        style: line break and indentation before each text.
        depth: further steps of indentation; 0 or -1.
    """
    lead = "" if style.indent is None else style.indent[: len(style.indent) + depth * len(style.step)]
    body = lead.join(("", *texts))  # each text after its own lead
    closing = lead[: len(lead) - len(style.step)] if lead else ""
    if span.empty:
        tag = data[span.start : span.open_end - 2].rstrip()
        name = tag[1:].split(None, 1)[0].decode("ascii")
        return Edit(span.start + len(tag), span.open_end, f">{body}{closing}</{name}>".encode("ascii"))
    content = data[span.open_end : span.close]
    at = span.open_end + len(content.rstrip(b" \t\r\n"))
    if at == span.open_end and b"\n" not in content:
        return Edit(at, span.close, (body + closing).encode("ascii"))
    return Edit(at, at, body.encode("ascii"))


def remove(data: bytes, span: Span) -> Edit:
    """An edit that removes an element with the white space before it."""
    return Edit(len(data[: span.start].rstrip(b" \t\r\n")), span.end, b"")
