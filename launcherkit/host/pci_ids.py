"""Finds the names of PCI devices in the table ``pci.ids``: the machine's, or one that comes with launcherkit.

The names are only for people, not for rules: a missing or malformed table gives no names and no error.
"""

from collections.abc import Iterable
from typing import NamedTuple, TypeVar

from launcherkit.model.host import PciFunction

PATHS = ("/usr/share/misc/pci.ids", "/usr/share/hwdata/pci.ids")
"""The paths on Debian and Fedora; the first that can be opened is read."""
BUNDLED = __file__.removesuffix("pci_ids.py") + "pci.ids"
"""A smaller table, whose date is in its first line."""
TABLES = (*PATHS, BUNDLED)
"""For what people read. Names of resources are made of an installed table alone: VMs request them (K6)."""

_Key = TypeVar("_Key")
_HEX = frozenset(b"0123456789abcdefABCDEF")
_LONGEST = 200
"""Longer names are cut to this number of characters."""


class PciNames(NamedTuple):
    """Names by number, only those that were asked for."""

    vendors: dict[int, str]
    devices: dict[tuple[int, int], str]
    """By vendor and device."""
    boards: dict[tuple[int, int, int, int], str]
    """By vendor, device, subsystem vendor and subsystem device."""
    classes: dict[int, str]
    """By 0xCC."""
    subclasses: dict[int, str]
    """By 0xCCSS."""

    def device(self, function: PciFunction) -> str | None:
        """``NVIDIA Corporation GA102 [GeForce RTX 3090]``; only the vendor if the device isn't known, else None."""
        vendor, device = self.vendors.get(function.vendor), self.devices.get(function.model)
        return f"{vendor} {device}" if vendor and device else vendor

    def board(self, function: PciFunction) -> str | None:
        """The name of the subsystem; None if the table lacks it."""
        return self.boards.get(_board(function))

    def class_(self, function: PciFunction) -> str | None:
        """``VGA compatible controller``; the base class if the subclass has no name."""
        return self.subclasses.get(function.class_code >> 8) or self.classes.get(function.class_code >> 16)


NO_NAMES = PciNames({}, {}, {}, {}, {})


def find_names(functions: Iterable[PciFunction], paths: Iterable[str] = PATHS) -> PciNames:
    """The names of these functions' vendors, devices, boards and classes, in one pass over the table.

    Args:
        functions: their names are wanted; without functions the table is not opened.
        paths: where the table may be.
    """
    listed = list(functions)
    for path in paths if listed else ():
        try:
            with open(path, "rb") as table:
                reader = _Reader(listed)
                reader.read(table)
                return reader.names
        except (OSError, ValueError):
            continue
    return NO_NAMES


class _Reader:
    """Goes through the lines once and keeps the wanted names.

    The part of a vendor or a class ends at the next line that is not indented, whatever it is: indented lines have a
    meaning only within their part.
    """

    def __init__(self, functions: list[PciFunction]) -> None:
        self.names = PciNames({}, {}, {}, {}, {})
        self._vendors = {function.vendor for function in functions}
        self._devices = {function.model for function in functions}
        self._boards = {_board(function) for function in functions}
        self._classes = {function.class_code >> 16 for function in functions}
        self._subclasses = {function.class_code >> 8 for function in functions}
        self._vendor: int | None = None
        self._class: int | None = None
        self._device: tuple[int, int] | None = None

    def read(self, lines: Iterable[bytes]) -> None:
        for line in lines:
            if line[:1] == b"\t":
                if self._vendor is not None:
                    self._read_in_vendor(line, self._vendor)
                elif self._class is not None and line[1:2] != b"\t":
                    number = _number(line[1:3])
                    if number is not None:
                        key = self._class << 8 | number
                        _keep(self.names.subclasses, key, self._subclasses, line[3:])
            elif line[:1] not in (b"#", b"\n", b"\r", b""):
                self._open(line)

    def _open(self, line: bytes) -> None:
        """A line that begins a part."""
        self._vendor = self._class = self._device = None
        if line[:2] == b"C ":
            number = _number(line[2:4])
            if _keep(self.names.classes, number, self._classes, line[4:]):
                self._class = number
        else:
            number = _number(line[:4])
            if _keep(self.names.vendors, number, self._vendors, line[4:]):
                self._vendor = number

    def _read_in_vendor(self, line: bytes, vendor: int) -> None:
        if line[1:2] != b"\t":
            number = _number(line[1:5])
            key = None if number is None else (vendor, number)
            self._device = key if _keep(self.names.devices, key, self._devices, line[5:]) else None
        elif self._device is not None:
            sub_vendor, sub_device = _number(line[2:6]), _number(line[7:11])
            if sub_vendor is not None and sub_device is not None:
                _keep(self.names.boards, (*self._device, sub_vendor, sub_device), self._boards, line[11:])


def _keep(names: dict[_Key, str], key: _Key | None, keys: set[_Key], text: bytes) -> bool:
    """Keep a name if its number is wanted; returns whether it is. The first one in the table counts."""
    if key is None or key not in keys or text[:1] not in (b" ", b"\t"):
        return False
    name = text.decode("utf-8", "replace").strip()[:_LONGEST]
    if name and name.isprintable():
        names.setdefault(key, name)
    return True


def _number(digits: bytes) -> int | None:
    return int(digits, 16) if digits and _HEX.issuperset(digits) else None


def _board(function: PciFunction) -> tuple[int, int, int, int]:
    return (*function.model, function.subsystem_vendor, function.subsystem_device)
