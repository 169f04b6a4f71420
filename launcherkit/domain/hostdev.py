"""The XML of a hostdev: its attributes and addresses, in tables that reading and writing share (X1)."""

from __future__ import annotations

from typing import TypeGuard

from lxml import etree

from launcherkit.errors import BAD_HOSTDEV, BadInput
from launcherkit.model.address import (
    GuestAddress,
    HostAddress,
    MdevAddress,
    PciAddress,
    UsbAddress,
    UsbModel,
    format_cpuset,
    parse_cpuset,
)
from launcherkit.model.domain import ExistingHostdev
from launcherkit.model.plan import Shown
from launcherkit.model.request import Kind

_PCI = (("domain", 0xFFFFFFFF, 4), ("bus", 0xFF, 2), ("slot", 0x1F, 2), ("function", 7, 1))
"""The attributes of a PCI address, of the host or of the guest: name, highest value, least number of hex digits."""
PCI_PATTERN = " ".join([f"{name}='0x%0{digits}x'" for name, _, digits in _PCI])
"""Its attributes without its type, in single quotes, to be filled with a `PciAddress` or `GuestAddress` by ``%``."""
_USB = (("bus", 999), ("device", 999))
"""The same for a USB address, in decimal."""
SOURCE_PATTERNS: dict[Kind, str] = {
    "pci": PCI_PATTERN,
    "mdev": "uuid='%s'",
    "usb": " ".join([f"{name}='%s'" for name, _ in _USB]),
}
"""The attributes of ``<source><address>`` by kind, in single quotes, to be filled with the fields of an address."""
_REMEDY = "Write the address as libvirt's formatdomain has it, or leave the hostdev out: a request adds it."


class Parts:
    """The children of a device that identify and place it.

    If one is there twice, which libvirt's schema refuses, the first counts.
    """

    def __init__(self, device: etree._Element) -> None:
        first: dict[object, etree._Element] = {}
        for child in device:
            first.setdefault(child.tag, child)
        address, alias, acpi = first.get("address"), first.get("alias"), first.get("acpi")
        self.guest = None if address is None else read_guest_address(address)
        self.placed = self.guest is not None or (address is not None and address.get("type") != "pci")
        """It has an ``<address>`` of any type that gives a place."""
        self.alias = None if alias is None else alias.get("name")
        self.source = first.get("source")
        self.driver = first.get("driver")
        self.nodeset = None if acpi is None else read_cpuset(acpi.get("nodeset")) or None
        """Of its ``<acpi>``."""


def read_hostdev(device: etree._Element, kind: Kind, source: HostAddress | None, parts: Parts) -> ExistingHostdev:
    """A hostdev of the document.

    Args:
        device: its element.
        kind: from `kind_of_element`.
        source: from `read_source`.
        parts: its children.
    """
    return ExistingHostdev(
        kind=kind,
        source=source,
        alias=parts.alias,
        guest=parts.guest,
        placed=parts.placed,
        managed=device.get("managed") or None,  # KubeVirt has written empty ones, which libvirt refuses
        display=device.get("display") or None,
        ramfb=device.get("ramfb") or None,
        iommufd=None if parts.driver is None else yes_or_no(parts.driver.get("iommufd")),
        nodeset=parts.nodeset,
    )


def hostdev_attributes(kind: Kind, managed: bool, shown: Shown | None) -> dict[str, str]:
    """The attributes that the ``<hostdev>`` tag itself must have."""
    fixed = {"mode": "subsystem", "type": kind, "managed": "yes" if managed else "no"}
    if shown is None:
        return fixed
    return fixed | {name: value for name, value in zip(Shown._fields, shown, strict=True) if value}


def pci_attributes(address: PciAddress | GuestAddress) -> list[tuple[str, str]]:
    """The attributes of a PCI address, without its type, as pairs of name and value."""
    return [(name, f"0x{value:0{digits}x}") for (name, _, digits), value in zip(_PCI, address, strict=True)]


def source_attributes(source: HostAddress) -> list[tuple[str, str]]:
    """The attributes of the ``<address>`` in a ``<source>``, as pairs of name and value."""
    if isinstance(source, PciAddress):
        return pci_attributes(source)
    if isinstance(source, UsbAddress):
        return [(name, str(value)) for (name, _), value in zip(_USB, source, strict=True)]
    return [("uuid", str(source))]


def is_same(present: str | None, value: str) -> bool:
    """Whether an attribute of an address has a value already, however its number is written; a missing one is 0."""
    return present == value or (number(value) is not None and number(present or "0") == number(value))


def read_pci_address(address: etree._Element) -> PciAddress:
    """The PCI address of a source.

    Raises:
        ValueError: an attribute is not a number, or too large.
    """
    return PciAddress(*[_limited(address, name, highest) for name, highest, _ in _PCI])


def read_guest_address(address: etree._Element) -> GuestAddress | None:
    """The PCI address in the guest; None for another type, and for 0000:00:00.0, which libvirt takes for none."""
    if address.get("type") != "pci":
        return None
    get = address.get
    numbers = [number(get(name, "0")) for name, _, _ in _PCI]
    if None in numbers or not any(numbers):
        return None
    return GuestAddress._make([each or 0 for each in numbers])


def yes_or_no(text: str | None) -> bool | None:
    """libvirt's ``virYesNo``; None for anything else."""
    return {"yes": True, "no": False}.get(text or "")


def kind_of_element(hostdev: etree._Element, source: etree._Element | None) -> Kind | None:
    """The kind of a hostdev; None for SCSI and the capabilities of containers, which launcherkit doesn't attach."""
    if (hostdev.get("mode") or "subsystem") != "subsystem":
        return None
    declared = hostdev.get("type")
    if declared:
        return declared if _is_kind(declared) else None
    address = None if source is None else source.find("address")
    if address is None:
        return None
    return "mdev" if address.get("uuid") else "usb" if address.get("device") else "pci"


def _is_kind(text: str) -> TypeGuard[Kind]:
    return text in ("pci", "mdev", "usb")


def read_source(kind: Kind, source: etree._Element | None, name: str, hostdev: int) -> HostAddress | None:
    """The source of a hostdev; None for a USB device that is named by its port.

    Args:
        kind: from `kind_of_element`.
        source: its element.
        name: what messages call the document.
        hostdev: its number in the document, counted from 1.

    Raises:
        BAD_HOSTDEV: there is no address, or it isn't one of that kind.
    """
    address = None if source is None else source.find("address")
    if kind == "usb" and address is not None and address.get("device") is None:
        return None  # named by its port, as newer libvirt can
    if address is None:
        if kind == "usb":
            return None if source is None else _usb_model(source)
        raise _bad_source(name, hostdev, "it has no <source><address/></source>")
    try:
        if kind == "mdev":
            return MdevAddress.parse(address.get("uuid", ""))
        if kind == "usb":
            return UsbAddress(*[_limited(address, name, highest) for name, highest in _USB])
        return read_pci_address(address)
    except ValueError as problem:
        shown = " ".join(f"{key!s}={value!r}" for key, value in address.items())
        raise _bad_source(name, hostdev, f"its source address {shown[:100]} is wrong: {problem}") from problem


def _bad_source(name: str, hostdev: int, fault: str) -> BadInput:
    key = f"hostdev {hostdev}"
    return BAD_HOSTDEV(f"{name}, {key}: {fault}", _REMEDY, file=name, key=key)


def _usb_model(source: etree._Element) -> UsbModel | None:
    vendor, product = source.find("vendor"), source.find("product")
    if vendor is None or product is None:
        return None
    return UsbModel(f"{vendor.get('id', '')}:{product.get('id', '')}")


def _limited(address: etree._Element, key: str, highest: int) -> int:
    text = address.get(key, "0")
    value = number(text)
    if value is None or value > highest:
        raise ValueError(f"{key} is not a number from 0 to {highest:#x}")
    return value


def number(text: str | None) -> int | None:
    """A number as libvirt reads it: C's strtoul with base 0, so ``010`` is 8."""
    digits = (text or "").lstrip(" \t\n\r").removeprefix("+")
    base = 16 if digits[:2] in ("0x", "0X") else 8 if digits[:1] == "0" and len(digits) > 1 else 10
    digits = digits[2:] if base == 16 else digits
    if not digits.isascii() or not digits.isalnum() or len(digits.lstrip("0")) > 16:
        return None
    try:
        return int(digits, base)
    except ValueError:
        return None


def read_cpuset(text: str | None) -> frozenset[int]:
    """A set of numbers; empty if it is missing or invalid."""
    try:
        return parse_cpuset(text or "")
    except ValueError:
        return frozenset()


def cpuset_text(numbers: frozenset[int]) -> str:
    """A set of numbers as libvirt writes it."""
    return format_cpuset(numbers)
