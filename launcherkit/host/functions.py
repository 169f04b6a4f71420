"""Reads PCI functions from sysfs: who they are, and the details that rules need of the few they touch, or snapshots."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, TypeAlias

from launcherkit.errors import UnreadableFile
from launcherkit.host.tree import LARGE, Tree, is_about_one_file
from launcherkit.model.address import PciAddress
from launcherkit.model.host import Bar, PciDetail, PciFunction, PciLink, VgpuVf

# The identity of functions: ``uevent``, ``numa_node`` and two links, cheap enough for thousands.

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
        # The link itself: a VF whose physical function is going, or isn't in this tree, is still a VF.
        physfn = self.address(base_name(tree.link(prefix + "physfn")) or "")
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


# Their details.

_HEADER = 0x0C
"""The offset of the four bytes of config space with the header type. They are all ones only if no device answers, and
four bytes take only one read from the device, which can be slow."""


BarsOf: TypeAlias = Literal["all", "cards", "none"]
"""Whose BARs are read: those of all endpoints, or not those of HD audio, or of none."""


class DetailReader:
    """Reads details of PCI functions for one reading of the host."""

    __slots__ = ("_bars_of", "_cdevs", "_drivers", "_identities", "_modules")

    def __init__(
        self, drivers: Tree, identities: IdentityReader, *, cdevs: bool = True, bars_of: BarsOf = "all"
    ) -> None:
        """Without ``cdevs``, names of VFIO character devices aren't read."""
        self._cdevs = cdevs
        self._bars_of = bars_of
        self._drivers = drivers
        self._identities = identities
        self._modules: dict[str, str | None] = {}

    def needed(self, directory: Tree, function: PciFunction, parents: tuple[str, ...] = ()) -> PciDetail:
        """The details that rules need, from the function's directory, with ``parents``. The others stay empty."""
        power_state, header_type, config_readable = _power_and_config(directory)
        virtfns, numvfs, totalvfs = self._sriov(directory) if directory.exists("sriov_numvfs") else ((), None, None)
        module = None if function.driver is None else self._module(function.driver)
        vfio_dev = _vfio_dev(directory) if self._cdevs and function.driver is not None else None
        vgpu = None if function.physfn is None else vgpu_of(directory)
        bars = read_bars(directory.read("resource") or b"") if self._has_bars(function) else ()
        return PciDetail(  # without keywords in less than half the time
            None,  # revision
            header_type,
            config_readable,
            None,  # driver_override
            module,
            parents,
            virtfns,
            numvfs,
            totalvfs,
            bars,
            False,  # has_rom
            (),  # reset_methods
            power_state,
            vfio_dev,
            vgpu,
        )

    def whole(self, directory: Tree, function: PciFunction, link: str | None) -> PciDetail:
        """All details; ``link`` is the target of the function's entry in ``/sys/bus/pci/devices``."""
        needed = self.needed(directory, function, parents_of(link))
        return needed._replace(
            revision=hexadecimal(directory.read("revision"), 0xFF),
            driver_override=text(directory.read("driver_override")),
            resources=read_bars(directory.read("resource") or b"") if function.is_bridge_by_class else needed.resources,
            has_rom=directory.exists("rom"),
            reset_methods=tuple((text(directory.read("reset_method")) or "").split()),
            link=None if function.is_vf else read_link(directory),
        )

    def _has_bars(self, function: PciFunction) -> bool:
        if self._bars_of == "none" or function.is_bridge_by_class:
            return False
        return self._bars_of == "all" or not function.is_hd_audio

    def _sriov(self, directory: Tree) -> tuple[tuple[PciAddress, ...], int | None, int | None]:
        numvfs = number(directory.read("sriov_numvfs", 32))
        virtfns: list[PciAddress] = []
        for index in range(numvfs or 0):
            address = self._identities.address(base_name(directory.link(f"virtfn{index}")) or "")
            if address is None:
                break
            virtfns.append(address)
        return tuple(virtfns), numvfs, number(directory.read("sriov_totalvfs", 32))

    def _module(self, driver: str) -> str | None:
        try:
            return self._modules[driver]
        except KeyError:
            module = self._modules[driver] = base_name(self._drivers.link(driver + "/module"))
            return module


def _power_and_config(directory: Tree) -> tuple[str | None, int | None, bool]:
    """Power state, header type, and whether the device answers (V3). Anything unreadable is assumed to be good."""
    power_state, header = None, None
    try:
        power_state = text(directory.read("power_state", 32))
        if power_state == "D3cold":  # reading config space would wake it
            return power_state, None, True
        header = directory.read("config", 4, _HEADER)
    except UnreadableFile as problem:
        if not is_about_one_file(problem):
            raise
    if header is None or len(header) < 4:
        return power_state, None, True
    if header == b"\xff\xff\xff\xff":
        return power_state, None, False
    return power_state, header[2] & 0x7F, True


def read_link(directory: Tree) -> PciLink | None:
    """The link; functions that aren't PCIe lack the files, and those of a root complex have ``Unknown`` and 0."""
    speed = directory.read("current_link_speed", 32)
    if speed is None:
        return None
    link = PciLink(
        _speed(speed),
        _width(directory.read("current_link_width", 32)),
        _speed(directory.read("max_link_speed", 32)),
        _width(directory.read("max_link_width", 32)),
    )
    return None if link == _NO_LINK else link


_NO_LINK = PciLink(None, None, None, None)


def _speed(content: bytes | None) -> int | None:
    """From ``16.0 GT/s PCIe``, or ``8 GT/s`` with older kernels."""
    figure, _, unit = (content or b"").strip().partition(b" ")
    whole, _, tenth = figure.partition(b".")
    if not unit.startswith(b"GT/s") or not whole.isdigit() or not (tenth or b"0").isdigit() or len(figure) > 5:
        return None
    return int(whole) * 1000 + int(tenth[:1] or b"0") * 100


def _width(content: bytes | None) -> int | None:
    """The lanes; 0 means no link, and 255 that it couldn't be read."""
    lanes = number(content)
    return lanes if lanes and lanes <= 32 else None


def _vfio_dev(directory: Tree) -> str | None:
    if not directory.exists("vfio-dev"):
        return None
    return next((entry for entry in directory.names("vfio-dev") if entry.startswith("vfio")), None)


def vgpu_of(directory: Tree) -> VgpuVf | None:
    """The vGPU side of a VF, from its directory; None if it has none."""
    current = number(directory.read("nvidia/current_vgpu_type", 32))
    table = directory.read("nvidia/creatable_vgpu_types", LARGE)
    if current is None and table is None:
        return None
    if not current:
        return VgpuVf(0, _creatable(table or b""))
    # The driver chooses both when the type is set; before that reading them is an error.
    placement, instance = (number(directory.read(f"nvidia/{name}", 32)) for name in ("placement_id", "gpu_instance_id"))
    return VgpuVf(current, _creatable(table or b""), placement, None if instance == _NO_INSTANCE else instance)


_NO_INSTANCE = 0xFFFFFFFF
"""A vGPU that is not in a GPU instance."""


def _creatable(table: bytes) -> tuple[tuple[int, str], ...]:
    """Lines ``ID : name`` under a heading."""
    rows = []
    for line in table.decode(errors="replace").splitlines():
        key, colon, name = line.partition(":")
        key = key.strip()
        if colon and key.isascii() and key.isdigit() and len(key) < 10:
            rows.append((int(key), name.strip()))
    return tuple(rows)


_NOTHING = b"0x0000000000000000 0x0000000000000000 0x0000000000000000"
"""An empty line of the file, as most are."""
_NO_WINDOWS = (b"\n" + _NOTHING) * 6 + b"\n"
"""The end of the file of a function that has no windows for VFs."""


def read_bars(table: bytes) -> tuple[Bar, ...]:
    """From lines ``start end flags``; empty ones, which are all zeros, are left out."""
    bars = []
    for index, line in enumerate(table.removesuffix(_NO_WINDOWS).splitlines()):
        if line == _NOTHING:
            continue
        try:
            start, end, flags = [int(part, 16) for part in line.split()]
        except ValueError:
            continue
        if 0 < (start | end | flags) < 1 << 64:
            bars.append(Bar(index, start, end, flags))
    return tuple(bars)


def parents_of(link: str | None) -> tuple[str, ...]:
    """What is above a function, by its link: ``../../../devices/pci0000:e0/0000:e0:01.1/0000:e1:00.0`` has two."""
    _, marker, path = (link or "").partition("devices/")
    return tuple(path.split("/")[:-1]) if marker else ()
