"""The guest's PCI tree in a domain document: root complexes, switches, ports (P2, P4)."""

from collections.abc import Mapping
from typing import NamedTuple

from launcherkit.model.address import GuestAddress

ROOTS = ("pcie-root", "pci-root", "pcie-expander-bus", "pci-expander-bus")
"""Models whose bus is a root bus; to the guest, each is a root complex."""


class Bridge(NamedTuple):
    """A PCI controller that leads to the devices behind it."""

    number: int
    """libvirt's number of the bus behind it; firmware numbers the buses itself."""
    model: str
    guest: GuestAddress | None
    """Its own address; None leaves that to libvirt."""
    bus_number: int | None
    """The number of a root bus, which firmware keeps; None for other bridges, and if libvirt decides."""
    node: int | None
    """The guest's NUMA cell of a root bus; None if it has none."""

    @property
    def is_root(self) -> bool:
        return self.model in ROOTS


class GuestTree(NamedTuple):
    """The PCI controllers of a domain, by index."""

    bridges: Mapping[int, Bridge]

    def way(self, guest: GuestAddress) -> tuple[Bridge, ...]:
        """The bridges from the root complex down to an address.

        The first one isn't a root if the document leaves the upper part of the tree to libvirt.
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
