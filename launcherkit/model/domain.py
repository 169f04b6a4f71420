"""The facts about a domain document that the rules need, without its XML."""

from collections.abc import Mapping
from typing import Literal, NamedTuple, TypeAlias

from launcherkit.model.address import GuestAddress, HostAddress, PciAddress
from launcherkit.model.request import Kind

PciRoot: TypeAlias = Literal["pcie", "pci", "other"]
"""The machine's PCI: with a pcie-root, with a pci-root, or another kind, which only libvirt places (P2, P6)."""


class ExistingHostdev(NamedTuple):
    """A hostdev of type pci, mdev or usb that the document already has."""

    kind: Kind
    source: HostAddress | None
    """None if the document names the device otherwise, as a USB device by its port."""
    alias: str | None
    guest: GuestAddress | None
    """Its PCI address in the guest."""
    placed: bool
    """Whether it has an ``<address>`` of any type that gives a place."""
    managed: str | None
    display: str | None
    ramfb: str | None
    iommufd: bool | None = None
    """Its ``<driver iommufd>``; None if it has none (V2)."""
    nodeset: frozenset[int] | None = None
    """The cells of its ``<acpi nodeset>``; None if it has none (P7)."""


class Controller(NamedTuple):
    """A PCI controller of the document, or one to add to it.

    Attributes:
        number: Its ``index``, the bus behind it.
        model: libvirt's name, such as ``pcie-root-port``.
        guest: Its own address; None leaves that to libvirt.
        bus_number: For a ``pcie-expander-bus``, the number of its bus in the guest. Those of the buses below it
            follow (P4).
        cell: For a ``pcie-expander-bus``, the guest's NUMA cell that it belongs to.
    """

    number: int | None
    model: str
    guest: GuestAddress | None
    bus_number: int | None = None
    cell: int | None = None


class GuestCell(NamedTuple):
    """A NUMA cell of the guest, and the host's nodes and CPUs that back it (P4)."""

    id: int
    nodes: frozenset[int]
    """Host nodes to which ``<memnode>`` binds its memory."""
    cpus: frozenset[int]
    """Host CPUs to which its vCPUs are pinned."""
    empty: bool = False
    """It has no vCPUs, no memory and no host node, but is there for a device's memory (P7)."""


Needs: TypeAlias = Literal["pcie", "pci"]
"""The slot that libvirt puts a device in: PCI Express, behind a port of its own, or conventional PCI, on a bridge."""


class Unplaced(NamedTuple):
    """A device without an address, to which libvirt will give one behind a root port or a bridge (P2)."""

    needs: Needs
    hostdev: int | None = None
    """Its index among the document's hostdevs; None for another device."""
    after_hostdevs: bool = False
    """libvirt places it after all hostdevs, so another hostdev without an address would move it."""


class DomainFacts(NamedTuple):
    """Facts about a domain document."""

    pci_root: PciRoot
    machine: str
    """``arch/machine``: ``x86_64/q35``."""
    controllers: tuple[Controller, ...]
    guest_addresses: frozenset[GuestAddress]
    """PCI addresses in use in the guest."""
    has_graphics: bool
    video_ramfb: bool
    """There is a ``<video>`` of model ramfb."""
    aliases: frozenset[str]
    """Aliases of all devices except ``hostdevs``."""
    hostdevs: tuple[ExistingHostdev, ...]
    taken: frozenset[PciAddress]
    """Host functions that the document uses otherwise: ``<interface type='hostdev'>``, NVMe disks and their backing."""
    iommufd: bool | None
    """The domain's ``<iommufd enabled>``, for hostdevs without a setting of their own; None if there is none (V2)."""
    unplaced: tuple[Unplaced, ...] = ()
    """On PCIe machines, the devices that libvirt will place, including those that it adds, in its order (P2)."""

    cells: tuple[GuestCell, ...] = ()
    """The guest's NUMA cells, by number (P4)."""
    fdgroup: bool = False
    """Its ``<iommufd fdgroup>``: whoever starts the domain passes in ``/dev/iommu``, opened (V2)."""

    @property
    def has_several_cells(self) -> bool:
        """Whether the guest has several cells, not counting empty ones (P4)."""
        return sum(not cell.empty for cell in self.cells) > 1

    @property
    def is_bound(self) -> bool:
        """Whether a cell of the guest has its memory bound to host nodes, or vCPUs pinned to host CPUs (P4)."""
        return any(cell.nodes or cell.cpus for cell in self.cells)

    @property
    def asks_for_iommufd(self) -> bool:
        """Whether the domain or one of its hostdevs asks for iommufd."""
        return bool(self.iommufd) or any(hostdev.iommufd for hostdev in self.hostdevs)


# The guest's PCI tree in a domain document: root complexes, switches, ports (P2, P4).


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
        bridges: list[Bridge] = []
        bus: int | None = guest.bus
        while bus is not None:
            bridge = self.bridges.get(bus)
            if bridge is None or bridge in bridges:
                break
            bridges.append(bridge)
            bus = None if bridge.is_root or bridge.guest is None else bridge.guest.bus
        return tuple(reversed(bridges))
