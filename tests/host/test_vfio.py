"""Asking a VFIO device whether it can migrate: a stand-in for the kernel refuses what the kernel refuses."""

from __future__ import annotations

import errno
import fcntl
import os
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from launcherkit.host.vfio import NotAsked, ask_migration

# Linux, include/uapi/linux/vfio.h: _IO(';', 100 + number).
SET_CONTAINER, SET_IOMMU, GET_DEVICE_FD, FEATURE, BIND = (ord(";") << 8 | 100 + n for n in (4, 2, 6, 17, 18))
DEVICE = "0000:e1:00.2"


class Kernel:
    """VFIO's ioctls, on files of a folder. What comes in the wrong order is refused."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.flags: int | None = 0b011
        self.in_use = False
        self.done: list[str] = []
        for name in ("container", "group", "device", "iommu", "cdev"):
            (folder / name).touch()

    def name(self, fd: int) -> str:
        return Path(os.readlink(f"/proc/self/fd/{fd}")).name

    def ioctl(self, fd: int, request: int, argument: object = 0, mutate: bool = True) -> int:
        name = self.name(fd)
        if name == "group" and request == SET_CONTAINER:
            assert isinstance(argument, bytes)
            (other,) = struct.unpack("=i", argument)
            self._take("group", self.name(other) == "container")
        elif name == "container" and request == SET_IOMMU:
            self._take("iommu", argument == 3 and self.done == ["group"])
        elif name == "group" and request == GET_DEVICE_FD:
            assert isinstance(argument, bytearray)
            self._take("open", bytes(argument) == f"{DEVICE}\0".encode() and self.done == ["group", "iommu"])
            return os.open(self.folder / "device", os.O_RDWR)
        elif name == "cdev" and request == BIND:
            assert isinstance(argument, bytearray)
            size, flags, iommu, _ = struct.unpack("=IIiI", argument)
            self._take("open", (size, flags, self.name(iommu)) == (16, 0, "iommu"))
        elif name in ("device", "cdev") and request == FEATURE:
            return self._feature(argument)
        else:
            raise OSError(errno.ENOTTY, "Inappropriate ioctl for device")
        return 0

    def _take(self, what: str, proper: bool) -> None:
        if self.in_use:
            raise OSError(errno.EBUSY, "Device or resource busy")
        if not proper:
            raise OSError(errno.ENODEV, "No such device")
        self.done.append(what)

    def _feature(self, argument: object) -> int:
        assert isinstance(argument, bytearray)
        size, asked, _ = struct.unpack("=IIQ", argument)
        if "open" not in self.done or (size, asked) != (16, 1 << 16 | 1):
            raise OSError(errno.EINVAL, "Invalid argument")
        if self.flags is None:
            raise OSError(errno.ENOTTY, "Inappropriate ioctl for device")
        struct.pack_into("=Q", argument, 8, self.flags)
        return 0


@pytest.fixture
def kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Kernel]:
    made = Kernel(tmp_path)
    there = {
        "/dev/vfio/vfio": "container",
        "/dev/vfio/44": "group",
        "/dev/iommu": "iommu",
        "/dev/vfio/devices/vfio3": "cdev",
    }
    opened, exists = os.open, os.path.exists

    def open_node(path: str, *others: int) -> int:
        return opened(str(tmp_path / there[path]) if path in there else path, *others)

    monkeypatch.setattr(fcntl, "ioctl", made.ioctl)
    monkeypatch.setattr(os, "open", open_node)
    monkeypatch.setattr(os.path, "exists", lambda path: path in there or exists(path))
    before = set(os.listdir("/proc/self/fd"))
    yield made
    assert set(os.listdir("/proc/self/fd")) == before, "a descriptor is left open"


def ask(**nodes: str | None) -> tuple[str, ...] | None:
    return ask_migration(DEVICE, **{"group": None, "cdev": None, **nodes})


@pytest.mark.parametrize("nodes", [{"group": "/dev/vfio/44"}, {"cdev": "/dev/vfio/devices/vfio3"}])
@pytest.mark.parametrize(
    ("flags", "modes"), [(1, ()), (0b011, ("peer to peer",)), (0b111, ("peer to peer", "pre-copy")), (None, None)]
)
def test_a_device_says_how_it_migrates_or_that_it_cant(
    kernel: Kernel, nodes: dict[str, str], flags: int | None, modes: tuple[str, ...] | None
) -> None:
    kernel.flags = flags
    assert ask(**nodes) == modes


@pytest.mark.parametrize("nodes", [{"group": "/dev/vfio/44"}, {"cdev": "/dev/vfio/devices/vfio3"}])
def test_a_device_that_is_in_use_is_not_asked(kernel: Kernel, nodes: dict[str, str]) -> None:
    kernel.in_use = True
    with pytest.raises(NotAsked, match=f"^{DEVICE}: it is in use, or its group isn't viable$"):
        ask(**nodes)


def test_a_device_without_a_node_here_is_not_asked() -> None:
    with pytest.raises(NotAsked, match=r"^it has no node of VFIO$"):
        ask()
    with pytest.raises(NotAsked, match="No such file or directory"):
        ask(group="/dev/vfio/4444444")


def test_the_group_is_taken_where_there_is_no_iommufd(kernel: Kernel) -> None:
    assert ask(group="/dev/vfio/44", cdev="/dev/vfio/devices/vfio9") == ("peer to peer",)
    assert kernel.done == ["group", "iommu", "open"]
