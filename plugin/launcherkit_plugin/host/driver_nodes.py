"""The device nodes by which processes use a function through its host driver: ``/dev/dri/card1``, ``/dev/nvidia0``."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator

from launcherkit.model.address import PciAddress
from launcherkit_plugin.host.nvidia import nvidia_card, read_short

_NVIDIA_MAJOR = 195


def driver_nodes(root: str, proc: str, addresses: Iterable[PciAddress]) -> dict[str, tuple[int, int]]:
    """The nodes of some functions, each with its major and minor number.

    All that sysfs has below a function: DRM, frame buffers, sound, disks, what hangs on a USB controller. NVIDIA's
    driver has its nodes in proc alone.

    Args:
        root: where the host's ``sys/`` is.
        proc: where its proc file system is mounted.
        addresses: functions.

    Raises:
        UnreadableFile: what is there can't be read, and so it may be in use (T2).
    """
    found: dict[str, tuple[int, int]] = {}
    for address in addresses:
        found.update(_below(os.path.realpath(f"{root}/sys/bus/pci/devices/{address}")))
        found.update(_nvidia(proc, address))
    return found


def card_nodes(root: str, proc: str, address: PciAddress) -> tuple[str, ...]:
    """The nodes by which a container uses a card: those of DRM and of the kernel's accelerators, and NVIDIA's.

    Raises:
        UnreadableFile: what is there can't be read.
    """
    device = os.path.realpath(f"{root}/sys/bus/pci/devices/{address}")
    found = [node for kind in ("accel", "drm") for node, _ in _below(f"{device}/{kind}")]
    # Below a card's connectors are nodes of I2C and of DisplayPort's auxiliary channel.
    return (*sorted(node for node in found if node.startswith(("/dev/accel/", "/dev/dri/"))), *_nvidia(proc, address))


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
