"""The name of a domain, and the mark of its owner, put into the document and read again."""

from __future__ import annotations

import pytest
from lxml import etree

from launcherkit.domain.identity import NAMESPACE, Identity, owner_of, read_identity, with_owner, with_uuid
from launcherkit.domain.xml import read_document

NAMED = b"<domain>\n  <name>vm</name>\n  <!-- kept -->%s\n</domain>\n"


def mark_in(data: bytes) -> list[str | None]:
    marks = read_document(data).root.findall(f"metadata/{{{NAMESPACE}}}run")
    return [owner_of(etree.tostring(mark).decode()) for mark in marks]


@pytest.mark.parametrize("metadata", [b"", b"<metadata/>", b"<metadata />", b"<metadata><a xmlns='urn:a'/></metadata>"])
def test_a_document_is_marked_once_and_again_and_else_unchanged(metadata: bytes) -> None:
    once = with_owner(read_document(NAMED % metadata), "a")
    twice = with_owner(read_document(once), "b & 'c' \"ü\"")
    assert mark_in(once) == ["a"]
    assert mark_in(twice) == ["b & 'c' \"ü\""]
    assert b"<!-- kept -->" in twice
    assert (b"urn:a" in twice) == (b"urn:a" in metadata)


def test_a_uuid_goes_behind_the_name() -> None:
    document = read_document(with_uuid(read_document(NAMED % b""), "1-2"))
    assert read_identity(document) == Identity("vm", "1-2")
    assert read_identity(read_document(NAMED % b"")) == Identity("vm", None)
    assert read_identity(read_document(b"<domain/>")) == Identity("", None)


def test_what_is_no_mark_names_nobody() -> None:
    assert owner_of("<run>") is None
    assert owner_of("<run/>") is None
