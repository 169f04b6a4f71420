"""The plan: what was asked, what answers it, and where it goes."""

from typing import Literal, TypeAlias

from launcherkit.model.address import GuestAddress, HostAddress, PciAddress
from launcherkit.model.domain import Controller
from launcherkit.model.request import Kind, Section
from launcherkit.model.value import NamedTuple, documented

Role: TypeAlias = Literal["primary", "sibling", "reserved"]
"""A reserved function belongs to the domain and is not shown to the guest (S1)."""
Origin: TypeAlias = Literal["vmi", "environment", "domain"]
"""Who asked: the VMI, the environment alone (Q1), or a hostdev that the document has (Q2)."""


@documented(
    origin="Who asked: ``vmi``, ``environment`` (Q1) or ``domain`` (Q2).",
    section="``gpus`` or ``hostDevices``.",
    name="The request's name.",
    resource="Its ``deviceName``; None for one by a DRA claim and for one that no VMI made.",
    variable="The variable or metadata file that answers it; None for a hostdev of the document.",
    primary="The address that answers it.",
    asked=("False for a hostdev of the document that bears no request's alias: nobody asked about it (X1)."),
    rom="``on`` or ``off`` where the driver of a DRA claim says whether the guest sees the ROM (E5).",
)
class Claim(NamedTuple):
    """A request and the address that answers it."""

    origin: Origin
    section: Section
    name: str
    resource: str | None
    variable: str | None
    primary: HostAddress
    asked: bool = True
    rom: str | None = None

    @property
    def by_claim(self) -> bool:
        """A DRA claim answers it, not a resource (E5)."""
        return self.origin == "vmi" and self.resource is None


@documented(
    source="Its address on the host.",
    role="``primary`` or ``sibling``.",
    why="Why it is here, in words.",
    claim="The request that names it; a sibling may have one of its own (C5).",
    hostdev="Which of the document's hostdevs it is, None for one that is added (X2).",
)
class Attachment(NamedTuple):
    """A function that goes to the guest, before it is known where to."""

    source: HostAddress
    role: Role
    why: str
    claim: Claim | None
    hostdev: int | None


@documented(
    address="Of the function.",
    why="Why it is not attached, in words.",
)
class StayedBehind(NamedTuple):
    """A function of the primary's slot or group that is not attached, and why."""

    address: PciAddress
    why: str


@documented(
    kind="``pci``, ``mdev`` or ``usb``.",
    attachments="The primary first.",
    stayed="Functions of its slot or group that are not attached.",
)
class Unit(NamedTuple):
    """One device of the guest: a primary and its siblings."""

    kind: Kind
    attachments: tuple[Attachment, ...]
    stayed: tuple[StayedBehind, ...] = ()

    @property
    def primary(self) -> Attachment:
        return self.attachments[0]

    @property
    def kept(self) -> bool:
        """A hostdev of the document that nobody asked about and that gets no sibling: it stays byte for byte (X1)."""
        if len(self.attachments) > 1 or self.primary.hostdev is None:
            return False
        claim = self.primary.claim
        return claim is not None and not claim.asked


@documented(
    model="The hostdev's ``model``: the mdev's device API.",
    display="``on`` or ``off``.",
    ramfb="``on`` or ``off``.",
)
class Shown(NamedTuple):
    """What an mdev is to QEMU, and whether it has a display (X3); None leaves the attribute out."""

    model: str | None = None
    display: str | None = None
    ramfb: str | None = None


@documented(
    address="The guest address.",
    multifunction=(
        "True on guest function 0 of a shared slot, False on the others of it, None where nothing is shared (P1)."
    ),
)
class GuestPlace(NamedTuple):
    """Where a function is in the guest."""

    address: GuestAddress
    multifunction: bool | None = None


@documented(
    attachment="The function, its role and why it is here.",
    alias="Empty where a hostdev that is kept has none.",
    guest="The guest address that we give it or that it had; None leaves it to libvirt (P3).",
    shown="Model and display (X3); None where there is nothing to say.",
    managed="Whether libvirt binds it to vfio-pci and gives it back (X1).",
    iommufd=("What its ``<driver iommufd>`` says; where it is None the domain's ``<iommufd>`` counts (V2)."),
    rom=("``off``, ``on`` or the path of a file (X1); None leaves it to QEMU, which takes the card's own."),
    driver="The VFIO driver that its ``<driver model>`` says (X1).",
    nodeset="The guest's cells that its ``<acpi nodeset>`` says (P7); None for none.",
)
class PlannedFunction(NamedTuple):
    """One hostdev, decided to the last attribute."""

    attachment: Attachment
    alias: str
    guest: GuestPlace | None
    shown: Shown | None
    managed: bool
    iommufd: bool | None = None
    rom: str | None = None
    driver: str | None = None
    nodeset: frozenset[int] | None = None

    @property
    def source(self) -> HostAddress:
        return self.attachment.source


@documented(
    kind="``pci``, ``mdev`` or ``usb``.",
    functions="The primary first.",
    stayed="Functions of its slot or group that are not attached.",
    kept=("A hostdev of the document that nobody asked about and that nothing joins: it stays byte for byte (X1)."),
)
class PlannedDevice(NamedTuple):
    """A unit of the plan: its hostdevs, the primary's first."""

    kind: Kind
    functions: tuple[PlannedFunction, ...]
    stayed: tuple[StayedBehind, ...]
    kept: bool = False

    @property
    def primary(self) -> PlannedFunction:
        return self.functions[0]


@documented(
    address="Of the function.",
    driver="The kernel driver that it is bound to; None for none.",
    attached="Whether it goes to the guest.",
    bridge="Whether it is a bridge, by its header.",
)
class GroupMember(NamedTuple):
    """A member of a touched IOMMU group."""

    address: PciAddress
    driver: str | None
    attached: bool
    bridge: bool


@documented(
    number="Of the IOMMU group.",
    members="All its functions that are known.",
)
class TouchedGroup(NamedTuple):
    """An IOMMU group that VFIO will hold as a whole."""

    number: int
    members: tuple[GroupMember, ...]


@documented(
    need="What firmware takes for the BARs of all attached functions.",
    hole="The ``<pcihole64>`` that is written; None for none.",
    pass_bits="Whether ``<maxphysaddr mode='passthrough'/>`` is written.",  # noqa: S106  # no password
    root="The model of the controller that has it: ``pcie-root`` or ``pci-root``.",
)
class Window(NamedTuple):
    """The 64-bit window that the attached devices need, and what is written for it. Sizes are bytes."""

    need: int
    hole: int | None
    pass_bits: bool
    root: str


@documented(
    devices="What the guest gets, in the order of the requests; a `PlannedDevice` each.",
    controllers="PCI controllers that are added (P2).",
    groups="IOMMU groups that VFIO will hold, by number, with all their members.",
    nodes="Paths of the device nodes that QEMU will open (V2).",
    left_alone="Primaries that the environment holds beyond the requests (C4).",
    window="The 64-bit PCI window that is needed and what is written for it; None where the default has room (P5).",
    iommufd="Whether a PCI function goes through iommufd, its node among those that QEMU opens (V2).",
    cells="Numbers of the guest's NUMA cells that are added, without CPUs and memory (P7).",
)
class Plan(NamedTuple):
    """All that is going to be done, in the order of the requests."""

    devices: tuple[PlannedDevice, ...]
    controllers: tuple[Controller, ...]
    groups: tuple[TouchedGroup, ...]
    nodes: tuple[str, ...]
    left_alone: tuple[HostAddress, ...]
    iommufd: bool
    window: Window | None = None
    cells: tuple[int, ...] = ()

    @property
    def initiators(self) -> tuple[HostAddress, ...]:
        """Functions that have cells of the guest (P7)."""
        return tuple([each.source for device in self.devices for each in device.functions if each.nodeset is not None])

    @property
    def root_ports(self) -> tuple[int, ...]:
        """Indices of the ``pcie-root-port`` controllers that are added."""
        return tuple([each.number for each in self.controllers if each.model == "pcie-root-port" and each.number])
