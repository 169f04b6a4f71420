"""The plan: what was requested, which device answers, and where in the guest it goes."""

from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple, TypeAlias

from launcherkit.model.address import GuestAddress, HostAddress, PciAddress
from launcherkit.model.domain import Controller, DomainFacts
from launcherkit.model.request import Kind, Section, SriovInterface

Role: TypeAlias = Literal["primary", "sibling", "reserved"]
"""A reserved function belongs to the domain and is not shown to the guest (S1)."""
Origin: TypeAlias = Literal["vmi", "environment", "domain"]
"""Who asked: the VMI, only the environment (Q1), or a hostdev of the document (Q2)."""


class Match(NamedTuple):
    """A request and the address that answers it.

    Attributes:
        origin: Who asked: ``vmi``, ``environment`` (Q1) or ``domain`` (Q2).
        section: ``gpus``, ``hostDevices`` or ``interfaces``.
        name: The request's name.
        resource: Its ``deviceName``; None for a request by DRA claim, and for one that no VMI makes.
        variable: The variable or metadata file that answers it; None for a hostdev of the document.
        primary: The address that answers it.
        asked: False for a hostdev of the document without any request's alias: nobody asked about it (X1).
        rom: ``on`` or ``off`` if the driver of a DRA claim says whether the guest sees the ROM (E5).
        sriov: What the request has besides, if it is an SR-IOV interface of a VMI (Q5).
    """

    origin: Origin
    section: Section
    name: str
    resource: str | None
    variable: str | None
    primary: HostAddress
    asked: bool = True
    rom: str | None = None
    sriov: SriovInterface | None = None

    @property
    def by_claim(self) -> bool:
        """Whether a DRA claim answers it, not a resource (E5); an interface's alias is the same either way."""
        return self.origin == "vmi" and self.resource is None and self.sriov is None


class Attachment(NamedTuple):
    """A function that the domain gets, before its place in the guest is known.

    Attributes:
        source: Its address on the host.
        role: ``primary``, ``sibling`` or ``reserved``.
        why: Why it is attached, in words.
        match: The request that names it; a sibling may have one of its own (C5).
        hostdev: Its index among the document's hostdevs; None for one to be added (X2).
        replaces: The source that this hostdev has in the document, if another device was allocated for its
            request (X2).
    """

    source: HostAddress
    role: Role
    why: str
    match: Match | None
    hostdev: int | None
    replaces: HostAddress | None = None


def guest_functions(card: Sequence[Attachment]) -> list[tuple[int, HostAddress]]:
    """Function numbers in the guest: the host's if the lowest is 0, else numbers from 0 on (P1)."""
    numbers = {each.source.function: each.source for each in card if isinstance(each.source, PciAddress)}
    sources = sorted(numbers.items())
    if 0 in numbers:
        return [*sources]
    return [*enumerate([source for _, source in sources] or [card[0].source])]


class NotAttached(NamedTuple):
    """A function of the primary's slot or group that is not attached, and why.

    Attributes:
        address: The function's.
        why: Why it is not attached, in words.
    """

    address: PciAddress
    why: str


def is_seen(attachment: Attachment, domain: DomainFacts) -> bool:
    """Whether the guest sees a function, so that QEMU opens it: it isn't reserved, nor its address ``unassigned``."""
    hostdev = None if attachment.hostdev is None else domain.hostdevs[attachment.hostdev]
    return attachment.role != "reserved" and not (hostdev is not None and hostdev.placed and hostdev.guest is None)


class GuestDevice(NamedTuple):
    """One device of the guest: a primary and its siblings.

    Attributes:
        kind: ``pci``, ``mdev`` or ``usb``.
        attachments: The primary first.
        not_attached: Functions of its slot or group that are not attached.
    """

    kind: Kind
    attachments: tuple[Attachment, ...]
    not_attached: tuple[NotAttached, ...] = ()

    @property
    def primary(self) -> Attachment:
        return self.attachments[0]

    @property
    def kept(self) -> bool:
        """Whether nobody asked about the hostdev, and it gets no sibling: it stays as it is (X1)."""
        if len(self.attachments) > 1 or self.primary.hostdev is None:
            return False
        match = self.primary.match
        return match is not None and not match.asked


class Shown(NamedTuple):
    """The attributes for an mdev's model and display (X3); None leaves an attribute out.

    Attributes:
        model: The hostdev's ``model``: the mdev's device API.
        display: ``on`` or ``off``.
        ramfb: ``on`` or ``off``.
    """

    model: str | None = None
    display: str | None = None
    ramfb: str | None = None


class GuestPlace(NamedTuple):
    """Where a function is in the guest.

    Attributes:
        address: The guest address.
        multifunction: True on guest function 0 of a shared slot, False on its other functions, None if the slot
            isn't shared (P1).
    """

    address: GuestAddress
    multifunction: bool | None = None


class PlannedFunction(NamedTuple):
    """One hostdev, with everything decided.

    Attributes:
        attachment: The function, its role and why it is attached.
        alias: Empty if a kept hostdev has none.
        guest: Its guest address, new or already in the document; None leaves it to libvirt (P3).
        shown: Model and display (X3); None for neither.
        managed: Whether libvirt binds it to vfio-pci and gives it back (X1).
        iommufd: Its ``<driver iommufd>``; if None, the domain's ``<iommufd>`` applies (V2).
        rom: ``off``, ``on`` or the path of a file (X1); None leaves it to QEMU, which takes the card's own.
        driver: The VFIO driver for its ``<driver model>`` (X1).
        nodeset: The guest's cells for its ``<acpi nodeset>`` (P7); None for none.
    """

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
        """Its address on the host."""
        return self.attachment.source

    @property
    def boot_order(self) -> int | None:
        """Its ``<boot order>``, which only an SR-IOV interface asks for (Q5)."""
        match = self.attachment.match
        return None if match is None or match.sriov is None else match.sriov.boot_order


class PlannedDevice(NamedTuple):
    """A device of the plan: its hostdevs, the primary's first.

    Attributes:
        kind: ``pci``, ``mdev`` or ``usb``.
        functions: The primary first.
        not_attached: Functions of its slot or group that are not attached.
        kept: Whether nobody asked about the hostdev, and it gets no sibling: it stays as it is (X1).
    """

    kind: Kind
    functions: tuple[PlannedFunction, ...]
    not_attached: tuple[NotAttached, ...]
    kept: bool = False

    @property
    def primary(self) -> PlannedFunction:
        """The first of its functions."""
        return self.functions[0]


class GroupMember(NamedTuple):
    """A member of a touched IOMMU group.

    Attributes:
        address: The function's.
        driver: The kernel driver to which it is bound; None for none.
        attached: Whether it goes to the guest.
        bridge: Whether it is a bridge, by its header.
    """

    address: PciAddress
    driver: str | None
    attached: bool
    bridge: bool


class TouchedGroup(NamedTuple):
    """An IOMMU group that VFIO will hold as a whole.

    Attributes:
        number: The IOMMU group's.
        members: All its known functions.
    """

    number: int
    members: tuple[GroupMember, ...]


class Window(NamedTuple):
    """The 64-bit window that the attached devices need, and what is written for it.

    Attributes:
        need: Bytes that firmware takes for the BARs of all attached functions.
        hole: Bytes of the ``<pcihole64>`` to write; None for none.
        pass_bits: Whether ``<maxphysaddr mode='passthrough'/>`` is written.
        root: The model of the controller that gets it: ``pcie-root`` or ``pci-root``.
    """

    need: int
    hole: int | None
    pass_bits: bool
    root: str


class Plan(NamedTuple):
    """All decisions of a translation.

    Attributes:
        devices: The devices that the guest gets, in the order of the requests.
        controllers: PCI controllers to add (P2).
        groups: IOMMU groups that VFIO will hold, by number, with all their members.
        nodes: Paths of the device nodes that QEMU will open (V2).
        not_attached: Primaries that the environment holds beyond the requests (C4).
        window: The 64-bit PCI window, and what is written for it; None if the default has room (P5).
        iommufd: Whether a PCI function goes through iommufd, so that QEMU opens its node (V2).
        cells: Numbers of the guest's NUMA cells to add, without CPUs and memory (P7).
        removed: Former siblings of a device that was replaced: the index and the source of each hostdev to
            remove (X2).
        cliques: The clique of each GPU of NVIDIA's for peer-to-peer DMA; None for one that shares none (P8).
            Empty unless the policy asks for them.
        smmus: Indices of the ``pcie-expander-bus`` controllers that get an SMMUv3 (P9).
        distances: The distances from each NUMA cell of the guest to each, itself included (P10).
    """

    devices: tuple[PlannedDevice, ...]
    controllers: tuple[Controller, ...]
    groups: tuple[TouchedGroup, ...]
    nodes: tuple[str, ...]
    not_attached: tuple[HostAddress, ...]
    iommufd: bool
    window: Window | None = None
    cells: tuple[int, ...] = ()
    removed: tuple[tuple[int, HostAddress], ...] = ()
    cliques: Mapping[HostAddress, int | None] = {}
    smmus: tuple[int, ...] = ()
    distances: Mapping[int, Mapping[int, int]] = {}

    @property
    def initiators(self) -> tuple[HostAddress, ...]:
        """Functions that get cells of the guest (P7)."""
        return tuple([each.source for device in self.devices for each in device.functions if each.nodeset is not None])

    @property
    def root_ports(self) -> tuple[int, ...]:
        """Indices of the ``pcie-root-port`` controllers to add."""
        return tuple([each.number for each in self.controllers if each.model == "pcie-root-port" and each.number])


class Note(NamedTuple):
    """A remark for the operator.

    Attributes:
        topic: A stable word to filter by: ``repeat``, ``left-alone``, ...
        text: One line.
    """

    topic: str
    text: str

    def __str__(self) -> str:
        return self.text
