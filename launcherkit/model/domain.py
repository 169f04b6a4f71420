"""What the rules need to know of a domain document, without its XML."""

from typing import Literal, TypeAlias

from launcherkit.model.address import GuestAddress, HostAddress, PciAddress
from launcherkit.model.request import Kind
from launcherkit.model.value import NamedTuple, documented

PciTopology: TypeAlias = Literal["pcie", "pci", "other"]
"""How the machine's PCI is built: with a pcie-root, with a pci-root, or in a way that libvirt places alone (P2, P6)."""


class ExistingHostdev(NamedTuple):
    """A hostdev of type pci, mdev or usb that the document has already."""

    kind: Kind
    source: HostAddress | None
    """None where the document names it in another way: a USB device by vendor and product."""
    alias: str | None
    guest: GuestAddress | None
    """Its PCI address in the guest."""
    placed: bool
    """Whether it has an ``<address>`` that says where, of any type."""
    managed: str | None
    display: str | None
    ramfb: str | None
    iommufd: bool | None = None
    """What its ``<driver iommufd>`` says; None where it says nothing (V2)."""
    nodeset: frozenset[int] | None = None
    """The cells of its ``<acpi nodeset>``; None where it has none (P7)."""


@documented(
    number="Its ``index``, the bus behind it.",
    model="``pcie-root-port`` and the like, as libvirt calls it.",
    guest="Where it is itself; None leaves that to libvirt.",
    bus_number=(
        "Of a ``pcie-expander-bus``: the number of its bus in the guest. Those of the buses below it follow (P4)."
    ),
    cell="Of a ``pcie-expander-bus``: the guest's NUMA cell that it belongs to.",
)
class Controller(NamedTuple):
    """A PCI controller, of the document or to be added to it."""

    number: int | None
    model: str
    guest: GuestAddress | None
    bus_number: int | None = None
    cell: int | None = None


class GuestCell(NamedTuple):
    """A NUMA cell of the guest, and what of the host stands behind it (P4)."""

    id: int
    nodes: frozenset[int]
    """Host nodes that its memory is bound to by ``<memnode>``."""
    cpus: frozenset[int]
    """Host CPUs that its vCPUs are pinned to."""
    empty: bool = False
    """It has neither vCPUs nor memory, and stands for no host node: it is there for a device's memory (P7)."""


Needs: TypeAlias = Literal["pcie", "pci"]
"""The slot that libvirt puts a device in: PCI Express, behind a port of its own, or conventional PCI, on a bridge."""


class Unplaced(NamedTuple):
    """A device without an address, to which libvirt will give one behind a root port or a bridge (P2)."""

    needs: Needs
    hostdev: int | None = None
    """Which of the document's hostdevs it is; None for another device."""
    after_hostdevs: bool = False
    """libvirt places it after all hostdevs, so that one more hostdev without an address would move it."""


class DomainFacts(NamedTuple):
    """Facts about a domain document."""

    topology: PciTopology
    machine: str
    """``arch/machine`` for messages."""
    controllers: tuple[Controller, ...]
    guest_addresses: frozenset[GuestAddress]
    """PCI addresses in use in the guest."""
    has_graphics: bool
    video_ramfb: bool
    """A ``<video>`` of model ramfb is there."""
    aliases: frozenset[str]
    """Aliases of every device but the hostdevs of this value."""
    hostdevs: tuple[ExistingHostdev, ...]
    taken: frozenset[PciAddress]
    """Host functions that the document uses otherwise: ``<interface type='hostdev'>``, NVMe disks and their backing."""
    iommufd: bool | None
    """The domain's ``<iommufd enabled>``, for hostdevs that say nothing themselves; None where it isn't there (V2)."""
    unplaced: tuple[Unplaced, ...] = ()
    """On PCIe machines: what libvirt will place, itself adding some of it, in the order in which it does (P2)."""

    cells: tuple[GuestCell, ...] = ()
    """The guest's NUMA cells, by number (P4)."""

    @property
    def has_several_cells(self) -> bool:
        """Without counting empty ones (P4)."""
        return sum(not cell.empty for cell in self.cells) > 1

    @property
    def is_bound(self) -> bool:
        """Whether a cell of the guest has its memory bound to host nodes, or vCPUs pinned to host CPUs (P4)."""
        return any(cell.nodes or cell.cpus for cell in self.cells)

    @property
    def asks_for_iommufd(self) -> bool:
        """By the domain's element or by a hostdev's."""
        return bool(self.iommufd) or any(hostdev.iommufd for hostdev in self.hostdevs)
