"""What the operator may decide. Values only; files and flags are read in `launcherkit.sources`."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Self, TypeAlias

from launcherkit.errors import BadPolicy, shown
from launcherkit.model.address import PciAddress
from launcherkit.model.function import is_vfio_name

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


class AliasPrefixes(NamedTuple):
    """Prefixes of aliases, before the request's name (X1); libvirt keeps only aliases that begin with ``ua-``.

    Attributes:
        gpu: For ``gpus``.
        hostdevice: For ``hostDevices``.
        usb: For USB devices.
    """

    gpu: str = "ua-gpu-"
    hostdevice: str = "ua-hostdevice-"
    usb: str = "ua-usb-host-"


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

    Attributes:
        siblings: Which sibling functions are attached (S1).
        pairing: How addresses answer requests: by class (C2), or by position as in KubeVirt (C4).
        managed: ``managed`` of added hostdevs (X1).
        alias_prefixes: Prefixes of aliases, before the request's name (X1).
        extra_prefixes: Further prefixes of variables with PCI addresses, without the last underscore, such as
            ``PCIDEVICE`` (E1).
        sysfs_root: The directory with the host's ``sys/`` and ``dev/``.
        node_check: Whether device nodes must exist (V2); ``auto``: if the variables are set, as where the VM
            runs.
        annotations: Whether a VMI's annotation may narrow the rest (T1).
        topology: How the guest's PCIe tree follows the host's (P4).
        iommufd: Whether functions go to VFIO through iommufd if the document doesn't say; ``auto``: by the
            nodes (V2).
        rom: ``off``, ``on`` or the path of a ROM file, by address or by ``vendor:device``.
        driver: The VFIO driver for libvirt to use, by address or by ``vendor:device``.
        generic_initiators: Whether Grace's GPUs get cells for their memory in the guest (P7).

    Raises:
        BadPolicy: a value isn't one of the decision's, such as ``managed="no"``, which would count as yes.
    """

    __slots__ = ()

    if not TYPE_CHECKING:  # type checkers take the signature from the fields

        def __new__(cls, *values: Any, **named: Any) -> Self:
            policy = super().__new__(cls, *values, **named)
            for field, problem, remedy in _problems(policy):
                raise BadPolicy(f"policy, {field}: {problem}", remedy, key=field)
            return policy

        @classmethod
        def _make(cls, values: Any) -> Self:
            return cls(*values)


ALIAS_PREFIX_RULE = "libvirt keeps only aliases that begin with ua-, with letters, digits, - and _ after it."
VARIABLE_PREFIX_RULE = "A prefix has upper case letters, digits and underscores, such as PCIDEVICE."
FUNCTION_RULE = "A function is named by its address, 0000:65:00.0, or by vendor and device, 10de:2342."
ROM_RULE = "A ROM is on, off or the absolute path of a file."
DRIVER_RULE = "A VFIO driver's name ends in vfio_pci, as nvgrace_gpu_vfio_pci does."


def is_alias_prefix(text: object) -> bool:
    """Whether it begins with ``ua-`` and contains only what an alias may."""
    return (
        isinstance(text, str)
        and text.startswith("ua-")
        and text.isascii()
        and text.replace("-", "").replace("_", "").isalnum()
    )


def is_variable_prefix(text: object) -> bool:
    """Whether it has only upper case letters, digits and underscores, a letter first."""
    return (
        isinstance(text, str)
        and text.isascii()
        and text.replace("_", "").isalnum()
        and text == text.upper()
        and text[:1].isalpha()
    )


def is_function(text: object) -> bool:
    """Whether it is an address as in sysfs, or vendor and device as ``vvvv:dddd``, in lower case."""
    if not isinstance(text, str):
        return False
    parts = text.split(":")
    if len(parts) == 2:
        return all(len(part) == 4 and set(part) <= set("0123456789abcdef") for part in parts)
    try:
        return str(PciAddress.parse(text)) == text
    except ValueError:
        return False


def is_rom(text: object) -> bool:
    """Whether it is ``on``, ``off`` or an absolute path."""
    return isinstance(text, str) and (text in ("on", "off") or (text.startswith("/") and text.isprintable()))


def is_driver(text: object) -> bool:
    """Whether it names vfio-pci or a variant."""
    return (
        isinstance(text, str)
        and is_vfio_name(text)
        and text.isascii()
        and text.replace("_", "").replace("-", "").isalnum()
    )


def _problems(policy: _Decisions) -> Iterator[tuple[str, str, str]]:
    """Each wrong decision: its name, what is wrong, and what is valid."""
    for field, choices in _CHOICES.items():
        value = getattr(policy, field)
        if not any(value is choice or (value == choice and isinstance(value, str)) for choice in choices):
            valid = "Give one of them, or leave it out for the default."
            yield field, f"{shown(value)} is none of {', '.join(map(str, choices))}", valid
    prefixes: object = policy.alias_prefixes
    if not isinstance(prefixes, AliasPrefixes):
        yield "alias_prefixes", f"{shown(prefixes)} is not an AliasPrefixes", ALIAS_PREFIX_RULE
    elif wrong := [each for each in prefixes if not is_alias_prefix(each)]:
        yield "alias_prefixes", f"{shown(wrong[0])} is not a prefix of aliases", ALIAS_PREFIX_RULE
    extra: object = policy.extra_prefixes
    if not isinstance(extra, tuple):
        yield "extra_prefixes", f"{shown(extra)} is not a tuple", VARIABLE_PREFIX_RULE
    elif wrong := [each for each in extra if not is_variable_prefix(each)]:
        yield "extra_prefixes", f"{shown(wrong[0])} is not a prefix of variables", VARIABLE_PREFIX_RULE
    root: object = policy.sysfs_root
    if not isinstance(root, str) or not root:
        yield "sysfs_root", f"{shown(root)} is not a path", "Give the directory with the host's sys/ and dev/."
    for field, is_value, rule in (("rom", is_rom, ROM_RULE), ("driver", is_driver, DRIVER_RULE)):
        values: object = getattr(policy, field)
        if not isinstance(values, Mapping):
            yield field, f"{shown(values)} is not a mapping", f"{FUNCTION_RULE} {rule}"
            continue
        for function, value in values.items():
            if not is_function(function) or not is_value(value):
                yield field, f"{shown(function)}: {shown(value)}", f"{FUNCTION_RULE} {rule}"


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
