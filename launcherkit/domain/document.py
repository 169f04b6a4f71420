"""Takes a domain document in, and refuses what must not come in (X5)."""

from __future__ import annotations

from typing import NamedTuple

from lxml import etree

from launcherkit.errors import BadEncoding, DomainTooLarge, ForbiddenXml, NotADomain, NotXml

MAX_BYTES = 8 * 1024 * 1024

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
        DomainTooLarge: it is over 8 MiB.
        BadEncoding: its encoding is not based on ASCII.
        NotADomain: its root is not ``<domain>``.
    """
    data = domain_xml.encode("utf-8", "surrogatepass") if isinstance(domain_xml, str) else domain_xml
    if len(data) > MAX_BYTES:
        raise DomainTooLarge(
            f"{name} has {len(data)} bytes, more than {MAX_BYTES}",
            "A domain document is a few kilobytes; look for what was put into it by mistake.",
        )
    try:
        root = etree.fromstring(data, _parser("utf-8" if isinstance(domain_xml, str) else None))
    except (etree.XMLSyntaxError, LookupError) as problem:
        text = " ".join(str(problem).split())
        if "<!DOCTYPE" in text or "Entity" in text or "entity" in text:
            raise _forbidden(name, text) from problem
        raise NotXml(
            f"{name} is not well-formed XML: {text}", "See the line and column named; `xmllint --noout FILE` shows it too."
        ) from problem
    info = root.getroottree().docinfo
    if info.internalDTD is not None or info.doctype:
        raise _forbidden(name, "it has a document type declaration")
    encoding = (info.encoding or "utf-8").lower()
    if not isinstance(domain_xml, str) and not encoding.startswith(_ASCII_BASED):
        raise BadEncoding(
            f"{name} is in {info.encoding}", "Convert it to UTF-8, which is what libvirt reads: `iconv -t UTF-8`."
        )
    if root.tag != "domain":
        raise NotADomain(
            f"{name} has the root <{_local(root.tag)}>, not <domain>",
            "Give the domain's own XML, such as `virsh dumpxml --inactive NAME` prints.",
        )
    return Document(data, root)


def _parser(encoding: str | None) -> etree.XMLParser:
    return etree.XMLParser(
        resolve_entities=False,
        no_network=True,
        load_dtd=False,
        huge_tree=False,
        remove_comments=False,
        strip_cdata=False,
        encoding=encoding,
    )


def _forbidden(name: str, what: str) -> ForbiddenXml:
    return ForbiddenXml(
        f"{name} is refused: {what}",
        "Take out the <!DOCTYPE ...> and write out what its entities stand for; libvirt needs neither.",
    )


def _local(tag: object) -> str:
    return str(tag)[:80]
