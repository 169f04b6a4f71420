"""Reads the identity of PCI functions: ``uevent``, ``numa_node`` and two links, cheap enough for thousands."""

from __future__ import annotations

from collections.abc import Mapping

from launcherkit.host.tree import Tree
from launcherkit.model.address import PciAddress
from launcherkit.model.host import PciFunction

_Ids = tuple[int, int, int, int, int, str | None]

DEVICES = "sys/bus/pci/devices"
DRIVERS = "sys/bus/pci/drivers"


class IdentityReader:
    """Reads the identity of PCI functions for one reading of the host.

    Functions of a machine are much alike, so parsed texts are remembered for the life of this reader.
    """

    __slots__ = ("_addresses", "_buses", "_ids", "_nodes", "_numa", "_places")

    def __init__(self, addresses: Mapping[str, PciAddress] = {}, *, numa: bool = True) -> None:
        """Without ``numa``, NUMA nodes aren't read. One of ``addresses`` is returned as the same object."""
        self._numa = numa
        self._addresses = addresses  # mappings find the same object at once
        self._ids: dict[bytes, _Ids | None] = {}
        self._nodes: dict[bytes | None, int | None] = {}
        self._buses = {name[:-4]: address[:2] for name, address in self._addresses.items()}
        self._places: dict[str, tuple[int, int]] = {}

    def address(self, name: str) -> PciAddress | None:
        """The address that a directory entry names; None for anything that the kernel wouldn't write."""
        if name in self._addresses:
            return self._addresses[name]
        try:
            return PciAddress(*self._buses[name[:-4]], *self._places[name[-4:]])
        except KeyError:
            pass
        try:
            address = PciAddress.parse(name)
        except ValueError:
            return None
        if str(address) != name:
            return None
        self._buses[name[:-4]] = address[:2]
        self._places[name[-4:]] = address[2:]
        return address

    def read(self, tree: Tree, prefix: str, address: PciAddress) -> PciFunction | None:
        """The function whose files are at ``prefix`` in ``tree``; None if it doesn't exist or vanishes meanwhile.

        ``prefix`` is the directory's name with a slash, or empty if ``tree`` is the function's own directory.
        """
        uevent = tree.read(prefix + "uevent") or b""
        # The part before the slot name is the same for all functions of one model and driver.
        key = uevent.partition(b"PCI_SLOT_NAME=")[0]
        try:
            ids = self._ids[key]
        except KeyError:
            ids = self._ids[key] = _ids_of_uevent(key)
        if ids is None:
            ids = _ids_of_uevent(uevent) or _ids_of_files(tree, prefix)
            if ids is None:
                return None
        vendor, device, sub_vendor, sub_device, class_code, driver = ids
        if driver is None:  # trees made by hand may have only the link
            driver = base_name(tree.link(prefix + "driver"))
        node = tree.read(prefix + "numa_node", 32) if self._numa else None
        try:
            numa_node = self._nodes[node]
        except KeyError:
            numa_node = self._nodes[node] = number(node)
        group = group_number(tree.link(prefix + "iommu_group"))
        physfn = self.address(base_name(tree.link(prefix + "physfn")) or "") if tree.exists(prefix + "physfn") else None
        return PciFunction(
            address, vendor, device, sub_vendor, sub_device, class_code, driver, group, numa_node, physfn
        )


def _ids_of_files(tree: Tree, prefix: str) -> _Ids | None:
    """The slow way, if there is no ``uevent``, or the IDs are missing in it."""

    def read(name: str, largest: int) -> int | None:
        return hexadecimal(tree.read(prefix + name), largest)

    vendor, device = read("vendor", 0xFFFF), read("device", 0xFFFF)
    if vendor is None or device is None:
        return None
    sub_vendor, sub_device = read("subsystem_vendor", 0xFFFF) or 0, read("subsystem_device", 0xFFFF) or 0
    return vendor, device, sub_vendor, sub_device, read("class", 0xFFFFFF) or 0, None


def _ids_of_uevent(text: bytes) -> _Ids | None:
    """From lines ``DRIVER=x``, ``PCI_CLASS=30000``, ``PCI_ID=10DE:2204``, ``PCI_SUBSYS_ID=1458:403B``.

    None if one of them, except DRIVER, is missing or malformed.
    """
    values = dict(line.partition(b"=")[::2] for line in text.split(b"\n"))
    try:
        vendor, device = (int(part, 16) for part in values[b"PCI_ID"].split(b":"))
        sub_vendor, sub_device = (int(part, 16) for part in values[b"PCI_SUBSYS_ID"].split(b":"))
        class_code = int(values[b"PCI_CLASS"], 16)
    except (KeyError, ValueError):
        return None
    if not 0 <= class_code <= 0xFFFFFF or not all(
        0 <= part <= 0xFFFF for part in (vendor, device, sub_vendor, sub_device)
    ):
        return None
    driver = values.get(b"DRIVER")
    return vendor, device, sub_vendor, sub_device, class_code, driver.decode(errors="replace") if driver else None


def base_name(link: str | None) -> str | None:
    """The last component of a link's target."""
    return (link.rpartition("/")[2] or None) if link else None


def group_number(link: str | None) -> int | None:
    """The IOMMU group to which a link ``iommu_group`` points."""
    if link is None:
        return None
    name = link[link.rfind("/") + 1 :]
    return int(name) if name.isascii() and name.isdigit() and len(name) < 10 else None


def number(data: bytes | None) -> int | None:
    """The number in a decimal file; None if it is negative, which means unknown, or isn't a number."""
    digits = data.strip() if data else b""
    return int(digits) if digits.isdigit() and len(digits) < 10 else None


def hexadecimal(data: bytes | None, largest: int) -> int | None:
    """The number in a file such as ``0x10de``."""
    try:
        value = int(data, 16) if data else -1
    except ValueError:
        return None
    return value if 0 <= value <= largest else None


def text(data: bytes | None) -> str | None:
    """The text of a file of one line; None if it is empty or the kernel's ``(null)``."""
    line = data.decode(errors="replace").strip() if data else ""
    return line if line and line != "(null)" else None
