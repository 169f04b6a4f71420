"""Compares XML documents by their content, and shows where they differ.

Two documents are the same if their canonical forms (C14N 2.0, with comments) are. Order and quotes of attributes,
entities or characters, ``<a/>`` or ``<a></a>``, CDATA and the XML declaration don't matter. Everything else does, even
white space between elements: the translator promises to leave it alone (X4).
"""

from __future__ import annotations

import re

from lxml import etree

from launcherkit.diff import unified_diff


def canonical(document: bytes) -> bytes:
    """The canonical form, in UTF-8.

    Raises:
        ValueError: the document is not XML; says why.
    """
    parser = etree.XMLParser(resolve_entities=False, no_network=True, load_dtd=False)
    try:
        root = etree.fromstring(document, parser)
    except etree.XMLSyntaxError as problem:
        raise ValueError(" ".join(str(problem).split())) from problem
    return etree.tostring(root.getroottree(), method="c14n2", with_comments=True)


def xml_difference(expected: bytes, actual: bytes, name: str) -> str | None:
    """A unified diff of the canonical forms; None if they are the same.

    Args:
        expected: a document.
        actual: another one.
        name: the first document's name in the diff.

    Raises:
        ValueError: the expected document is not XML.
    """
    before, after = canonical(expected), canonical(actual)
    if before == after:
        return None
    # A document may be one long line; but if only white space differs, it must be shown.
    before, after = before + b"\n", after + b"\n"
    diff = unified_diff(_lines(before), _lines(after), name, "actual") or unified_diff(before, after, name, "actual")
    return diff.decode("utf-8", "surrogateescape")


def _lines(document: bytes) -> bytes:
    """A form for reading: at most one element on each line, empty ones in their short form."""
    return re.sub(rb"><(?!/)", b">\n<", re.sub(rb"<([^\s<>/!?]+)((?: [^<>]*)?)></\1>", rb"<\1\2/>", document))
