"""The device nodes by which processes use a function through its host driver, ``/dev/dri/card1`` or ``/dev/nvidia0``;
and what NVIDIA's driver says of its cards in proc, for which its library isn't needed.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping

from launcherkit.errors import UnreadableFile
from launcherkit.model.address import PciAddress
from launcherkit.model.value import NamedTuple

NVIDIA = 0x10DE
"""The vendor."""

GPUS = "driver/nvidia/gpus"
"""Below proc: a folder for each card that has the driver, named by its address."""

_BYTES = 4096
_UUID = re.compile(r"GPU-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


class NvidiaCard(NamedTuple):
    """A card with NVIDIA's driver."""

    minor: int | None
    """Of its node: 2 is ``/dev/nvidia2``."""
    uuid: str | None
    """``GPU-5a0c...``; None as long as the driver doesn't know it: question marks stand there until the card has been
    opened once."""
    number: int
    """Its index among the cards that have the driver, by address, as NVIDIA's tools count them."""


def nvidia_card(proc: str, address: PciAddress) -> NvidiaCard | None:
    """What the driver says of a card; None where the card doesn't have it.

    Args:
        proc: where the host's proc file system is mounted.
        address: the card's.

    Raises:
        UnreadableFile: it can't be read.
    """
    path = f"{proc}/{GPUS}/{address}/information"
    text = read_short(path)
    if text is None:
        return None
    said = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in text.splitlines())}
    minor, uuid = said.get("Device Minor", ""), said.get("GPU UUID", "")
    before = [name for name in os.listdir(f"{proc}/{GPUS}") if name < str(address)]
    return NvidiaCard(int(minor) if minor.isdecimal() else None, uuid if _UUID.fullmatch(uuid) else None, len(before))


def nvidia_uuids(proc: str) -> Mapping[str, str]:
    """The addresses of all cards that have the driver, by UUID; what can't be read is left out."""
    found = {}
    try:
        for name in os.listdir(f"{proc}/{GPUS}"):
            card = nvidia_card(proc, PciAddress.parse(name))
            if card is not None and card.uuid is not None:
                found[card.uuid] = name
    except (OSError, ValueError, UnreadableFile):
        pass  # not NVIDIA's, or going at this moment
    return found


def read_short(path: str) -> str | None:
    """A short file; None where it isn't there, or goes while it is read.

    Raises:
        UnreadableFile: it can't be read.
    """
    try:
        with open(path, "rb") as file:
            return file.read(_BYTES).decode(errors="replace")
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as problem:
        raise UnreadableFile(f"{path}: {problem.strerror}", "Run it as root on the host.", file=path) from problem


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
