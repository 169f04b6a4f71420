"""Finds where each element of a document begins and ends, in bytes.

lxml parses a document, but doesn't tell at which byte an element begins. Edits are made in the bytes, so that
everything else stays exactly as it was (X4); this module finds their places. It gets only documents that lxml has
accepted, without a document type, in an encoding based on ASCII: in these every ``<`` outside comments, CDATA and
processing instructions opens a tag.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from lxml import etree

from launcherkit.domain.document import Document


class Span(NamedTuple):
    """Byte offsets of one element: ``<a ...>`` is start to open_end, ``</a>`` is close to end.

    For ``<a/>`` close equals open_end equals end.
    """

    start: int
    open_end: int
    close: int
    end: int

    @property
    def empty(self) -> bool:
        """Written as ``<a/>``."""
        return self.close == self.end


# An end tag, a comment, a CDATA section, a processing instruction, or a start tag whose quoted values may hold ``>``.
_MARKUP = re.compile(
    rb"""<(?:/[^>]*+>|!--.*?-->|!\[CDATA\[.*?\]\]>|\?.*?\?>|[^"'>]*+(?:"[^"]*+"[^"'>]*+|'[^']*+'[^"'>]*+)*+>)""",
    re.DOTALL,
)


def element_spans(data: bytes) -> list[Span]:
    """The spans of all elements in document order, as ``root.iter()`` gives the elements of the same document."""
    spans: list[Span] = []
    opened: list[tuple[int, int, int]] = []
    for markup in _MARKUP.finditer(data):
        start, end = markup.span()
        second = data[start + 1]
        if second == _SLASH:
            index, opening, open_end = opened.pop()
            spans[index] = Span(opening, open_end, start, end)
        elif second not in _NO_ELEMENT:
            if data[end - 2] == _SLASH:
                spans.append(Span(start, end, end, end))
            else:
                opened.append((len(spans), start, end))
                spans.append(_OPEN)
    return spans


_OPEN = Span(0, 0, 0, 0)
_SLASH = ord("/")
_NO_ELEMENT = frozenset(b"!?")
_QUOTES = b"\"'"


def attribute_value(data: bytes, span: Span, name: str) -> tuple[int, int] | None:
    """Start and end of an attribute's value, without its quotes; None if the tag has no such attribute."""
    at, end = span.start, span.open_end
    wanted = name.encode()
    while True:
        equals = data.find(b"=", at, end)
        if equals < 0:
            return None
        key = data[at:equals].split()[-1]
        quote_at = equals + 1
        while data[quote_at] not in _QUOTES:
            quote_at += 1
        close = data.index(data[quote_at : quote_at + 1], quote_at + 1)
        if key == wanted:
            return quote_at + 1, close
        at = close + 1


class Places:
    """The byte offsets of a document's elements, found on first use."""

    def __init__(self, document: Document) -> None:
        self.data = document.data
        self.spans = element_spans(document.data)
        self.devices = document.root.find("devices")
        """The first ``<devices>``, to which devices are added."""
        self._elements = document.root.iter(etree.Element)
        self._known: dict[etree._Element, Span] = {}

    def of(self, element: etree._Element) -> Span:
        """The span of an element of the document."""
        while element not in self._known:
            self._known[next(self._elements)] = self.spans[len(self._known)]
        return self._known[element]
