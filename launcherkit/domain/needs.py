"""Which kind of slot libvirt chooses for a device without an address: PCI Express, conventional PCI, or none (P2).

The rules are from libvirt's source (qemu_domain_address.c; qemu_postparse.c for default models). On a pcie-root, virtio
devices are PCI Express; transitional ones, and most of the other emulated devices, are conventional.
"""

from collections.abc import Callable
from typing import NamedTuple

from lxml import etree

from launcherkit.model.domain import Needs


class GuestMachine(NamedTuple):
    """What determines default models, and the devices that libvirt adds."""

    arch: str
    q35: bool
    mmio: bool
    """Virtio devices without an address become virtio-mmio, because one has such an address."""

    @property
    def x86(self) -> bool:
        return self.arch in ("x86_64", "i686")


def slot_for(device: etree._Element, machine: GuestMachine) -> Needs | None:
    """The slot that a device needs; None for a controller, and for a device that isn't on PCI."""
    rule = _RULES.get(str(device.tag))
    return None if rule is None else rule(device, machine)


def virtio(model: str | None, machine: GuestMachine) -> Needs | None:
    """The slot of a virtio device."""
    return None if machine.mmio else "pci" if model == "virtio-transitional" else "pcie"


def child_attribute(device: etree._Element, child: str, name: str) -> str | None:
    """An attribute of a device's first child of that name; None if either is missing."""
    element = next(device.iterchildren(child), None)  # in half the time of find()
    return None if element is None else element.get(name)


def disk_bus(disk: etree._Element) -> str | None:
    """The bus of a disk; by default it follows from the target's name."""
    bus = child_attribute(disk, "target", "bus")
    return bus or {"vd": "virtio", "sd": "scsi"}.get((child_attribute(disk, "target", "dev") or "")[:2])


def video_slot(model: str | None, machine: GuestMachine) -> Needs | None:
    """The slot of a video device by its model; libvirt's default is cirrus or vga on x86, virtio elsewhere."""
    if model in ("none", "ramfb", "gop"):
        return None
    if model == "virtio" or (model is None and not machine.x86):
        return virtio(None, machine)
    return "pcie" if model == "bochs" else "pci"


def _by_model(device: etree._Element, machine: GuestMachine) -> Needs | None:
    return None if device.get("model") in ("none", "xen") else virtio(device.get("model"), machine)


def _filesystem(device: etree._Element, machine: GuestMachine) -> Needs | None:
    pci = child_attribute(device, "driver", "type") in (None, "path", "handle", "virtiofs")
    return virtio(device.get("model"), machine) if pci else None


def _interface(device: etree._Element, machine: GuestMachine) -> Needs | None:
    model = child_attribute(device, "model", "type")
    if model is None:
        model = "rtl8139" if machine.x86 and device.get("type") not in ("vdpa", "vhostuser") else "virtio"
    if model.startswith("virtio"):
        return virtio(model, machine)
    return None if model == "usb-net" else "pcie" if model in ("e1000e", "igb") else "pci"


def _sound(device: etree._Element, machine: GuestMachine) -> Needs | None:
    model = device.get("model")
    if model == "virtio":
        return virtio(None, machine)
    return "pci" if model in ("es1370", "ac97", "ich6", "ich9") else None


def _disk(device: etree._Element, machine: GuestMachine) -> Needs | None:
    return virtio(device.get("model"), machine) if disk_bus(device) == "virtio" else None


def _hostdev(device: etree._Element, machine: GuestMachine) -> Needs | None:
    """The slot of a hostdev of another type than pci and mdev, which are PCI Express."""
    return virtio(device.get("model"), machine) if device.get("type") == "scsi_host" else None


def _watchdog(device: etree._Element, _machine: GuestMachine) -> Needs | None:
    return "pci" if device.get("model") == "i6300esb" else None


def _video(device: etree._Element, machine: GuestMachine) -> Needs | None:
    return video_slot(child_attribute(device, "model", "type"), machine)


def _conventional(_device: etree._Element, _machine: GuestMachine) -> Needs | None:
    return "pci"


def _input(device: etree._Element, machine: GuestMachine) -> Needs | None:
    return virtio(device.get("model"), machine) if device.get("bus") == "virtio" else None


def _serial(device: etree._Element, _machine: GuestMachine) -> Needs | None:
    return "pci" if child_attribute(device, "target", "type") == "pci-serial" else None


def _memory(device: etree._Element, machine: GuestMachine) -> Needs | None:
    return virtio(None, machine) if device.get("model") in ("virtio-mem", "virtio-pmem") else None


def _pstore(device: etree._Element, _machine: GuestMachine) -> Needs | None:
    return "pci" if device.get("backend") == "acpi-erst" else None


_RULES: dict[str, Callable[[etree._Element, GuestMachine], Needs | None]] = {
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
