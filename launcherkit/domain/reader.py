"""Reads the facts that the rules need from a domain document."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from lxml import etree

from launcherkit.domain.assignment import DocumentDevice, find_unplaced
from launcherkit.domain.hostdev import (
    Parts,
    kind_of_element,
    number,
    read_hostdev,
    read_pci_address,
    read_source,
    yes_or_no,
)
from launcherkit.errors import BAD_HOSTDEV, BadInput, Collector
from launcherkit.model.address import GuestAddress, HostAddress, PciAddress
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
