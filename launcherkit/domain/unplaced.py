"""Finds the devices that libvirt will give a PCI address in a domain with a pcie-root, in libvirt's order (P2)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from lxml import etree

from launcherkit.domain.controllers import bridges_to_place, controllers_to_place
from launcherkit.domain.needs import GuestMachine, slot_for, video_slot, virtio
from launcherkit.model.address import GuestAddress
from launcherkit.model.domain import Needs, Unplaced

_ORDER = (
    *("first video", "bridge", "filesystem", "interface", "sound", "controller", "disk", "hostdev interface"),
    *("hostdev", "memballoon", "rng", "watchdog", "video", "shmem", "input", "serial", "vsock", "memory", "crypto"),
    "pstore",
)
_RANK = {stage: rank for rank, stage in enumerate(_ORDER)}
_VIDEO_SLOT, _SOUND_SLOT = 0x01, 0x1B
"""Slots of q35's root bus for the first video device and the first ich9, if they are free."""


class DomainDevice(NamedTuple):
    """A device of the document, as the reader has seen it."""

    element: etree._Element
    placed: bool
    """It has an ``<address>`` of any type that gives a place."""
    hostdev: int
    """Which of the document's hostdevs it is, if it is one."""


def find_unplaced(
    devices: Sequence[DomainDevice], arch: str, machine: str, used: Iterable[GuestAddress]
) -> tuple[Unplaced, ...]:
    """The devices that libvirt will place behind root ports and on bridges, including those that it adds to the domain.

    Args:
        devices: every device of the document.
        arch: such as ``x86_64``.
        machine: such as ``pc-q35-9.2``.
        used: the guest addresses in the document.
    """
    what = GuestMachine(arch, machine == "q35" or machine.startswith("pc-q35"), _has_mmio(devices))
    on_root = {address.slot for address in used if address.domain == address.bus == 0}
    found = [*_others(devices, what, on_root), *_controllers(devices, what), *_added(devices, what, on_root)]
    found.sort(key=lambda stage_and_device: _RANK[stage_and_device[0]])
    return tuple([device for _, device in found])


def _others(
    devices: Iterable[DomainDevice], machine: GuestMachine, on_root: set[int]
) -> Iterator[tuple[str, Unplaced]]:
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
        elif (needs := slot_for(element, machine)) is not None:
            yield _unplaced(stage, needs)


def _is_passed_through(hostdev: etree._Element) -> bool:
    """Whether it is a PCI function or a mediated device; one without a type counts as such."""
    return hostdev.get("mode", "subsystem") == "subsystem" and hostdev.get("type", "pci") in ("pci", "mdev")


def _controllers(devices: Sequence[DomainDevice], machine: GuestMachine) -> Iterator[tuple[str, Unplaced]]:
    controllers = [(device.element, device.placed) for device in devices if device.element.tag == "controller"]
    for needs in bridges_to_place(controllers):
        yield "bridge", Unplaced(needs)
    for needs in controllers_to_place(controllers, [device.element for device in devices], machine):
        yield "controller", Unplaced(needs)


def _added(devices: Sequence[DomainDevice], machine: GuestMachine, on_root: set[int]) -> Iterator[tuple[str, Unplaced]]:
    """The devices that libvirt adds: a memory balloon, and a video device if there are graphics."""
    tags = {device.element.tag for device in devices}
    if "memballoon" not in tags and (machine.x86 or machine.arch.startswith("riscv")):
        needs = virtio(None, machine)
        if needs is not None:
            yield _unplaced("memballoon", needs)
    if "graphics" in tags and "video" not in tags and not (machine.q35 and _VIDEO_SLOT not in on_root):
        needs = video_slot(None, machine)
        if needs is not None:
            yield _unplaced("first video" if machine.q35 else "video", needs)


def _unplaced(stage: str, needs: Needs) -> tuple[str, Unplaced]:
    return stage, Unplaced(needs, after_hostdevs=_RANK[stage] > _RANK["hostdev"])


def _has_mmio(devices: Iterable[DomainDevice]) -> bool:
    """Whether a device has a virtio-mmio address: then libvirt gives one to all virtio devices if the machine can."""
    return any(
        address.get("type") == "virtio-mmio"
        for device in devices
        if device.placed
        for address in device.element.iterchildren("address")
    )
