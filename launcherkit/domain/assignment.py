"""The devices that libvirt will give a PCI address in a domain with a pcie-root, and what each gets (P2).

The rules are from libvirt's source (qemu_domain_address.c; qemu_postparse.c for default models). On a pcie-root, virtio
devices are PCI Express; transitional ones, and most of the other emulated devices, are conventional.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TypeAlias

from lxml import etree

from launcherkit.model.address import GuestAddress
from launcherkit.model.domain import Needs, Unplaced

DocumentDevice: TypeAlias = tuple[etree._Element, bool, int]
"""A device of the document; whether it has an ``<address>`` of any type that gives a place; and which of the document's
hostdevs it is, if it is one."""

_ORDER = (
    *("first video", "bridge", "filesystem", "interface", "sound", "controller", "disk", "hostdev interface"),
    *("hostdev", "memballoon", "rng", "watchdog", "video", "shmem", "input", "serial", "vsock", "memory", "crypto"),
    "pstore",
)
_RANK = {stage: rank for rank, stage in enumerate(_ORDER)}
_VIDEO_SLOT, _SOUND_SLOT = 0x01, 0x1B
"""Slots of q35's root bus for the first video device and the first ich9, if they are free."""


def find_unplaced(
    devices: Sequence[DocumentDevice], arch: str, machine: str, used: Iterable[GuestAddress]
) -> tuple[Unplaced, ...]:
    """The devices that libvirt will place behind root ports and on bridges, including those that it adds to the domain.

    Args:
        devices: every device of the document.
        arch: such as ``x86_64``.
        machine: such as ``pc-q35-9.2``.
        used: the guest addresses in the document.
    """
    guest = _Machine(arch, machine, mmio=_has_mmio(devices))
    on_root = {address.slot for address in used if address.domain == address.bus == 0}
    staged = [*_others(devices, guest, on_root), *_controllers(devices, guest), *_added(devices, guest, on_root)]
    staged.sort(key=lambda stage_and_device: _RANK[stage_and_device[0]])
    return tuple([device for _, device in staged])


class _Machine:
    """What determines default models, and the devices that libvirt adds."""

    def __init__(self, arch: str, machine: str, *, mmio: bool) -> None:
        """With ``mmio`` virtio devices without an address become virtio-mmio, because one has such an address."""
        self.arch = arch
        self.x86 = arch in ("x86_64", "i686")
        self.q35 = machine == "q35" or machine.startswith("pc-q35")
        self.mmio = mmio


def _others(devices: Iterable[DocumentDevice], machine: _Machine, on_root: set[int]) -> Iterator[tuple[str, Unplaced]]:
    """The devices of the document except controllers, each with the stage at which libvirt places it."""
    first_video = first_sound = machine.q35
    for element, placed, hostdev in devices:
        stage, has_place = str(element.tag), placed
        if stage == "video" and first_video:
            stage, first_video = "first video", False
            has_place = placed or _VIDEO_SLOT not in on_root
        if has_place:
            continue
        if stage == "sound" and first_sound and element.get("model") == "ich9" and _SOUND_SLOT not in on_root:
            first_sound = False
        elif stage == "hostdev" and _is_passed_through(element):
            yield stage, Unplaced("pcie", hostdev)
        elif stage == "interface" and element.get("type") == "hostdev":
            yield "hostdev interface", Unplaced("pcie")
        elif (needs := _slot_for(element, machine)) is not None:
            yield _unplaced(stage, needs)


def _is_passed_through(hostdev: etree._Element) -> bool:
    """Whether it is a PCI function or a mediated device; one without a type counts as such."""
    return hostdev.get("mode", "subsystem") == "subsystem" and hostdev.get("type", "pci") in ("pci", "mdev")


def _controllers(devices: Sequence[DocumentDevice], machine: _Machine) -> Iterator[tuple[str, Unplaced]]:
    controllers = [(element, placed) for element, placed, _ in devices if element.tag == "controller"]
    for element, placed in controllers:
        if not placed and element.get("model") in ("pcie-to-pci-bridge", "pcie-switch-upstream-port"):
            yield "bridge", Unplaced("pcie")
    for needs in _other_controllers(controllers, [element for element, _, _ in devices], machine):
        yield "controller", Unplaced(needs)


def _added(devices: Sequence[DocumentDevice], machine: _Machine, on_root: set[int]) -> Iterator[tuple[str, Unplaced]]:
    """The devices that libvirt adds: a memory balloon, and a video device if there are graphics."""
    tags = {element.tag for element, _, _ in devices}
    if "memballoon" not in tags and (machine.x86 or machine.arch.startswith("riscv")):
        needs = _virtio(None, machine)
        if needs is not None:
            yield _unplaced("memballoon", needs)
    if "graphics" in tags and "video" not in tags and not (machine.q35 and _VIDEO_SLOT not in on_root):
        needs = _video_slot(None, machine)
        if needs is not None:
            yield _unplaced("first video" if machine.q35 else "video", needs)


def _unplaced(stage: str, needs: Needs) -> tuple[str, Unplaced]:
    return stage, Unplaced(needs, after_hostdevs=_RANK[stage] > _RANK["hostdev"])


def _has_mmio(devices: Iterable[DocumentDevice]) -> bool:
    """Whether a device has a virtio-mmio address: then libvirt gives one to all virtio devices if the machine can."""
    return any(
        address.get("type") == "virtio-mmio"
        for element, placed, _ in devices
        if placed
        for address in element.iterchildren("address")
    )


# The kind of slot that libvirt chooses for each device: PCI Express, conventional PCI, or none.


def _slot_for(device: etree._Element, machine: _Machine) -> Needs | None:
    """The slot that a device needs; None for a controller, and for a device that isn't on PCI."""
    rule = _RULES.get(str(device.tag))
    return None if rule is None else rule(device, machine)


def _virtio(model: str | None, machine: _Machine) -> Needs | None:
    """The slot of a virtio device."""
    return None if machine.mmio else "pci" if model == "virtio-transitional" else "pcie"


def _child_attribute(device: etree._Element, child: str, name: str) -> str | None:
    """An attribute of a device's first child of that name; None if either is missing."""
    element = next(device.iterchildren(child), None)  # in half the time of find()
    return None if element is None else element.get(name)


def _disk_bus(disk: etree._Element) -> str | None:
    """The bus of a disk; by default it follows from the target's name."""
    bus = _child_attribute(disk, "target", "bus")
    return bus or {"vd": "virtio", "sd": "scsi"}.get((_child_attribute(disk, "target", "dev") or "")[:2])


def _video_slot(model: str | None, machine: _Machine) -> Needs | None:
    """The slot of a video device by its model; libvirt's default is cirrus or vga on x86, virtio elsewhere."""
    if model in ("none", "ramfb", "gop"):
        return None
    if model == "virtio" or (model is None and not machine.x86):
        return _virtio(None, machine)
    return "pcie" if model == "bochs" else "pci"


def _by_model(device: etree._Element, machine: _Machine) -> Needs | None:
    return None if device.get("model") in ("none", "xen") else _virtio(device.get("model"), machine)


def _filesystem(device: etree._Element, machine: _Machine) -> Needs | None:
    pci = _child_attribute(device, "driver", "type") in (None, "path", "handle", "virtiofs")
    return _virtio(device.get("model"), machine) if pci else None


def _interface(device: etree._Element, machine: _Machine) -> Needs | None:
    model = _child_attribute(device, "model", "type")
    if model is None:
        model = "rtl8139" if machine.x86 and device.get("type") not in ("vdpa", "vhostuser") else "virtio"
    if model.startswith("virtio"):
        return _virtio(model, machine)
    return None if model == "usb-net" else "pcie" if model in ("e1000e", "igb") else "pci"


def _sound(device: etree._Element, machine: _Machine) -> Needs | None:
    model = device.get("model")
    if model == "virtio":
        return _virtio(None, machine)
    return "pci" if model in ("es1370", "ac97", "ich6", "ich9") else None


def _disk(device: etree._Element, machine: _Machine) -> Needs | None:
    return _virtio(device.get("model"), machine) if _disk_bus(device) == "virtio" else None


def _hostdev(device: etree._Element, machine: _Machine) -> Needs | None:
    """The slot of a hostdev of another type than pci and mdev, which are PCI Express."""
    return _virtio(device.get("model"), machine) if device.get("type") == "scsi_host" else None


def _watchdog(device: etree._Element, _machine: _Machine) -> Needs | None:
    return "pci" if device.get("model") == "i6300esb" else None


def _video(device: etree._Element, machine: _Machine) -> Needs | None:
    return _video_slot(_child_attribute(device, "model", "type"), machine)


def _conventional(_device: etree._Element, _machine: _Machine) -> Needs | None:
    return "pci"


def _input(device: etree._Element, machine: _Machine) -> Needs | None:
    return _virtio(device.get("model"), machine) if device.get("bus") == "virtio" else None


def _serial(device: etree._Element, _machine: _Machine) -> Needs | None:
    return "pci" if _child_attribute(device, "target", "type") == "pci-serial" else None


def _memory(device: etree._Element, machine: _Machine) -> Needs | None:
    return _virtio(None, machine) if device.get("model") in ("virtio-mem", "virtio-pmem") else None


def _pstore(device: etree._Element, _machine: _Machine) -> Needs | None:
    return "pci" if device.get("backend") == "acpi-erst" else None


_RULES: dict[str, Callable[[etree._Element, _Machine], Needs | None]] = {
    "filesystem": _filesystem,
    "interface": _interface,
    "sound": _sound,
    "disk": _disk,
    "hostdev": _hostdev,
    "memballoon": _by_model,
    "rng": _by_model,
    "watchdog": _watchdog,
    "video": _video,
    "shmem": _conventional,
    "input": _input,
    "serial": _serial,
    "vsock": _by_model,
    "memory": _memory,
    "crypto": _conventional,
    "pstore": _pstore,
}


# The controllers: those of the document, and those that libvirt adds.

_HIGHEST_INDEX = 255
_DISKS = {"scsi": 7, "sata": 6}
"""How many disks libvirt puts on one controller, by bus."""
_XHCI = ("qemu-xhci", "nec-xhci")
_USB2 = ("ich9-ehci1", "ich9-uhci1", "ich9-uhci2", "ich9-uhci3")
_USB2_ON_Q35 = 2
"""How many USB2 controllers have slots of their own on q35's root bus: 1d and 1a."""

_Controller: TypeAlias = tuple[str, int, str | None, bool]
"""Type, index and model of a controller, and whether it has an address."""


def _other_controllers(
    controllers: Sequence[tuple[etree._Element, bool]], devices: Sequence[etree._Element], machine: _Machine
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
            by_kind.setdefault(kind, []).append((kind, number, model, placed))
        numbers.add(number)
    for kind, number in _added_controllers(used, devices, machine):
        by_kind.setdefault(kind, []).append((kind, number, "qemu-xhci" if kind == "usb" else None, False))
    # Those of one type stay together, sorted by index, at the place of the first.
    ordered = [controller for same in by_kind.values() for controller in sorted(same)]
    scsi = _scsi_model(ordered, machine)
    on_root = _usb2_on_root(usb2, machine)
    for kind, number, model, placed in ordered:
        companions = usb2.get(number, []) if kind == "usb" else []
        if any(placed for _, placed in companions) or (companions and number in on_root):
            continue
        needs = None if placed else _controller_slot(kind, number, model, scsi, machine)
        if needs is not None:
            yield needs


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


def _usb2_on_root(usb2: Mapping[int, list[tuple[str, bool]]], machine: _Machine) -> list[int]:
    led = [number for number, models in usb2.items() if ("ich9-uhci1", False) in models]
    return led[:_USB2_ON_Q35] if machine.q35 else []


def _scsi_model(controllers: Iterable[_Controller], machine: _Machine) -> str:
    """The model that libvirt 12 takes by default; earlier versions always take lsilogic."""
    named = (model for kind, _, model, _ in controllers if kind == "scsi")
    return next((model for model in named if model not in (None, "auto")), "lsilogic") if machine.x86 else "virtio-scsi"


def _controller_slot(kind: str, number: int, model: str | None, scsi: str, machine: _Machine) -> Needs | None:
    """The slot of a controller; None for one that is part of the machine or isn't a PCI device."""
    if kind == "usb":
        default = "piix3-uhci" if machine.x86 else "qemu-xhci"
        return None if model == "none" else "pcie" if (model or default) in _XHCI else "pci"
    if kind == "sata":
        return None if machine.q35 and number == 0 else "pci"
    if kind == "scsi":
        model = scsi if model in (None, "auto") else model
        if model in ("virtio-scsi", "virtio-non-transitional", "virtio-transitional"):
            return _virtio(model, machine)
        return None if model == "ncr53c90" else "pci"
    if kind == "virtio-serial":
        return _virtio(model, machine)
    return "pcie" if kind == "nvme" else None


def _added_controllers(
    used: Mapping[str, set[int]], devices: Iterable[etree._Element], machine: _Machine
) -> Iterator[tuple[str, int]]:
    """The controllers that libvirt adds: type and index. Those for SCSI hostdevs come first, as it parses these."""
    highest = {"hostdev": -1, "scsi": -1, "sata": -1}
    serial: set[int] = set()
    for device in devices:
        kind, number = _controller_of(device)
        if kind == "virtio-serial":
            serial.add(number)
        elif kind:
            of = "hostdev" if device.tag == "hostdev" else kind
            highest[of] = max(highest[of], number)
    scsi = used.get("scsi", set())
    of_hostdevs = [number for number in range(highest["hostdev"] + 1) if number not in scsi]
    yield from (("scsi", number) for number in of_hostdevs)
    if machine.q35 and 0 not in used.get("usb", ()):
        yield "usb", 0
    for kind, present in (("scsi", scsi.union(of_hostdevs)), ("sata", used.get("sata", ()))):
        yield from ((kind, number) for number in range(highest[kind] + 1) if number not in present)
    yield from (("virtio-serial", number) for number in sorted(serial - used.get("virtio-serial", set())))


def _controller_of(device: etree._Element) -> tuple[str, int]:
    """Type and index of the controller that a device is attached to; an empty type if it needs none."""
    tag = device.tag
    if tag == "disk":
        bus = _disk_bus(device)
        if bus in _DISKS:
            index, number = _controller_index(device), _disk_number(_child_attribute(device, "target", "dev") or "")
            return bus, number // _DISKS[bus] if index is None else index
    elif tag in ("channel", "console") and _child_attribute(device, "target", "type") == "virtio":
        return "virtio-serial", _controller_index(device) or 0
    elif tag == "hostdev" and device.get("type") == "scsi":
        return "scsi", _controller_index(device) or 0
    return "", 0


def _controller_index(device: etree._Element) -> int | None:
    """The index of the controller in the device's address."""
    return _number(_child_attribute(device, "address", "controller"))


def _disk_number(target: str) -> int:
    """The number of a disk by its name: ``sda`` is 0, ``sdaa`` is 26."""
    letters = target.rstrip("0123456789")[2:]
    number = 0
    for letter in letters[:3]:
        number = number * 26 + ord(letter) - ord("a") + 1
    return min(max(number - 1, 0), _HIGHEST_INDEX)
