"""What the operator may decide. Values only; files and flags are read in `launcherkit.sources`."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, Self, TypeAlias

from launcherkit.errors import BadPolicy, shown
from launcherkit.model.address import PciAddress
from launcherkit.model.function import is_vfio_name
from launcherkit.model.value import NamedTuple, documented

Siblings: TypeAlias = Literal["slot", "group", "listed", "reserve", "none"]
Pairing: TypeAlias = Literal["class", "positional"]
NodeCheck: TypeAlias = Literal["auto", "always", "never"]
Iommufd: TypeAlias = Literal["auto", "yes", "no"]
Topology: TypeAlias = Literal["auto", "flat", "numa", "strict", "switches"]

SIBLINGS: tuple[Siblings, ...] = ("slot", "group", "listed", "reserve", "none")
PAIRING: tuple[Pairing, ...] = ("class", "positional")
NODE_CHECK: tuple[NodeCheck, ...] = ("auto", "always", "never")
IOMMUFD: tuple[Iommufd, ...] = ("auto", "yes", "no")
TOPOLOGY: tuple[Topology, ...] = ("auto", "flat", "numa", "strict", "switches")


@documented(
    gpu="For ``gpus``.",
    hostdevice="For ``hostDevices``.",
    usb="For USB devices.",
)
class AliasPrefixes(NamedTuple):
    """Prefixes of aliases, before the request's name (X1); libvirt keeps only aliases that begin with ``ua-``."""

    gpu: str = "ua-gpu-"
    hostdevice: str = "ua-hostdevice-"
    usb: str = "ua-usb-host-"


@documented(
    siblings="Which sibling functions are attached (S1).",
    pairing="How addresses answer requests: by class (C2), or by position as in KubeVirt (C4).",
    managed="``managed`` of added hostdevs (X1).",
    alias_prefixes="Prefixes of aliases, before the request's name (X1).",
    extra_prefixes=(
        "Further prefixes of variables with PCI addresses, without the last underscore, such as ``PCIDEVICE`` (E1)."
    ),
    sysfs_root="The directory with the host's ``sys/`` and ``dev/``.",
    node_check="Whether device nodes must exist (V2); ``auto``: if the variables are set, as where the VM runs.",
    annotations="Whether a VMI's annotation may narrow the rest (T1).",
    topology="How the guest's PCIe tree follows the host's (P4).",
    iommufd=("Whether functions go to VFIO through iommufd if the document doesn't say; ``auto``: by the nodes (V2)."),
    rom="``off``, ``on`` or the path of a ROM file, by address or by ``vendor:device``.",
    driver="The VFIO driver for libvirt to use, by address or by ``vendor:device``.",
    generic_initiators="Whether Grace's GPUs get cells for their memory in the guest (P7).",
)
class _Decisions(NamedTuple):
    siblings: Siblings = "slot"
    pairing: Pairing = "class"
    managed: bool = False
    alias_prefixes: AliasPrefixes = AliasPrefixes()
    extra_prefixes: tuple[str, ...] = ()
    sysfs_root: str = "/"
    node_check: NodeCheck = "auto"
    annotations: bool = True
    topology: Topology = "auto"
    iommufd: Iommufd = "auto"
    rom: Mapping[str, str] = {}
    driver: Mapping[str, str] = {}
    generic_initiators: bool = False


class Policy(_Decisions):
    """Decisions of the operator, each with its default.

    Raises:
        BadPolicy: a value isn't one of the decision's, such as ``managed="no"``, which would count as yes.
    """

    __slots__ = ()

    if not TYPE_CHECKING:  # type checkers take the signature from the fields

        def __new__(cls, *values: Any, **named: Any) -> Self:
            policy = super().__new__(cls, *values, **named)
            for field, choices in _CHOICES.items():
                value = getattr(policy, field)
                if not any(value is choice or (value == choice and isinstance(value, str)) for choice in choices):
                    raise BadPolicy(
                        f"policy, {field}: {shown(value)} is none of {', '.join(map(str, choices))}",
                        "Give one of them, or leave it out for the default.",
                        key=field,
                    )
            for field, is_value, rule in (("rom", is_rom, ROM_RULE), ("driver", is_driver, DRIVER_RULE)):
                for function, value in getattr(policy, field).items():
                    if not is_function(function) or not is_value(value):
                        raise BadPolicy(
                            f"policy, {field}: {shown(function)}: {shown(value)}",
                            f"{FUNCTION_RULE} {rule}",
                            key=field,
                        )
            return policy

        @classmethod
        def _make(cls, values: Any) -> Self:
            return cls(*values)


FUNCTION_RULE = "A function is named by its address, 0000:65:00.0, or by vendor and device, 10de:2342."
ROM_RULE = "A ROM is on, off or the absolute path of a file."
DRIVER_RULE = "A VFIO driver's name ends in vfio_pci, as nvgrace_gpu_vfio_pci does."


def is_function(text: str) -> bool:
    """Whether it is an address as in sysfs, or vendor and device as ``vvvv:dddd``, in lower case."""
    parts = text.split(":")
    if len(parts) == 2:
        return all(len(part) == 4 and set(part) <= set("0123456789abcdef") for part in parts)
    try:
        return str(PciAddress.parse(text)) == text
    except ValueError:
        return False


def is_rom(text: str) -> bool:
    """Whether it is ``on``, ``off`` or an absolute path."""
    return text in ("on", "off") or (text.startswith("/") and text.isprintable())


def is_driver(text: str) -> bool:
    """Whether it names vfio-pci or a variant."""
    return is_vfio_name(text) and text.isascii() and text.replace("-", "_").replace("_", "").isalnum()


_CHOICES: dict[str, tuple[object, ...]] = {
    "siblings": SIBLINGS,
    "pairing": PAIRING,
    "managed": (True, False),
    "node_check": NODE_CHECK,
    "topology": TOPOLOGY,
    "iommufd": IOMMUFD,
    "annotations": (True, False),
    "generic_initiators": (True, False),
}
