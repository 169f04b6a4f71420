"""The attributes of a hostdev and of its addresses, in tables that reading and writing share (X1)."""

from __future__ import annotations

from lxml import etree

from launcherkit.model.address import (
    GuestAddress,
    HostAddress,
    PciAddress,
    UsbAddress,
    format_cpuset,
    parse_cpuset,
)
from launcherkit.model.plan import Shown
from launcherkit.model.request import Kind

_PCI = (("domain", 0xFFFFFFFF, 4), ("bus", 0xFF, 2), ("slot", 0x1F, 2), ("function", 7, 1))
"""The attributes of a PCI address, of the host or of the guest: name, highest value, least number of hex digits."""
PCI_PATTERN = " ".join([f"{name}='0x%0{digits}x'" for name, _, digits in _PCI])
"""Its attributes without its type, in single quotes, to be filled with a `PciAddress` or `GuestAddress` by ``%``."""
USB_ATTRIBUTES = (("bus", 999), ("device", 999))
"""The same for a USB address, in decimal."""
SOURCE_PATTERNS: dict[Kind, str] = {
    "pci": PCI_PATTERN,
    "mdev": "uuid='%s'",
    "usb": " ".join([f"{name}='%s'" for name, _ in USB_ATTRIBUTES]),
}
"""The attributes of ``<source><address>`` by kind, in single quotes, to be filled with the fields of an address."""


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
        return [(name, str(value)) for (name, _), value in zip(USB_ATTRIBUTES, source, strict=True)]
    return [("uuid", str(source))]


def is_same(present: str | None, value: str) -> bool:
    """Whether an attribute of an address has a value already, however its number is written; a missing one is 0."""
    return present == value or (number(value) is not None and number(present or "0") == number(value))


def read_pci_address(address: etree._Element) -> PciAddress:
    """The PCI address of a source.

    Raises:
        ValueError: an attribute is not a number, or too large.
    """
    return PciAddress(*[limited_number(address, name, highest) for name, highest, _ in _PCI])


def read_guest_address(address: etree._Element) -> GuestAddress | None:
    """The PCI address in the guest; None for another type, and for 0000:00:00.0, which libvirt takes for none."""
    if address.get("type") != "pci":
        return None
    get = address.get
    numbers = [number(get(name, "0")) for name, _, _ in _PCI]
    if None in numbers or not any(numbers):
        return None
    return GuestAddress._make([each or 0 for each in numbers])


def limited_number(address: etree._Element, key: str, highest: int) -> int:
    """The number in an attribute of an address; 0 if it is missing.

    Raises:
        ValueError: it is not a number, or too large.
    """
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
