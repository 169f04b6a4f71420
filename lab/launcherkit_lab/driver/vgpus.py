"""The mdev driver in the machine: loaded, bound to its parents, and what it has made; read without launcherkit."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from launcherkit_lab import sysfs
from launcherkit_lab.devices import EDU
from launcherkit_lab.driver.build import NAME

SMALL, LARGE = "nvidia-222", "nvidia-223"
"""Its types: a parent has room for four of the one or for two of the other."""
SMALL_NAME, LARGE_NAME = "GRID T4-1Q", "GRID T4-2Q"
VGPU = (0x1234, 0x7E57)
"""What a guest finds on its PCI bus."""
DRIVER = "nvidia"
"""The name that it binds by."""

MDEVS = Path("/sys/bus/mdev/devices")
_PARENTS = Path("/sys/class/mdev_bus")


class Parent(NamedTuple):
    """A function that vGPUs can be made on."""

    address: str

    @property
    def folder(self) -> Path:
        """A vGPU's own folder is in it, and stays there longer than its link in MDEVS: until it is closed."""
        return _PARENTS / self.address

    @property
    def types(self) -> Path:
        return self.folder / "mdev_supported_types"

    def available(self, type_id: str) -> int:
        return int((self.types / type_id / "available_instances").read_text())

    @property
    def nodes(self) -> list[str]:
        """By which containers use the function itself."""
        return sorted(f"/dev/dri/{path.name}" for path in (sysfs.DEVICES / self.address / "drm").glob("[cr]*"))

    def create(self, type_id: str, uuid: str) -> None:
        """Raises OSError, ENOSPC where there is no room or another type is in use."""
        (self.types / type_id / "create").write_text(uuid)

    def made(self) -> set[str]:
        """The UUIDs of its vGPUs."""
        return {path.name for path in MDEVS.iterdir() if path.resolve().parent.name == self.address}

    def remove(self, uuid: str) -> None:
        """Waits while the vGPU is open."""
        assert uuid in self.made(), f"{uuid} is not of {self.address}"
        (MDEVS / uuid / "remove").write_text("1")

    def clear(self) -> None:
        for uuid in self.made():
            self.remove(uuid)


def allow_mixed(allowed: bool) -> None:
    """Whether a parent may have vGPUs of both types at once; at first it may not."""
    Path(f"/sys/module/{NAME}/parameters/mixed").write_text("Y" if allowed else "N")


@contextmanager
def vgpus(module: Path) -> Iterator[list[Parent]]:
    """Load the driver and bind it to every function that is in the machine for it.

    Afterwards neither vGPUs nor parents nor the driver are there; no vGPU may be open then.
    """
    sysfs.modprobe("mdev", "drm")
    subprocess.run(["insmod", str(module)], check=True)
    addresses = sysfs.having(EDU)
    try:
        for address in addresses:
            sysfs.bind(address, DRIVER)
        yield [Parent(address) for address in addresses]
    finally:
        for address in addresses:
            sysfs.unbind(address)
        subprocess.run(["rmmod", NAME], check=True)
