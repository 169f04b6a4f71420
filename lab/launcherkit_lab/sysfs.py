"""The machine's PCI functions, read and written without launcherkit: what its answers are held against."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from launcherkit_lab.devices import AUDIO, DISPLAY

PCI = Path("/sys/bus/pci")
DEVICES = PCI / "devices"
SECONDS = 180
"""The longest that anything here is waited for."""


class Card(NamedTuple):
    """A graphics card: the addresses of its two functions, ``0000:01:00.0``."""

    display: str
    audio: str


def addresses() -> list[str]:
    return sorted(path.name for path in DEVICES.iterdir())


def number(address: str, name: str, devices: Path = DEVICES) -> int:
    """A file with one hexadecimal number: ``vendor``, ``class``."""
    return int((devices / address / name).read_text(), 16)


def having(model: tuple[int, int]) -> list[str]:
    """The functions with a vendor and device ID, VFs aside."""
    return [
        address
        for address in addresses()
        if (number(address, "vendor"), number(address, "device")) == model
        and not (DEVICES / address / "physfn").exists()
    ]


def cards() -> list[Card]:
    """The graphics cards with audio."""
    sound = having(AUDIO)
    return [Card(one, f"{one[:-1]}1") for one in having(DISPLAY) if f"{one[:-1]}1" in sound]


def driver(address: str, devices: Path = DEVICES) -> str | None:
    return link(devices / address / "driver")


def group(address: str, devices: Path = DEVICES) -> str | None:
    return link(devices / address / "iommu_group")


def override(address: str) -> str | None:
    text = (DEVICES / address / "driver_override").read_text().strip()
    return None if text == "(null)" else text


def link(path: Path) -> str | None:
    """The name of what a link leads to; None where there is none."""
    try:
        return os.path.basename(os.readlink(path))
    except FileNotFoundError:
        return None


def cdev(address: str, devices: Path = DEVICES) -> str:
    """The path of a bound function's VFIO character device."""
    (device,) = (devices / address / "vfio-dev").iterdir()
    return f"/dev/vfio/devices/{device.name}"


@contextmanager
def without(*nodes: str) -> Iterator[None]:
    """Device nodes are gone from where they belong. The kernel's own come back: it wouldn't remove copies."""
    for node in nodes:
        os.rename(node, f"{node}.hidden")
    try:
        yield
    finally:
        for node in nodes:
            os.rename(f"{node}.hidden", node)


def version(text: str) -> tuple[int, ...]:
    """The first two numbers of a version: ``7.2.13+deb14-amd64`` is 7, 2."""
    return tuple(int(part) for part in text.split(".")[:2])


def members(address: str, devices: Path = DEVICES) -> list[str]:
    """All functions of a function's IOMMU group."""
    return sorted(path.name for path in (devices / address / "iommu_group/devices").iterdir())


def unbind(address: str) -> None:
    """Take a function from its driver, and let it be taken by whoever fits when it is probed again."""
    if driver(address):
        # The kernel would wait for whoever has it open, for ever.
        assert f"/dev/vfio/{group(address)}" not in open_nodes(), f"{address} is in use"
        (DEVICES / address / "driver/unbind").write_text(address)
    (DEVICES / address / "driver_override").write_text("\n")


def bind(address: str, name: str) -> None:
    """Give a function to a driver, by override."""
    unbind(address)
    (DEVICES / address / "driver_override").write_text(name)
    (PCI / "drivers_probe").write_text(address)
    assert driver(address) == name, f"{address} is bound to {driver(address)}"


def modprobe(*names: str) -> None:
    subprocess.run(["modprobe", "--all", *names], check=True)


def until(holds: Callable[[], object], event: str, seconds: float = SECONDS) -> None:
    """Wait until something holds."""
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, f"never saw {event}"
        time.sleep(0.05)


def open_nodes() -> set[str]:
    """VFIO's nodes that any process has open."""
    nodes = set()
    for path in Path("/proc").glob("[0-9]*/fd/*"):
        with suppress(OSError):
            if (target := os.readlink(path)).startswith("/dev/vfio/"):
                nodes.add(target)
    return nodes
