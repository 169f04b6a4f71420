"""The device nodes by which processes use a function through its host driver, such as ``/dev/dri/card1`` or
``/dev/nvidia0``; and what NVIDIA's driver says about its cards in proc, which needs no NVIDIA library.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import NamedTuple

from launcherkit.errors import UNREADABLE_FILE, UnreadableFile
from launcherkit.host.use import USB_DEVICES
from launcherkit.model.address import PciAddress

NVIDIA = 0x10DE
"""NVIDIA's PCI vendor ID."""

GPUS = "driver/nvidia/gpus"
"""Below proc; has a folder for each card with the driver, named by its address."""

_BYTES = 4096
_UUID = re.compile(r"GPU-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


class NvidiaCard(NamedTuple):
    """A card with NVIDIA's driver."""

    minor: int | None
    """The minor number of its device node: 2 for ``/dev/nvidia2``."""
    uuid: str | None
    """``GPU-5a0c...``; None as long as the driver doesn't know it: until the card is opened for the first time, the
    file has question marks instead."""
    number: int
    """Its index among the cards with the driver, by address. NVIDIA's tools count the same way."""


def nvidia_card(proc: str, address: PciAddress) -> NvidiaCard | None:
    """What the driver says about a card; None if the card doesn't have the driver.

    Args:
        proc: where the host's proc file system is mounted.
        address: of the card.

    Raises:
        UnreadableFile: the driver's file can't be read.
    """
    path = f"{proc}/{GPUS}/{address}/information"
    text = read_short(path)
    if text is None:
        return None
    fields = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in text.splitlines())}
    minor, uuid = fields.get("Device Minor", ""), fields.get("GPU UUID", "")
    try:
        before = [name for name in os.listdir(f"{proc}/{GPUS}") if name < str(address)]
    except FileNotFoundError:  # the driver was unloaded meanwhile
        return None
    return NvidiaCard(int(minor) if minor.isdecimal() else None, uuid if _UUID.fullmatch(uuid) else None, len(before))


def nvidia_uuids(proc: str) -> Mapping[str, str]:
    """The addresses of all cards with the driver, by UUID; cards that can't be read are left out."""
    uuids: dict[str, str] = {}
    try:
        names = os.listdir(f"{proc}/{GPUS}")
    except OSError:
        return uuids  # the driver isn't loaded
    for name in names:
        with suppress(OSError, ValueError, UnreadableFile):  # or it is just disappearing
            card = nvidia_card(proc, PciAddress.parse(name))
            if card is not None and card.uuid is not None:
                uuids[card.uuid] = name
    return uuids


def read_short(path: str) -> str | None:
    """The text of a short file; None if there is no such file.

    Raises:
        UnreadableFile: it can't be read.
    """
    try:
        with open(path, "rb") as file:
            return file.read(_BYTES).decode(errors="replace")
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as problem:
        raise UNREADABLE_FILE(f"{path}: {problem.strerror}", "Run it as root on the host.", file=path) from problem


_NVIDIA_MAJOR = 195


def driver_nodes(root: str, proc: str, addresses: Iterable[PciAddress]) -> dict[str, tuple[int, int]]:
    """The device nodes of some functions, each with its major and minor number.

    These are all that sysfs has below a function: DRM, frame buffers, sound, disks, devices on a USB controller.
    NVIDIA's nodes aren't in sysfs, but follow from proc.

    Args:
        root: the directory that contains the host's ``sys``.
        proc: where its proc file system is mounted.
        addresses: functions.

    Raises:
        UnreadableFile: a file exists and can't be read, so the function may be in use (T2).
    """
    nodes: dict[str, tuple[int, int]] = {}
    for address in addresses:
        nodes.update(_below(os.path.realpath(f"{root}/sys/bus/pci/devices/{address}")))
        nodes.update(_nvidia(proc, address))
    return nodes


def usb_nodes(root: str, names: Iterable[str]) -> dict[str, tuple[int, int]]:
    """The device nodes of some USB devices, by their names in sysfs: their own, and those of their drivers.

    Raises:
        UnreadableFile: see `driver_nodes`.
    """
    return {node: number for name in names for node, number in _below(os.path.realpath(f"{root}/{USB_DEVICES}/{name}"))}


def card_nodes(root: str, proc: str, address: PciAddress) -> tuple[str, ...]:
    """The device nodes by which a container uses a card: those of DRM and of the kernel's accelerators, and NVIDIA's.

    Raises:
        UnreadableFile: a file exists and can't be read.
    """
    device = os.path.realpath(f"{root}/sys/bus/pci/devices/{address}")
    nodes = [node for kind in ("accel", "drm") for node, _ in _below(f"{device}/{kind}")]
    # A card's connectors also have nodes, of I2C and of DisplayPort's auxiliary channel; containers don't need them.
    return (*sorted(node for node in nodes if node.startswith(("/dev/accel/", "/dev/dri/"))), *_nvidia(proc, address))


def _below(device: str) -> Iterator[tuple[str, tuple[int, int]]]:
    for folder, _, files in os.walk(device):
        if "dev" not in files:
            continue
        major, colon, minor = (read_short(f"{folder}/dev") or "").strip().partition(":")
        if colon and major.isdecimal() and minor.isdecimal():
            lines = (read_short(f"{folder}/uevent") or "").splitlines()
            names = [line.removeprefix("DEVNAME=") for line in lines if line.startswith("DEVNAME=")]
            yield f"/dev/{(names or [os.path.basename(folder)])[0]}", (int(major), int(minor))


def _nvidia(proc: str, address: PciAddress) -> dict[str, tuple[int, int]]:
    card = nvidia_card(proc, address)
    if card is None or card.minor is None:
        return {}
    return {f"/dev/nvidia{card.minor}": (_NVIDIA_MAJOR, card.minor)}
