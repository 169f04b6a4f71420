"""How a document is written, so that what is added looks like the rest."""

from __future__ import annotations

from typing import NamedTuple

from lxml import etree

from launcherkit.domain.tags import Places

_WIDEST = 256
"""Columns; more white space than this before a tag isn't taken for indentation."""


class Style(NamedTuple):
    """Quotes and indentation of a document's devices."""

    quote: str
    indent: str | None
    """Line break and indentation of a device; None if the document has no line breaks."""
    step: str


def style_of(places: Places) -> Style:
    """The quotes of the document's first attribute, and the indentation of its devices."""
    data, devices = places.data, places.devices
    single, double = data.find(b"='"), data.find(b'="')
    quote = "'" if double < 0 or 0 <= single < double else '"'
    if devices is None or not len(devices):
        return Style(quote, "\n    " if b"\n" in data.strip() else None, "  ")
    indentations = (indentation_of(data, places.of(child).start) for child in devices.iterchildren(etree.Element))
    own = next(filter(None, indentations), None)
    if own is None:
        return Style(quote, None, "")
    outer = indentation_of(data, places.of(devices).start) or "\n"
    step = own[len(outer) :] if own.startswith(outer) else "  "
    return Style(quote, own, step or "  ")


def indentation_of(data: bytes, at: int) -> str | None:
    """The line break and white space before a tag; None if the tag isn't first on its line, or is indented very far.

    Reads only a few bytes before the tag: a document may be one line of many megabytes.
    """
    before = data[max(at - _WIDEST - 2, 0) : at]
    blanks = len(before) - len(before.rstrip(b" \t"))
    line_break = before[: len(before) - blanks]
    if not line_break.endswith(b"\n"):
        return None
    return ("\r\n" if line_break.endswith(b"\r\n") else "\n") + before[len(line_break) :].decode("ascii")
