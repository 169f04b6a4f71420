"""What launcherkit can write into a domain: by ``schemas/hostdev.rng``, and by what golden cases add.

A name is ``hostdev/source/address@bus``; with a closed set of values each is one of its own, ``hostdev@managed=no``.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from lxml import etree

RNG = "{http://relaxng.org/ns/structure/1.0}"
EMITTED = "{https://launcherkit.io/ns/rng}emitted"
KINDS = ("pci", "mdev", "usb")


def emitted_by_schema(schema: Path) -> frozenset[str]:
    """The names that are marked in the schema."""
    grammar = etree.parse(schema).getroot()
    defines = {define.get("name"): define for define in grammar.iterchildren(RNG + "define")}

    def expanded(node: etree._Element) -> Iterator[etree._Element]:
        for child in node.iterchildren(etree.Element):
            yield from defines[child.get("name")].iterchildren(etree.Element) if child.tag == RNG + "ref" else (child,)

    def names(node: etree._Element, path: str) -> Iterator[str]:
        for child in expanded(node):
            if child.tag not in (RNG + "element", RNG + "attribute"):
                yield from names(child, path)
            elif child.get(EMITTED) == "yes" and child.tag == RNG + "element":
                yield path + child.get("name", "")
                yield from names(child, f"{path}{child.get('name')}/")
            elif child.get(EMITTED) == "yes":
                name = f"{path.rstrip('/')}@{child.get('name')}"
                yield from [f"{name}={value}" for value in values(child)] or [name]

    def values(node: etree._Element) -> Iterator[str]:
        for child in expanded(node):
            if child.tag == RNG + "value" and child.get(EMITTED) == "yes":
                yield (child.text or "").strip()
            yield from values(child)

    return frozenset(name for define in defines.values() if _is_started(grammar, define) for name in names(define, ""))


def _is_started(grammar: etree._Element, define: etree._Element) -> bool:
    start = grammar.find(RNG + "start")
    assert start is not None
    return define.get("name") in {ref.get("name") for ref in start.iter(RNG + "ref")}


def our_elements(domain: etree._Element) -> Iterator[etree._Element]:
    """The hostdevs of our kinds, and PCIe root ports that nobody placed."""
    for element in domain.iterfind("devices/*"):
        if element.tag == "hostdev" and element.get("type") in KINDS and element.get("mode") == "subsystem":
            yield element
        if element.tag == "controller" and element.get("model") == "pcie-root-port" and element.find("address") is None:
            yield element


def added(before: bytes, after: bytes, closed: frozenset[str]) -> frozenset[str]:
    """The names of which ``after`` has more than ``before``.

    Args:
        before: a domain document.
        after: the same, translated.
        closed: attributes whose values count as names.
    """
    return frozenset(_names(after, closed) - _names(before, closed))


def closed_attributes(names: frozenset[str]) -> frozenset[str]:
    """The attributes among names that have a closed set of values."""
    return frozenset(name.partition("=")[0] for name in names if "=" in name)


def _names(document: bytes, closed: frozenset[str]) -> Counter[str]:
    found: Counter[str] = Counter()

    def count(element: etree._Element, path: str) -> None:
        path += str(element.tag)
        found[path] += 1
        for key, value in element.items():
            name = path + "@" + str(key)
            found[name + "=" + str(value) if name in closed else name] += 1
        for child in element.iterchildren(etree.Element):
            count(child, path + "/")

    for element in etree.fromstring(document).iterfind("devices/*"):
        if element.tag in ("hostdev", "controller"):
            count(element, "")
    return found


def words_in_writer(source: str) -> tuple[set[str], set[str]]:
    """The elements and attributes that a module's text names.

    As ``<alias``, ``bus='``, ``_tag("controller", ...)`` and pairs ``("mode", ...)``.
    """
    tree = ast.parse(source.replace("from __future__ import annotations\n", ""))
    texts = [node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    elements = {name for text in texts for name in re.findall(r"<([a-z]+[0-9]*)", text)}
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)]
    tags = [call.args[0] for call in calls if isinstance(call.func, ast.Name) and call.func.id == "_tag"]
    elements |= {text for tag in tags if (text := _text(tag))}
    attributes = {name for text in texts for name in re.findall(r"\b([a-z]+)='", text)}
    pairs = [node.elts[0] for node in ast.walk(tree) if isinstance(node, ast.Tuple) and len(node.elts) == 2]
    attributes |= {text for first in pairs if (text := _text(first))}
    return elements, attributes


def _text(node: ast.expr) -> str | None:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None
