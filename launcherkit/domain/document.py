"""Parses a domain document, and refuses what is forbidden in one (X5)."""

from __future__ import annotations

from typing import NamedTuple

from lxml import etree

from launcherkit.errors import BadEncoding, DomainTooLarge, ForbiddenXml, NotADomain, NotXml

MAX_BYTES = 8 * 1024 * 1024
MAX_TAGS, MAX_ATTRIBUTES, MAX_HOSTDEVS = 125_000, 250_000, 8_192
"""How many ``<``, ``=`` and ``<hostdev`` a document may have: ten times what one has with hundreds of devices and
thousands of pinned CPUs. An element costs far more than a byte: a limit on bytes alone bounds neither time nor
memory."""

_COUNTED = ((b"<", MAX_TAGS, "tags"), (b"=", MAX_ATTRIBUTES, "attributes"), (b"<hostdev", MAX_HOSTDEVS, "hostdevs"))
_TOO_LARGE = "A domain document is a few kilobytes; look for what was put into it by mistake."

# Encodings in which every byte below 0x80 is the ASCII character, so that markup can be found byte by byte.
_ASCII_BASED = ("utf-8", "utf8", "us-ascii", "ascii", "iso-8859-", "windows-125", "latin1", "latin-1")


class Document(NamedTuple):
    """A parsed domain and the bytes it came from; edits are made in the bytes (X4)."""

    data: bytes
    root: etree._Element


def read_document(domain_xml: str | bytes, name: str = "the domain document") -> Document:
    """Parse a domain document.

    Args:
        domain_xml: bytes in the encoding that they declare, or text.
        name: what messages call it, a file's path for example.

    Raises:
        NotXml: it is not well-formed.
        ForbiddenXml: it has a document type, which is where entities and external references come from.
        DomainTooLarge: it is over 8 MiB, or has more tags, attributes or hostdevs than `MAX_TAGS` and the like.
        BadEncoding: its encoding is not based on ASCII.
        NotADomain: its root is not ``<domain>``.
    """
    data = _encoded(domain_xml, name) if isinstance(domain_xml, str) else domain_xml
    if len(data) > MAX_BYTES:
        raise DomainTooLarge(f"{name} has more than {MAX_BYTES} bytes", _TOO_LARGE, file=name)
    for mark, limit, what in _COUNTED:
        if data.count(mark) > limit:
            raise DomainTooLarge(f"{name} has more than {limit} {what} ({mark.decode()})", _TOO_LARGE, file=name)
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
        raise NotADomain(
            f"{name} has the root <{str(root.tag)[:80]}>, not <domain>",
            "Give the domain's own XML, such as `virsh dumpxml --inactive NAME` prints.",
            file=name,
        )
    return Document(data, root)


def _encoded(text: str, name: str) -> bytes:
    """Text as bytes in the encoding that it declares; UTF-8 if it declares none."""
    declaration = text[: text.find("?>")] if text.startswith("<?xml") else ""
    _, found, rest = declaration.partition("encoding")
    parts = rest.replace("'", '"').split('"')
    encoding = parts[1] if found and len(parts) > 1 else "utf-8"
    if not encoding.lower().startswith(_ASCII_BASED):
        raise _bad_encoding(name, encoding)
    try:
        return text.encode(encoding, "xmlcharrefreplace")
    except LookupError as problem:
        raise _bad_encoding(name, encoding) from problem


def _parse(data: bytes, name: str) -> etree._Element:
    try:
        return etree.fromstring(data, _parser())
    except (etree.XMLSyntaxError, LookupError) as problem:
        text = " ".join(str(problem).split())
        if b"<!DOCTYPE" in data or "Entity '" in text:
            raise _forbidden(name, text) from problem
        raise NotXml(
            f"{name} is not well-formed XML: {text.partition(' (<string>')[0]}",
            "See the line and column named; `xmllint --noout FILE` shows it too.",
            file=name,
        ) from problem


def _bad_encoding(name: str, encoding: str) -> BadEncoding:
    return BadEncoding(
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


def _forbidden(name: str, what: str) -> ForbiddenXml:
    return ForbiddenXml(
        f"{name} is refused: {what}",
        "Take out the <!DOCTYPE ...> and write out what its entities stand for; libvirt needs neither.",
        file=name,
    )
