"""The device nodes by which processes use a function through its host driver: ``/dev/dri/card1``, ``/dev/nvidia0``."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator

from launcherkit.errors import UnreadableFile
from launcherkit.model.address import PciAddress

_BYTES = 4096
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
        found.update(_nvidia(f"{proc}/driver/nvidia/gpus/{address}/information"))
    return found


def _below(device: str) -> Iterator[tuple[str, tuple[int, int]]]:
    for folder, _, files in os.walk(device):
        if "dev" not in files:
            continue
        major, colon, minor = (_read(f"{folder}/dev") or "").strip().partition(":")
        if colon and major.isdecimal() and minor.isdecimal():
            lines = (_read(f"{folder}/uevent") or "").splitlines()
            names = [line.removeprefix("DEVNAME=") for line in lines if line.startswith("DEVNAME=")]
            yield f"/dev/{(names or [os.path.basename(folder)])[0]}", (int(major), int(minor))


def _nvidia(path: str) -> Iterator[tuple[str, tuple[int, int]]]:
    for line in (_read(path) or "").splitlines():
        key, _, value = line.partition(":")
        if key.strip() == "Device Minor" and value.strip().isdecimal():
            yield f"/dev/nvidia{value.strip()}", (_NVIDIA_MAJOR, int(value))


def _read(path: str) -> str | None:
    """A short file; None where it isn't there, or goes while it is read."""
    try:
        with open(path, "rb") as file:
            return file.read(_BYTES).decode(errors="replace")
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as problem:
        raise UnreadableFile(f"{path}: {problem.strerror}", "Run it as root on the host.", file=path) from problem
