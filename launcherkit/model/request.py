"""Requests, and the variables that answer them: names (E1, E2) and contents."""

from collections.abc import Mapping
from typing import Literal, NamedTuple, TypeAlias

from launcherkit.model.address import GuestAddress, HostAddress, MdevAddress, PciAddress

Section: TypeAlias = Literal["gpus", "hostDevices", "interfaces"]
Kind: TypeAlias = Literal["pci", "mdev", "usb"]


def kind_of(address: HostAddress) -> Kind:
    """The type of hostdev for an address."""
    return "pci" if isinstance(address, PciAddress) else "mdev" if isinstance(address, MdevAddress) else "usb"


class DisplayOptions(NamedTuple):
    """``virtualGPUOptions.display`` of a gpu; None for keys that aren't set."""

    enabled: bool | None
    ramfb: bool | None


class DraClaim(NamedTuple):
    """The DRA claim that answers a request (E5)."""

    kind: Literal["claim", "template"]
    name: str
    """The ResourceClaim's, or, if it was made from a template, its name within the pod."""
    request_name: str
    """That of the request in the claim."""

    def __str__(self) -> str:
        return f"{self.kind} {self.name}/{self.request_name}"


class SriovInterface(NamedTuple):
    """What an SR-IOV interface of a VMI has besides its name.

    Attributes:
        attachment: The NetworkAttachmentDefinition of its network, ``namespace/name`` or ``name``; None if it
            has none.
        guest: Its ``pciAddress``, the place in the guest.
        boot_order: Its ``bootOrder``, from 1 on.
    """

    attachment: str | None = None
    guest: GuestAddress | None = None
    boot_order: int | None = None


class Request(NamedTuple):
    """One entry of ``spec.domain.devices.gpus`` or ``hostDevices``, or of ``interfaces`` with ``sriov`` (Q1, Q5)."""

    section: Section
    position: int
    name: str
    resource: str | None
    """``deviceName``; None for a request that a DRA claim answers (E5), and for an interface if it isn't known (Q5)."""
    display: DisplayOptions | None = None
    dra_claim: DraClaim | None = None
    sriov: SriovInterface | None = None

    @property
    def key(self) -> str:
        """The key of its allocation: the resource, the claim, or the interface."""
        if self.is_network:
            return f"{self.section} {self.name}"
        return str(self.dra_claim) if self.resource is None else self.resource

    @property
    def is_network(self) -> bool:
        """Whether it is an SR-IOV interface that ``PCIDEVICE_<R>`` answers (Q5), not a DRA claim."""
        return self.sriov is not None and self.dra_claim is None

    @property
    def path(self) -> str:
        return f"spec.domain.devices.{self.section}[{self.position}]"


class Allocation(NamedTuple):
    """The entries of a variable, or of a DRA claim's metadata, without repeats (E3)."""

    variable: str
    """Its name; for a DRA claim, the path of the metadata."""
    suffix: str
    """``<R>`` in the variable's name, which stands for the resource (E1)."""
    kind: Kind
    entries: tuple[HostAddress, ...]
    devices: tuple[HostAddress, ...] = ()
    """The entries that are devices of their own, for a DRA claim and a network; else that is worked out (C2)."""
    roms: Mapping[HostAddress, Literal["on", "off"]] = {}
    """For a DRA claim, the devices whose driver says whether the guest sees their ROM."""


KIND_OF_PREFIX: dict[str, Kind] = {"MDEV_PCI_RESOURCE": "mdev", "PCI_RESOURCE": "pci", "USB_RESOURCE": "usb"}
"""In the order in which they are tried."""


def kinds_of_prefixes(extra_prefixes: tuple[str, ...] = ()) -> dict[str, Kind]:
    """The kind of address for each prefix, in the order of trial; prefixes of a policy hold PCI addresses."""
    return KIND_OF_PREFIX | {prefix: "pci" for prefix in extra_prefixes if prefix not in KIND_OF_PREFIX}


def resource_suffix(resource: str) -> str:
    """The part of a variable's name for a resource: ``nvidia.com/A-1`` gives ``NVIDIA_COM_A-1``.

    Several resources may have the same, so it can't be reversed (E2).
    """
    return resource.upper().replace("/", "_").replace(".", "_")
