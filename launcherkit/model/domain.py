"""The facts about a domain document that the rules need, without its XML."""

from collections.abc import Iterable
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
    model: str | None = None
    """An mdev's device API."""


MACHINE_ROOTS = ("pcie-root", "pci-root")
"""Models of the root controller that every machine with PCI has, whether or not the document names it."""
PCIE_EXPANDER = "pcie-expander-bus"
EXPANDERS = (PCIE_EXPANDER, "pci-expander-bus")
"""Models of controllers that add a root bus; to the guest, each is a root complex of its own (P4)."""


class Controller(NamedTuple):
    """A PCI controller of the document, or one to add to it.

    Attributes:
        number: Its ``index``, the bus behind it; firmware numbers the buses itself.
        model: libvirt's name, such as ``pcie-root-port``.
        guest: Its own address; None leaves that to libvirt.
        bus_number: For a root bus, its number in the guest. Those of the buses below it follow (P4). None if libvirt
            decides, and for all other controllers.
        cell: For an expander, the guest's NUMA cell that it belongs to.
    """

    number: int | None
    model: str
    guest: GuestAddress | None
    bus_number: int | None = None
    cell: int | None = None

    @property
    def is_root(self) -> bool:
        """Whether the bus behind it is a root bus."""
        return self.model in MACHINE_ROOTS or self.model in EXPANDERS


class GuestTree:
    """The guest's PCI tree as far as a document gives it: root complexes, switches, ports (P2, P4).

    Args:
        controllers: the document's; if none is its root, the machine's own has bus 0.
    """

    def __init__(self, controllers: Iterable[Controller]) -> None:
        self.controllers = {0: Controller(0, "pcie-root", None, 0)}
        """By the bus behind each."""
        self.controllers |= {each.number: each for each in controllers if each.number is not None}

    def buses(self, guest: GuestAddress) -> tuple[int, ...]:
        """The buses from the root bus down to an address.

        The first one isn't a root bus if the document leaves the upper part of the tree to libvirt.
        """
        buses: list[int] = []
        bus: int | None = guest.bus
        while bus is not None and bus not in buses and bus in self.controllers:
            buses.append(bus)
            controller = self.controllers[bus]
            bus = None if controller.is_root or controller.guest is None else controller.guest.bus
        return tuple(reversed(buses))

    def path(self, guest: GuestAddress) -> tuple[Controller, ...]:
        """The controllers of these buses: the bridges that lead to an address."""
        return tuple([self.controllers[bus] for bus in self.buses(guest)])

    def expander_above(self, guest: GuestAddress) -> Controller | None:
        """The expander with a NUMA cell that an address is below; None for the machine's own root bus."""
        top = next(iter(self.path(guest)), None)
        return None if top is None or top.cell is None else top


ROOT_BUS = -1
"""In place of a cell: the guest's own root bus."""


class Affinity(NamedTuple):
    """The place in the guest's tree where a card belongs."""

    cell: int
    """The guest's; `ROOT_BUS` if no cell is wanted."""
    root_complex: str
    """The host's, such as ``pci0000:e0``: cards of two are kept apart even on one node. Empty if unknown."""
    switch: str
    """The upstream port of the host switch that it shares with another card; empty if it shares none."""
    alone: bool = False
    """Whether no other card may be below its expander (P7)."""


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
    def tree(self) -> GuestTree:
        """The guest's PCI tree, as the document has it."""
        return GuestTree(self.controllers)

    @property
    def index_of(self) -> dict[HostAddress, int]:
        """The index of each hostdev by its source; the first one of two with the same."""
        indices: dict[HostAddress, int] = {}
        for index, hostdev in enumerate(self.hostdevs):
            if hostdev.source is not None:
                indices.setdefault(hostdev.source, index)
        return indices

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
