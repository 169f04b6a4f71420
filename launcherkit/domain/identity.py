"""A domain's name and UUID, and the mark by which `launcherkit run` recognises its own domains.

The mark is an element of ``<metadata>`` in a namespace of its own; libvirt keeps it with the definition. Like all
edits, it is made in the bytes (X4).
"""

from __future__ import annotations

from dataclasses import dataclass

from lxml import etree

from launcherkit.domain.xml import Document, escaped

NAMESPACE = "urn:launcherkit:run"
_TAG = f"{{{NAMESPACE}}}run"


@dataclass(frozen=True, slots=True)
class Identity:
    """What libvirt knows a domain by; the name is empty if there is none."""

    name: str
    uuid: str | None


def read_identity(document: Document) -> Identity:
    """The name and UUID in the document."""
    return Identity(document.root.findtext("name") or "", (document.root.findtext("uuid") or "").strip() or None)


def with_uuid(document: Document, uuid: str) -> bytes:
    """The document with this UUID added; it must have a name and no UUID."""
    name = document.root.find("name")
    return document.data if name is None else _behind(document, name, f"<uuid>{escaped(uuid)}</uuid>".encode("ascii"))


def with_owner(document: Document, owner: str) -> bytes:
    """The document with the mark of its owner, in place of any earlier mark; it must have a name."""
    mark = f'<launcherkit:run xmlns:launcherkit="{NAMESPACE}" owner="{escaped(owner)}"/>'.encode("ascii")
    data = document.data
    name, metadata = document.root.find("name"), document.root.find("metadata")
    if metadata is None:
        return data if name is None else _behind(document, name, b"<metadata>" + mark + b"</metadata>")
    earlier = metadata.find(_TAG)
    if earlier is not None:
        span = document.span(earlier)
        return data[: span.start] + mark + data[span.end :]
    span = document.span(metadata)
    if span.empty:
        tag = data[span.start : span.open_end - 2].rstrip()
        return data[: span.start] + tag + b">" + mark + b"</metadata>" + data[span.end :]
    return data[: span.open_end] + mark + data[span.open_end :]


def owner_of(mark: str) -> str | None:
    """The owner named by a mark, as libvirt returns it; None if it names none."""
    try:
        return etree.fromstring(mark, etree.XMLParser(resolve_entities=False, no_network=True)).get("owner")
    except etree.XMLSyntaxError:
        return None


def _behind(document: Document, element: etree._Element, text: bytes) -> bytes:
    end = document.span(element).end
    return document.data[:end] + text + document.data[end:]
