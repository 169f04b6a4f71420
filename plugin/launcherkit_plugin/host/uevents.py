"""Wakeup of devices (uevents over netlink), where this process can have them."""

from __future__ import annotations

import errno
import os
import socket

_KOBJECT_UEVENT = 15
_KERNELS_GROUP = 1

SUBSYSTEMS = frozenset({"pci", "vfio", "vfio-dev", "mdev", "iommu", "drivers"})
"""What says that a device, its driver or its node has come or gone."""


def open_uevents() -> socket.socket | None:
    """A socket that is readable when uevents have come; None where the kernel sends none, as in some sandboxes."""
    try:
        made = socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC, _KOBJECT_UEVENT)
    except OSError:
        return None
    try:
        made.setblocking(False)
        made.bind((0, _KERNELS_GROUP))
    except OSError:
        made.close()
        return None
    return made


def read_uevents(source: socket.socket) -> bool:
    """Whether any of the uevents that have come is about devices of ours; lost ones may have been."""
    concerns_us = False
    while True:
        try:
            data, (sender, _) = source.recvfrom(65536)
        except BlockingIOError:
            return concerns_us
        except OSError as error:
            if error.errno != errno.ENOBUFS:
                return True
            concerns_us = True  # more came than was read
            continue
        if sender == 0:  # the kernel; processes may send too
            concerns_us = concerns_us or subsystem_of(data) in SUBSYSTEMS


def subsystem_of(data: bytes) -> str:
    """``pci`` for ``add@/devices/pci0000:00/...\\0ACTION=add\\0SUBSYSTEM=pci\\0``; empty where none is named."""
    for field in data.split(b"\0"):
        name, _, value = field.partition(b"=")
        if name == b"SUBSYSTEM":
            return os.fsdecode(value)
    return ""
