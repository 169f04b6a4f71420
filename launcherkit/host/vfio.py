"""Asks a VFIO device what its driver can do, by opening it as QEMU does.

Opening resets most PCI functions, and closing resets them again, so a device must be in no use. The kernel sees to
that: a group, or a device with iommufd, is had by one process at a time. A VM that starts meanwhile finds it busy.
Numbers and structures are those of Linux, ``include/uapi/linux/vfio.h``.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct
from contextlib import ExitStack

_GET_DEVICE_FD, _SET_CONTAINER, _SET_IOMMU = 0x3B6A, 0x3B68, 0x3B66
_DEVICE_FEATURE, _BIND_IOMMUFD = 0x3B75, 0x3B76
_TYPE1_V2 = 3
_FEATURE_GET, _FEATURE_MIGRATION = 1 << 16, 1
_MODES = {1 << 1: "peer to peer", 1 << 2: "pre-copy"}


class NotAsked(Exception):
    """A device could not be asked; the text says why."""


def ask_migration(device: str, *, group: str | None, cdev: str | None) -> tuple[str, ...] | None:
    """The ways in which a device migrates besides ``stop and copy``, which every one knows; None if it can't migrate.

    Args:
        device: its name to VFIO: a PCI address, or the UUID of a mediated device.
        group: the path of its group's node.
        cdev: the path of its own node, for iommufd; used if it and ``/dev/iommu`` exist.

    Raises:
        NotAsked: it is in use, has no node here, or may not be opened.
    """
    with ExitStack() as open_files:
        try:
            if cdev is not None and os.path.exists(cdev) and os.path.exists("/dev/iommu"):
                fd = _by_iommufd(cdev, open_files)
            elif group is not None:
                fd = _by_group(device, group, open_files)
            else:
                raise NotAsked("it has no node of VFIO")
        except OSError as problem:
            in_use = problem.errno in (errno.EBUSY, errno.EINVAL)
            reason = "it is in use, or its group isn't viable" if in_use else problem.strerror or str(problem)
            raise NotAsked(f"{problem.filename or device}: {reason}") from problem
        feature = bytearray(struct.pack("=IIQ", 16, _FEATURE_GET | _FEATURE_MIGRATION, 0))
        try:
            fcntl.ioctl(fd, _DEVICE_FEATURE, feature)
        except OSError as problem:
            if problem.errno == errno.ENOTTY:
                return None
            raise NotAsked(f"{device}: {problem.strerror}") from problem
        (flags,) = struct.unpack_from("=Q", feature, 8)
        return tuple(name for bit, name in _MODES.items() if flags & bit)


def _open(path: str, open_files: ExitStack) -> int:
    fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    open_files.callback(os.close, fd)
    return fd


def _by_iommufd(cdev: str, open_files: ExitStack) -> int:
    iommu, fd = _open("/dev/iommu", open_files), _open(cdev, open_files)
    fcntl.ioctl(fd, _BIND_IOMMUFD, bytearray(struct.pack("=IIiI", 16, 0, iommu, 0)))
    return fd


def _by_group(device: str, group: str, open_files: ExitStack) -> int:
    container, members = _open("/dev/vfio/vfio", open_files), _open(group, open_files)
    fcntl.ioctl(members, _SET_CONTAINER, struct.pack("=i", container))
    fcntl.ioctl(container, _SET_IOMMU, _TYPE1_V2)
    fd: int = fcntl.ioctl(members, _GET_DEVICE_FD, bytearray(device.encode() + b"\0"))
    open_files.callback(os.close, fd)
    return fd
