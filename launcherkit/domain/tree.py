"""Reads from a domain document which root complex, switch and port its PCI devices are behind (P2, P4)."""

from __future__ import annotations

from lxml import etree

from launcherkit.domain.hostdev import number, parts_of
from launcherkit.model.tree import ROOTS, Bridge, GuestTree


def read_tree(root: etree._Element) -> GuestTree:
    """The tree of a parsed domain; if it has no root controller, the machine's own has bus 0."""
    bridges = {0: Bridge(0, "pcie-root", None, 0, None)}
    for element in root.iterfind("devices/controller[@type='pci']"):
        index = number(element.get("index"))
        if index is not None:
            bridges[index] = _read_bridge(element, index)
    return GuestTree(bridges)


def _read_bridge(element: etree._Element, index: int) -> Bridge:
    model = element.get("model", "")
    target, node = element.find("target"), element.findtext("target/node")
    return Bridge(
        index,
        model,
        parts_of(element).guest,
        0 if model in ROOTS[:2] else None if target is None else number(target.get("busNr")),
        None if node is None else number(node.strip()),
    )
