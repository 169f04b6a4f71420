"""Reads the facts that the rules need from a domain document."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import TypeGuard

from lxml import etree

from launcherkit.domain.assignment import DocumentDevice, find_unplaced
from launcherkit.errors import BAD_HOSTDEV, BadInput, Collector
from launcherkit.model.address import (
    GuestAddress,
    HostAddress,
    MdevAddress,
    PciAddress,
    UsbAddress,
    UsbModel,
    number,
    read_cpuset,
)
from launcherkit.model.domain import (
    EXPANDERS,
    MACHINE_ROOTS,
    Controller,
    DomainFacts,
    ExistingHostdev,
    GuestCell,
    GuestTree,
    PciRoot,
)
from launcherkit.model.request import Kind

# The addresses of devices; what is written of them is in `launcherkit.domain.writer`.

PCI_ATTRIBUTES = (("domain", 0xFFFFFFFF, 4), ("bus", 0xFF, 2), ("slot", 0x1F, 2), ("function", 7, 1))
"""The attributes of a PCI address, of the host or of the guest: name, highest value, least number of hex digits."""
USB_ATTRIBUTES = (("bus", 999), ("device", 999))
"""The same for a USB address, in decimal."""


def read_pci_address(address: etree._Element) -> PciAddress:
    """The PCI address of a source.

    Raises:
        ValueError: an attribute is not a number, or too large.
    """
    return PciAddress(*[_limited(address, name, highest) for name, highest, _ in PCI_ATTRIBUTES])


def read_guest_address(address: etree._Element) -> GuestAddress | None:
    """The PCI address in the guest; None for another type, and for 0000:00:00.0, which libvirt takes for none."""
    if address.get("type") != "pci":
        return None
    get = address.get
    numbers = [number(get(name, "0")) for name, _, _ in PCI_ATTRIBUTES]
    if None in numbers or not any(numbers):
        return None
    return GuestAddress._make([each or 0 for each in numbers])


def _limited(address: etree._Element, key: str, highest: int) -> int:
    """The number in an attribute of an address; 0 if it is missing.

    Raises:
        ValueError: it is not a number, or too large.
    """
    text = address.get(key, "0")
    value = number(text)
    if value is None or value > highest:
        raise ValueError(f"{key} is not a number from 0 to {highest:#x}")
    return value


# The hostdevs.

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
        model=device.get("model") or None,
    )


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
            return UsbAddress(*[_limited(address, name, highest) for name, highest in USB_ATTRIBUTES])
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


# The PCI controllers, and the guest's PCI tree that they are (P2, P4).


def read_tree(root: etree._Element) -> GuestTree:
    """The guest's PCI tree in a ``<domain>``."""
    elements = root.iterfind("devices/controller[@type='pci']")
    return GuestTree([_read_controller(element, Parts(element).guest) for element in elements])


def _read_controller(element: etree._Element, guest: GuestAddress | None) -> Controller:
    index, model = number(element.get("index")), element.get("model", "")
    if model in EXPANDERS:
        target, node = element.find("target"), element.findtext("target/node", "")
        bus_number = None if target is None else number(target.get("busNr"))
        return Controller(index, model, guest, bus_number, number(node.strip()))
    return Controller(index, model, guest, 0 if model in MACHINE_ROOTS else None)


_PCIE_MACHINES = ("q35", "pc-q35", "virt", "sbsa")
_PCI_MACHINES = ("pc", "pc-i440fx", "i440fx")
_DEFAULT_MACHINE = {"x86_64": "pc", "i686": "pc", "aarch64": "virt", "riscv64": "virt", "loongarch64": "virt"}
_QEMU_DRIVERS = ("kvm", "qemu", "hvf")
_PLACED_BY_LIBVIRT = ("s390x", "s390", "ppc64", "ppc64le")


def read_facts(root: etree._Element, name: str = "the domain document") -> DomainFacts:
    """Facts about a parsed domain.

    Args:
        root: the ``<domain>`` element.
        name: what messages call the document.

    Raises:
        BAD_HOSTDEV: the source addresses of hostdevs are invalid; all such errors are raised together.
    """
    reader = _Reader(name)
    for device in _devices(root):
        reader.read(device)
    reader.errors.raise_if_any()
    arch, machine = _machine(root)
    pci_root = _pci_root(root.get("type"), arch, machine, reader.controllers)
    return DomainFacts(
        pci_root=pci_root,
        machine=f"{arch}/{machine}",
        controllers=tuple(reader.controllers),
        guest_addresses=frozenset(reader.used),
        has_graphics=reader.has_graphics,
        video_ramfb=reader.video_ramfb,
        aliases=frozenset(reader.aliases),
        hostdevs=tuple(reader.hostdevs),
        taken=frozenset(reader.taken),
        iommufd=_domain_iommufd(root),
        unplaced=find_unplaced(reader.seen, arch, machine, reader.used) if pci_root == "pcie" else (),
        cells=_cells(root),
        fdgroup=root.find("iommufd[@enabled='yes'][@fdgroup]") is not None,
    )


def _cells(root: etree._Element) -> tuple[GuestCell, ...]:
    if root.find("cpu/numa/cell") is None:
        return ()
    from launcherkit.domain.cells import read_cells  # few guests have any

    return read_cells(root)


def _domain_iommufd(root: etree._Element) -> bool | None:
    element = root.find("iommufd")
    return None if element is None else yes_or_no(element.get("enabled"))


def hostdev_elements(root: etree._Element) -> list[etree._Element]:
    """The elements behind `DomainFacts.hostdevs`, in the same order."""
    return [
        device
        for device in _devices(root)
        if device.tag == "hostdev" and kind_of_element(device, device.find("source")) is not None
    ]


def _devices(root: etree._Element) -> list[etree._Element]:
    """Every device; libvirt reads all ``<devices>`` if there are several."""
    return [device for devices in root.iterchildren("devices") for device in devices if isinstance(device.tag, str)]


class _Reader:
    """Collects facts from the devices of a document, one by one."""

    def __init__(self, name: str) -> None:
        self._name = name
        self.errors = Collector()
        self.seen: list[DocumentDevice] = []
        self.used: set[GuestAddress] = set()
        self.controllers: list[Controller] = []
        self.has_graphics = self.video_ramfb = False
        self.aliases: set[str] = set()
        self.hostdevs: list[ExistingHostdev] = []
        self.taken: set[PciAddress] = set()
        self._number_of: dict[HostAddress, int] = {}

    def read(self, device: etree._Element) -> None:
        """Read one device, by the method for its tag."""
        parts = Parts(device)
        if parts.guest is not None:
            self.used.add(parts.guest)
        self.seen.append((device, parts.placed, len(self.hostdevs)))
        if device.tag == "hostdev" and self._read_hostdev(device, parts):
            return
        if parts.alias is not None:
            self.aliases.add(parts.alias)
        read = _READERS.get(str(device.tag))
        if read is not None:
            read(self, device, parts)

    def _read_hostdev(self, device: etree._Element, parts: Parts) -> bool:
        """Read a hostdev; False for one that launcherkit doesn't attach, which counts as any other device."""
        kind = kind_of_element(device, parts.source)
        if kind is None:
            return False
        count, source = len(self.hostdevs) + 1, None
        try:
            source = read_source(kind, parts.source, self._name, count)
        except BadInput as error:
            self.errors.add(error)
        self.hostdevs.append(read_hostdev(device, kind, source, parts))
        if source is not None:
            first = self._number_of.setdefault(source, count)
            if first != count:
                self.errors.add(_twice(source, first, count, self._name))
        return True

    def controller(self, device: etree._Element, parts: Parts) -> None:
        if device.get("type") == "pci":
            self.controllers.append(_read_controller(device, parts.guest))

    def graphics(self, _device: etree._Element, _parts: Parts) -> None:
        self.has_graphics = True

    def video(self, device: etree._Element, _parts: Parts) -> None:
        self.video_ramfb |= any(model.get("type") == "ramfb" for model in device.iterchildren("model"))

    def interface(self, device: etree._Element, parts: Parts) -> None:
        """An SR-IOV interface uses a function of the host."""
        if device.get("type") == "hostdev" and parts.source is not None:
            self._add_taken(parts.source)

    def disk(self, device: etree._Element, parts: Parts) -> None:
        """An NVMe disk, or an NVMe drive that backs a disk, uses a function of the host."""
        if parts.source is not None:
            for source in device.iter("source"):
                if source.get("type") == "pci":
                    self._add_taken(source)

    def _add_taken(self, source: etree._Element) -> None:
        address = source.find("address")
        if address is not None:
            with suppress(ValueError):
                self.taken.add(read_pci_address(address))


_READERS: dict[str, Callable[[_Reader, etree._Element, Parts], None]] = {
    "controller": _Reader.controller,
    "graphics": _Reader.graphics,
    "video": _Reader.video,
    "interface": _Reader.interface,
    "disk": _Reader.disk,
}
"""The methods for devices other than hostdevs, by tag."""


def _twice(source: HostAddress, first: int, second: int, name: str) -> BadInput:
    """A source is a hostdev's identity (X2); libvirt refuses a second one with "Hostdev already exists"."""
    return BAD_HOSTDEV(
        f"{name}, hostdev {second}: hostdev {first} has the source {source} already",
        "Take one of them out; a device can be attached once.",
        file=name,
        key=f"hostdev {second}",
        device=str(source),
    )


def _machine(root: etree._Element) -> tuple[str, str]:
    type_ = root.find("os/type")
    arch = "x86_64" if type_ is None else type_.get("arch", "x86_64")
    machine = None if type_ is None else type_.get("machine")
    return arch, machine or _DEFAULT_MACHINE.get(arch, "")


def _pci_root(driver: str | None, arch: str, machine: str, controllers: list[Controller]) -> PciRoot:
    """The machine's PCI, by the root controller if the document has one, else by the machine (P2, P6)."""
    if arch in _PLACED_BY_LIBVIRT or driver not in _QEMU_DRIVERS:
        return "other"
    models = {controller.model for controller in controllers}
    if "pcie-root" in models:
        return "pcie"
    if "pci-root" in models:
        return "pci" if _is_machine(machine, _PCI_MACHINES) else "other"
    if _is_machine(machine, _PCIE_MACHINES):
        return "pcie"
    return "pci" if _is_machine(machine, _PCI_MACHINES) else "other"


def _is_machine(machine: str, families: tuple[str, ...]) -> bool:
    """``pc-q35-rhel9.4.0`` is of the family ``pc-q35``."""
    return machine in families or machine.startswith(tuple(family + "-" for family in families))
