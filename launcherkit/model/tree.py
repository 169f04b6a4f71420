"""The guest's PCI tree as a domain document has it: root complexes, switches, ports (P2, P4)."""

from collections.abc import Mapping

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
