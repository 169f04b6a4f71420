"""Reads and writes single files of sysfs. A write is an order to a driver, and some never come back."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Protocol

from launcherkit.sources.host import Host, open_host
from launcherkit.sources.tree import DiskTree

if TYPE_CHECKING:
    from launcherkit.sources.tree import Tree


_IOMMUFD_NODE, _IOMMUFD_CLASS = "dev/iommu", "sys/class/misc/iommu"


class NodeTree(DiskTree):
    """The files of the node, as the pod of the device plugin has them.

    A file that only some nodes have can't be mounted into the pods of all, so ``/dev/iommu`` isn't in this one. iommufd
    registers the device in sysfs, which is in every pod.
    """

    __slots__ = ()

    def exists(self, path: str) -> bool:
        return super().exists(path) or (path == _IOMMUFD_NODE and super().exists(_IOMMUFD_CLASS))


def node_host(root: str) -> Host:
    """The node with this root; in the place of a root the text may name a snapshot or a recording.

    Raises:
        LauncherkitError: as `open_host`.
    """
    return open_host(root).followed(NodeTree)


class KernelFiles(Protocol):
    """What changes a host. Paths are relative to its root: ``sys/bus/mdev/devices``."""

    def tree(self) -> Tree:
        """To read from, and to be closed."""
        ...

    def write(self, path: str, text: str) -> None:
        """Write to a file that is there.

        Raises:
            TimeoutError: it is still being written; it may come to pass later.
            OSError: as the kernel refuses it.
        """
        ...


class DiskFiles:
    """The files below a directory. A write blocks for as long as the driver takes."""

    def __init__(self, root: str) -> None:
        self._root = root

    def tree(self) -> Tree:
        return NodeTree(self._root)

    def write(self, path: str, text: str) -> None:
        # Neither made nor cut: what isn't there is an error, and a file of sysfs has no length.
        handle = os.open(os.path.join(self._root, path), os.O_WRONLY | os.O_CLOEXEC | os.O_NOCTTY)
        try:
            os.write(handle, text.encode())
        finally:
            os.close(handle)
