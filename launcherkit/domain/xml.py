"""Parses a domain document, and refuses what is forbidden in one (X5)."""

import re
from collections.abc import Iterable, Sequence
from operator import itemgetter
from typing import NamedTuple, TypeAlias

from lxml import etree

from launcherkit.errors import BAD_ENCODING, DOMAIN_TOO_LARGE, FORBIDDEN_XML, NOT_A_DOMAIN, NOT_XML, BadInput

MAX_BYTES = 8 * 1024 * 1024
MAX_TAGS, MAX_ATTRIBUTES, MAX_HOSTDEVS = 125_000, 250_000, 8_192
"""How many ``<``, ``=`` and ``<hostdev`` a document may have: ten times what one has with hundreds of devices and
thousands of pinned CPUs. An element costs far more than a byte: a limit on bytes alone bounds neither time nor
memory."""

_COUNTED = ((b"<", MAX_TAGS, "tags"), (b"=", MAX_ATTRIBUTES, "attributes"), (b"<hostdev", MAX_HOSTDEVS, "hostdevs"))
_TOO_LARGE = "A domain document is a few kilobytes; look for what was put into it by mistake."

# Encodings in which every byte below 0x80 is the ASCII character, so that markup can be found byte by byte.
_ASCII_BASED = ("utf-8", "utf8", "us-ascii", "ascii", "iso-8859-", "windows-125", "latin1", "latin-1")


class Document:
    """A parsed domain and the bytes it came from; edits are made in the bytes (X4)."""

    def __init__(self, data: bytes, root: etree._Element) -> None:
        self.data = data
        self.root = root
        self.devices = root.find("devices")
        """The first ``<devices>``, to which devices are added."""
        self._spans: list[Span] = []
        self._elements = root.iter(etree.Element)
        self._span_of: dict[etree._Element, Span] = {}

    def span(self, element: etree._Element) -> "Span":
        """Where an element is in the bytes; found on first use."""
        self._spans = self._spans or element_spans(self.data)
        while element not in self._span_of:
            self._span_of[next(self._elements)] = self._spans[len(self._span_of)]
        return self._span_of[element]


def read_document(domain_xml: str | bytes, name: str = "the domain document") -> Document:
    """Parse a domain document.

    Args:
        domain_xml: bytes in the encoding that they declare, or text.
        name: what messages call it, a file's path for example.

    Raises:
        NOT_XML: it is not well-formed.
        FORBIDDEN_XML: it has a document type, which is where entities and external references come from.
        DOMAIN_TOO_LARGE: it is over 8 MiB, or has more tags, attributes or hostdevs than `MAX_TAGS` and the like.
        BAD_ENCODING: its encoding is not based on ASCII.
        NOT_A_DOMAIN: its root is not ``<domain>``.
    """
    data = _encoded(domain_xml, name) if isinstance(domain_xml, str) else domain_xml
    if len(data) > MAX_BYTES:
        raise DOMAIN_TOO_LARGE(f"{name} has more than {MAX_BYTES} bytes", _TOO_LARGE, file=name)
    for mark, limit, things in _COUNTED:
        if data.count(mark) > limit:
            raise DOMAIN_TOO_LARGE(f"{name} has more than {limit} {things} ({mark.decode()})", _TOO_LARGE, file=name)
    if data.startswith((b"\xff\xfe", b"\xfe\xff", b"<\0", b"\0<")):
        raise _bad_encoding(name, "UTF-16")  # lxml would read it without complaint
    root = _parse(data, name)
    info = root.getroottree().docinfo
    if info.internalDTD is not None or info.doctype:
        raise _forbidden(name, "it has a document type declaration")
    encoding = info.encoding or "utf-8"
    if not encoding.lower().startswith(_ASCII_BASED):
        raise _bad_encoding(name, encoding)
    if root.tag != "domain":
        raise NOT_A_DOMAIN(
            f"{name} has the root <{str(root.tag)[:80]}>, not <domain>",
            "Give the domain's own XML, such as `virsh dumpxml --inactive NAME` prints.",
            file=name,
        )
    return Document(data, root)


def _encoded(text: str, name: str) -> bytes:
    """Text as bytes in the encoding that it declares; UTF-8 if it declares none."""
    declaration = text[: text.find("?>")] if text.startswith("<?xml") else ""
    _, keyword, rest = declaration.partition("encoding")
    parts = rest.replace("'", '"').split('"')
    encoding = parts[1] if keyword and len(parts) > 1 else "utf-8"
    if not encoding.lower().startswith(_ASCII_BASED):
        raise _bad_encoding(name, encoding)
    try:
        return text.encode(encoding, "xmlcharrefreplace")
    except (LookupError, ValueError) as problem:  # ValueError for a name with a null character
        raise _bad_encoding(name, encoding) from problem


def _parse(data: bytes, name: str) -> etree._Element:
    try:
        return etree.fromstring(data, _parser())
    except (etree.XMLSyntaxError, LookupError) as problem:
        text = " ".join(str(problem).split())
        if b"<!DOCTYPE" in data or "Entity '" in text:
            raise _forbidden(name, text) from problem
        raise NOT_XML(
            f"{name} is not well-formed XML: {text.partition(' (<string>')[0]}",
            "See the line and column named; `xmllint --noout FILE` shows it too.",
            file=name,
        ) from problem


def _bad_encoding(name: str, encoding: str) -> BadInput:
    return BAD_ENCODING(
        f"{name} is in {encoding}, not in UTF-8",
        "Convert it to UTF-8, which is what libvirt reads: `xmllint --encode UTF-8 FILE`.",
        file=name,
    )


def _parser() -> etree.XMLParser:
    return etree.XMLParser(
        resolve_entities=False,
        no_network=True,
        load_dtd=False,
        huge_tree=False,
        remove_comments=False,
        strip_cdata=False,
    )


def _forbidden(name: str, reason: str) -> BadInput:
    return FORBIDDEN_XML(
        f"{name} is refused: {reason}",
        "Take out the <!DOCTYPE ...> and write out what its entities stand for; libvirt needs neither.",
        file=name,
    )


# Where each element of a document begins and ends, in bytes.


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
    raw_name = name.encode()
    while True:
        equals = data.find(b"=", at, end)
        if equals < 0:
            return None
        key = data[at:equals].split()[-1]
        quote_at = equals + 1
        while data[quote_at] not in _QUOTES:
            quote_at += 1
        close = data.index(data[quote_at : quote_at + 1], quote_at + 1)
        if key == raw_name:
            return quote_at + 1, close
        at = close + 1


# Text that is made safe for XML, wherever it comes from (T3).

_PLAIN = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-.:/ ")
_SPECIAL = "&<>\"'\t\n\r"
_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


def escaped(text: str) -> str:
    """Escape text for the value of an attribute, in quotes of either kind, or for the content of an element.

    Markup, white space that a parser would change, and everything that is not ASCII become character references, so the
    result is valid in every encoding that a document may have (X5). Characters that XML excludes become U+FFFD.
    """
    return text if _PLAIN.issuperset(text) else "".join(map(_escaped, text))


def _escaped(character: str) -> str:
    if character in _SPECIAL:
        return f"&#{ord(character)};"
    if " " <= character <= "~":
        return character
    return f"&#{ord(character if _is_xml(character) else _REPLACEMENT)};"


def _is_xml(character: str) -> bool:
    """XML 1.0's ``Char``: no control characters, no surrogates, not U+FFFE and U+FFFF."""
    return " " <= character <= "\ud7ff" or "\ue000" <= character <= "\ufffd" or character >= "\U00010000"


# How a document is written, so that what is added looks like the rest.


_WIDEST = 256
"""Columns; more white space than this before a tag isn't taken for indentation."""


class Style(NamedTuple):
    """Quotes and indentation of a document's devices."""

    quote: str
    indent: str | None
    """Line break and indentation of a device; None if the document has no line breaks."""
    step: str

    def quoted(self, text: str) -> str:
        """A text that was made with single quotes, with the document's own: escaped values contain neither kind."""
        return text if self.quote == "'" else text.replace("'", self.quote)

    def deeper(self) -> "Style":
        """The style of an element's children."""
        return self if self.indent is None else self._replace(indent=self.indent + self.step)


def style_of(document: Document) -> Style:
    """The quotes of the document's first attribute, and the indentation of its devices."""
    data, devices = document.data, document.devices
    single, double = data.find(b"='"), data.find(b'="')
    quote = "'" if double < 0 or 0 <= single < double else '"'
    if devices is None or not len(devices):
        return Style(quote, "\n    " if b"\n" in data.strip() else None, "  ")
    indentations = (indentation_of(data, document.span(child).start) for child in devices.iterchildren(etree.Element))
    own = next(filter(None, indentations), None)
    if own is None:
        return Style(quote, None, "")
    outer = indentation_of(data, document.span(devices).start) or "\n"
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


# Edits of a document's bytes; all other bytes stay as they are (X4).


Edit: TypeAlias = tuple[int, int, bytes]
"""Replace the bytes from the first to the second offset by these."""


def apply_edits(data: bytes, edits: Iterable[Edit]) -> bytes:
    """The data with the edits applied. Edits must not overlap; those at one place are applied in the given order."""
    parts: list[bytes] = []
    at = 0
    for start, end, text in sorted(edits, key=itemgetter(0)):  # stable: edits at one place stay in order
        parts += data[at:start], text
        at = end
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
        return (span.start + len(tag), span.open_end, f">{body}{closing}</{name}>".encode("ascii"))
    content = data[span.open_end : span.close]
    at = span.open_end + len(content.rstrip(b" \t\r\n"))
    if at == span.open_end and b"\n" not in content:
        return (at, span.close, (body + closing).encode("ascii"))
    return (at, at, body.encode("ascii"))


def remove(data: bytes, span: Span) -> Edit:
    """An edit that removes an element with the white space before it."""
    return (len(data[: span.start].rstrip(b" \t\r\n")), span.end, b"")
