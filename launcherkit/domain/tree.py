"""Where a domain document puts its PCI devices: behind which root complex, switch and port (P2, P4)."""

from __future__ import annotations

from collections.abc import Mapping

from lxml import etree

from launcherkit.domain.hostdev import number, parts_of
from launcherkit.model.address import GuestAddress
from launcherkit.model.value import NamedTuple

ROOTS = ("pcie-root", "pci-root", "pcie-expander-bus", "pci-expander-bus")
"""Models whose bus is a root bus: each is a root complex of its own to the guest."""


class Bridge(NamedTuple):
    """A PCI controller, as what leads to the devices behind it."""

    number: int
    """The bus behind it, as libvirt counts them; firmware gives the buses numbers of its own."""
    model: str
    guest: GuestAddress | None
    """Where it is itself; None leaves that to libvirt."""
    bus_number: int | None
    """The number of a root bus, which firmware keeps; None for other bridges, and where libvirt decides."""
    node: int | None
    """The guest's NUMA cell of a root bus; None where none is said."""

    @property
    def is_root(self) -> bool:
        return self.model in ROOTS


class GuestTree(NamedTuple):
    """The PCI controllers of a domain, by index."""

    bridges: Mapping[int, Bridge]

    def way(self, guest: GuestAddress) -> tuple[Bridge, ...]:
        """The bridges from the root complex down to an address.

        The first is no root where the document leaves it to libvirt how the tree goes on.
        """
        found: list[Bridge] = []
        bus: int | None = guest.bus
        while bus is not None:
            bridge = self.bridges.get(bus)
            if bridge is None or bridge in found:
                break
            found.append(bridge)
            bus = None if bridge.is_root or bridge.guest is None else bridge.guest.bus
        return tuple(reversed(found))


def read_tree(root: etree._Element) -> GuestTree:
    """The tree of a parsed domain; without a root in it, the machine's own has bus 0."""
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
