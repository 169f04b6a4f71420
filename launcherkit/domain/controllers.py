"""Finds the controllers that libvirt places: those of the document, and those that libvirt adds (P2)."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeAlias

from lxml import etree

from launcherkit.domain import elements
from launcherkit.domain.hostdev import number, read_cpuset
from launcherkit.domain.needs import GuestMachine, child_attribute, disk_bus, virtio
from launcherkit.domain.xml import Edit, Places, Style, append_children, indentation_of
from launcherkit.model.domain import GuestCell, Needs

Controllers: TypeAlias = Sequence[tuple[etree._Element, bool]]
"""The controllers of a document, each with whether it has an address."""

_HIGHEST_INDEX = 255
_DISKS = {"scsi": 7, "sata": 6}
"""How many disks libvirt puts on one controller, by bus."""
_XHCI = ("qemu-xhci", "nec-xhci")
_USB2 = ("ich9-ehci1", "ich9-uhci1", "ich9-uhci2", "ich9-uhci3")
_USB2_ON_Q35 = 2
"""How many USB2 controllers have slots of their own on q35's root bus: 1d and 1a."""


def bridges_to_place(controllers: Controllers) -> list[Needs]:
    """The PCI controllers that go behind a root port."""
    behind = ("pcie-to-pci-bridge", "pcie-switch-upstream-port")
    return ["pcie" for element, placed in controllers if not placed and element.get("model") in behind]


def controllers_to_place(
    controllers: Controllers, devices: Sequence[etree._Element], machine: GuestMachine
) -> Iterator[Needs]:
    """The slots for all other controllers, in libvirt's order.

    Args:
        controllers: every controller of the document.
        devices: every device of the document; libvirt adds controllers for some of them.
        machine: the domain's.
    """
    used: dict[str, set[int]] = {}
    usb2: dict[int, list[tuple[str, bool]]] = {}
    by_kind: dict[str, list[_Controller]] = {}
    for element, placed in controllers:
        kind, model = element.get("type", ""), element.get("model")
        numbers = used.setdefault(kind, set())
        number = _index(element.get("index"), numbers)
        if kind == "usb" and model in _USB2:
            usb2.setdefault(number, []).append((model, placed))
        if number not in numbers:
            by_kind.setdefault(kind, []).append(_Controller(kind, number, model, placed))
        numbers.add(number)
    for kind, number in _added(used, devices, machine):
        added = _Controller(kind, number, "qemu-xhci" if kind == "usb" else None, placed=False)
        by_kind.setdefault(kind, []).append(added)
    # Those of one type stay together, sorted by index, at the place of the first.
    ordered = [controller for same in by_kind.values() for controller in sorted(same)]
    scsi = _scsi_model(ordered, machine)
    on_root = _usb2_on_root(usb2, machine)
    for controller in ordered:
        companions = usb2.get(controller.number, []) if controller.kind == "usb" else []
        if any(placed for _, placed in companions) or (companions and controller.number in on_root):
            continue
        needs = None if controller.placed else _slot(controller, scsi, machine)
        if needs is not None:
            yield needs


class _Controller(NamedTuple):
    kind: str
    number: int
    model: str | None
    placed: bool


def _index(text: str | None, used: set[int]) -> int:
    """The index of a controller; by default libvirt takes the lowest free one."""
    number = _number(text)
    if number is not None:
        return number
    free = 0
    while free in used and free < _HIGHEST_INDEX:
        free += 1
    return free


def _number(text: str | None) -> int | None:
    """A decimal number of at most three digits; None for anything else."""
    if text is None or not (text.isascii() and text.isdigit()) or len(text) > len(str(_HIGHEST_INDEX)):
        return None
    return int(text)


def _usb2_on_root(usb2: Mapping[int, list[tuple[str, bool]]], machine: GuestMachine) -> list[int]:
    led = [number for number, models in usb2.items() if ("ich9-uhci1", False) in models]
    return led[:_USB2_ON_Q35] if machine.q35 else []


def _scsi_model(controllers: Iterable[_Controller], machine: GuestMachine) -> str:
    """The model that libvirt 12 takes by default; earlier versions always take lsilogic."""
    named = (controller.model for controller in controllers if controller.kind == "scsi")
    return next((model for model in named if model not in (None, "auto")), "lsilogic") if machine.x86 else "virtio-scsi"


def _slot(controller: _Controller, scsi: str, machine: GuestMachine) -> Needs | None:
    """The slot of a controller; None for one that is part of the machine or isn't a PCI device."""
    kind, number, model, _ = controller
    if kind == "usb":
        default = "piix3-uhci" if machine.x86 else "qemu-xhci"
        return None if model == "none" else "pcie" if (model or default) in _XHCI else "pci"
    if kind == "sata":
        return None if machine.q35 and number == 0 else "pci"
    if kind == "scsi":
        model = scsi if model in (None, "auto") else model
        if model in ("virtio-scsi", "virtio-non-transitional", "virtio-transitional"):
            return virtio(model, machine)
        return None if model == "ncr53c90" else "pci"
    if kind == "virtio-serial":
        return virtio(model, machine)
    return "pcie" if kind == "nvme" else None


def _added(
    used: Mapping[str, set[int]], devices: Iterable[etree._Element], machine: GuestMachine
) -> Iterator[tuple[str, int]]:
    """The controllers that libvirt adds: type and index."""
    highest = {"scsi": -1, "sata": -1}
    serial: set[int] = set()
    for device in devices:
        kind, number = _controller_of(device)
        if kind == "virtio-serial":
            serial.add(number)
        elif kind:
            highest[kind] = max(highest[kind], number)
    if machine.q35 and 0 not in used.get("usb", ()):
        yield "usb", 0
    for kind, last in highest.items():
        yield from ((kind, number) for number in range(last + 1) if number not in used.get(kind, ()))
    yield from (("virtio-serial", number) for number in sorted(serial - used.get("virtio-serial", set())))


def _controller_of(device: etree._Element) -> tuple[str, int]:
    """Type and index of the controller that a device is attached to; an empty type if it needs none."""
    tag = device.tag
    if tag == "disk":
        bus = disk_bus(device)
        if bus in _DISKS:
            index, number = _controller_index(device), _disk_number(child_attribute(device, "target", "dev") or "")
            return bus, number // _DISKS[bus] if index is None else index
    elif tag in ("channel", "console") and child_attribute(device, "target", "type") == "virtio":
        return "virtio-serial", _controller_index(device) or 0
    elif tag == "hostdev" and device.get("type") == "scsi":
        return "scsi", _controller_index(device) or 0
    return "", 0


def _controller_index(device: etree._Element) -> int | None:
    """The index of the controller in the device's address."""
    return _number(child_attribute(device, "address", "controller"))


def _disk_number(target: str) -> int:
    """The number of a disk by its name: ``sda`` is 0, ``sdaa`` is 26."""
    letters = target.rstrip("0123456789")[2:]
    number = 0
    for letter in letters[:3]:
        number = number * 26 + ord(letter) - ord("a") + 1
    return min(max(number - 1, 0), _HIGHEST_INDEX)


# The guest's NUMA cells, with the nodes and CPUs of the host that back each (P4), and empty ones that are added (P7).


def read_cells(root: etree._Element) -> tuple[GuestCell, ...]:
    """The cells of a ``<domain>``, by number; an invalid set counts as missing.

    A vCPU without a ``<vcpupin>`` may run on the whole ``<vcpu cpuset>`` of the domain, which ties no cell to a node.
    """
    elements = root.findall("cpu/numa/cell")
    if not elements:
        return ()
    nodes = dict(_by_number(root, "numatune/memnode", "cellid", "nodeset"))
    pins = dict(_by_number(root, "cputune/vcpupin", "vcpu", "cpuset"))
    cells = []
    for position, element in enumerate(elements):
        declared = number(element.get("id"))
        cell = position if declared is None else declared
        vcpus = read_cpuset(element.get("cpus"))
        cpus = frozenset([cpu for vcpu in vcpus for cpu in pins.get(vcpu, ())])
        empty = not vcpus and cell not in nodes and number(element.get("memory")) == 0
        cells.append(GuestCell(cell, nodes.get(cell, frozenset()), cpus, empty))
    return tuple(sorted(cells))


def _by_number(root: etree._Element, path: str, key: str, value: str) -> Iterator[tuple[int, frozenset[int]]]:
    for element in root.iterfind(path):
        index = number(element.get(key))
        if index is not None:
            yield index, read_cpuset(element.get(value))


def cells_edit(root: etree._Element, places: Places, style: Style, cells: Iterable[int]) -> Edit:
    """Add cells without CPUs and memory, given by number; the document must have cells already."""
    *_, last = root.iterfind("cpu/numa/cell")
    (numa,) = last.iterancestors("numa")
    texts = [elements.quoted(f"<cell id='{cell}' memory='0' unit='KiB'/>", style) for cell in cells]
    beside = style._replace(indent=indentation_of(places.data, places.of(last).start))
    return append_children(places.data, places.of(numa), texts, beside, depth=0)
