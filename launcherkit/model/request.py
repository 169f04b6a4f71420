"""Who asked for what, and which variables answer: their names (E1, E2) and what they hold."""

from collections.abc import Mapping
from typing import Literal, TypeAlias

from launcherkit.model.address import HostAddress, MdevAddress, PciAddress
from launcherkit.model.value import NamedTuple

Section: TypeAlias = Literal["gpus", "hostDevices"]
Kind: TypeAlias = Literal["pci", "mdev", "usb"]


def kind_of(address: HostAddress) -> Kind:
    """Which type of hostdev an address is of."""
    return "pci" if isinstance(address, PciAddress) else "mdev" if isinstance(address, MdevAddress) else "usb"


class DisplayOptions(NamedTuple):
    """``virtualGPUOptions.display`` of a gpu; None where the key is silent."""

    enabled: bool | None
    ramfb: bool | None


class DeviceClaim(NamedTuple):
    """The DRA claim that answers a request (E5)."""

    kind: Literal["claim", "template"]
    name: str
    """Of the ResourceClaim, or the pod's name of it where it was made from a template."""
    request: str
    """Which request of the claim."""

    def __str__(self) -> str:
        return f"{self.kind} {self.name}/{self.request}"


class Request(NamedTuple):
    """One entry of ``spec.domain.devices.gpus`` or ``hostDevices`` (Q1)."""

    section: Section
    position: int
    name: str
    resource: str | None
    """``deviceName``; None for one that is answered by a DRA claim (E5)."""
    display: DisplayOptions | None = None
    claim: DeviceClaim | None = None

    @property
    def key(self) -> str:
        """What its allocation goes by: the resource, or the claim."""
        return str(self.claim) if self.resource is None else self.resource

    @property
    def path(self) -> str:
        return f"spec.domain.devices.{self.section}[{self.position}]"


class Allocation(NamedTuple):
    """A variable of the environment and what it holds, repeats removed (E3)."""

    variable: str
    suffix: str
    """The ``<R>`` of the variable's name, which stands for the resource (E1)."""
    kind: Kind
    entries: tuple[HostAddress, ...]
    devices: tuple[HostAddress, ...] = ()
    """Of a DRA claim: which of the entries are devices of their own; of a variable that is found out (C2)."""
    roms: Mapping[HostAddress, Literal["on", "off"]] = {}
    """Of a DRA claim: devices whose driver says whether the guest sees their ROM."""


KIND_OF_PREFIX: dict[str, Kind] = {"MDEV_PCI_RESOURCE": "mdev", "PCI_RESOURCE": "pci", "USB_RESOURCE": "usb"}
"""In the order in which they are tried."""


def kinds_of_prefixes(extra_prefixes: tuple[str, ...] = ()) -> dict[str, Kind]:
    """Prefix to kind of address, in the order in which they are tried; those that a policy adds hold PCI addresses."""
    return KIND_OF_PREFIX | {prefix: "pci" for prefix in extra_prefixes if prefix not in KIND_OF_PREFIX}


def resource_suffix(resource: str) -> str:
    """What stands for a resource in a variable's name: ``nvidia.com/A-1`` gives ``NVIDIA_COM_A-1``.

    Not injective, so there is no way back (E2).
    """
    return resource.upper().replace("/", "_").replace(".", "_")
