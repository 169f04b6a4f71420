"""The drivers of vGPUs in the machine: loaded, bound, and what they have made; read without launcherkit.

One makes mdevs, the other lets virtual functions be vGPUs. Both have the name of NVIDIA's, so there is one at a time.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from launcherkit_lab import sysfs
from launcherkit_lab.devices import EDU
from launcherkit_lab.driver.build import NAME, VFS

SMALL, LARGE = "nvidia-222", "nvidia-223"
"""The types of mdevs: a parent has room for four of the one or for two of the other."""
SMALL_NAME, LARGE_NAME = "GRID T4-1Q", "GRID T4-2Q"
VF_SMALL, VF_LARGE = 557, 558
"""The types of VFs, of 1 and 2 GiB."""
VF_NAMES = {VF_SMALL: "NVIDIA A40-1B", VF_LARGE: "NVIDIA A40-2B"}
VGPU = (0x1234, 0x7E57)
"""What a guest finds on its PCI bus."""
DRIVER = "nvidia"
"""The name that they bind by."""

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
    addresses = sysfs.having(EDU)
    with _bound(module, NAME, addresses):
        yield [Parent(address) for address in addresses]


class Vf(NamedTuple):
    """A virtual function that can be a vGPU."""

    address: str

    @property
    def _folder(self) -> Path:
        return sysfs.DEVICES / self.address / "nvidia"

    @property
    def type(self) -> int:
        """The number of its type; 0: it is no vGPU."""
        return int((self._folder / "current_vgpu_type").read_text())

    def creatable(self) -> list[int]:
        """The types that it could get now."""
        _, *rows = (self._folder / "creatable_vgpu_types").read_text().splitlines()
        return [int(row.partition(":")[0]) for row in rows]

    def be(self, number: int) -> None:
        """Get a type, or none for 0.

        Raises:
            OSError: EBUSY while it is open, ENOSPC without room, EINVAL if there is no such type or it has one.
        """
        (self._folder / "current_vgpu_type").write_text(str(number))


@contextmanager
def vgpu_vfs(module: Path, addresses: Sequence[str], mebibytes: int = 4096) -> Iterator[list[Vf]]:
    """Load the driver and bind it to virtual functions; afterwards they have none.

    Args:
        mebibytes: the framebuffer of a card.
    """
    sysfs.modprobe("vfio_pci_core", "vfio_iommu_type1")
    with _bound(module, VFS, addresses, f"framebuffer={mebibytes}"):
        yield [Vf(address) for address in addresses]


@contextmanager
def _bound(module: Path, name: str, addresses: Sequence[str], *parameters: str) -> Iterator[None]:
    subprocess.run(["insmod", str(module), *parameters], check=True)
    try:
        for address in addresses:
            sysfs.bind(address, DRIVER)
        yield
    finally:
        for address in addresses:
            sysfs.unbind(address)
        subprocess.run(["rmmod", name], check=True)
