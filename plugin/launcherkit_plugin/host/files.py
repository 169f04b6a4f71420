"""Reads and writes single files of sysfs. A write is executed by a driver, and some never return."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from launcherkit.host.source import Host, open_host
from launcherkit.host.tree import DiskTree

if TYPE_CHECKING:
    from launcherkit.host.tree import Tree


_IOMMUFD_NODE, _IOMMUFD_CLASS = "dev/iommu", "sys/class/misc/iommu"


class NodeTree(DiskTree):
    """The files of the node as the pod of the device plugin sees them.

    A DaemonSet can't mount a file that only some nodes have, so ``/dev/iommu`` is missing in the pod. iommufd also
    registers the device in sysfs, which every pod has.
    """

    __slots__ = ()

    def exists(self, path: str) -> bool:
        return super().exists(path) or (path == _IOMMUFD_NODE and super().exists(_IOMMUFD_CLASS))


def node_host(root: str) -> Host:
    """The node with this root directory. ``root`` may also name a snapshot or a recording.

    Raises:
        LauncherkitError: see `open_host`.
    """
    return open_host(root).followed(NodeTree)


class DiskFiles:
    """The files below a directory, the root of a host. A write blocks as long as the driver takes."""

    def __init__(self, root: str) -> None:
        self._root = root

    def tree(self) -> Tree:
        """The files to read; the caller closes it."""
        return NodeTree(self._root)

    def write(self, path: str, text: str) -> None:
        """Write to an existing file, ``sys/bus/mdev/devices/...``.

        Raises:
            TimeoutError: the write hasn't returned; it may still succeed.
            OSError: the kernel refuses it.
        """
        # Neither O_CREAT nor O_TRUNC: a missing file is an error, and files of sysfs have no length.
        handle = os.open(os.path.join(self._root, path), os.O_WRONLY | os.O_CLOEXEC | os.O_NOCTTY)
        try:
            os.write(handle, text.encode())
        finally:
            os.close(handle)
