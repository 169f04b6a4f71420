"""The progress of a thread that reads files of the host: when one of its steps hangs, whose file that is."""

from __future__ import annotations

import errno
import re
from collections.abc import Collection

from launcherkit.host.tree import PAGE, DiskTree
from launcherkit_plugin.host.files import NodeTree

STALL_SECONDS = 1.0
"""If a step takes longer, it hangs."""

_OF_DEVICE = re.compile(
    r"/(?:bus/(?:pci|mdev)/devices|class/mdev_bus|bus/pci/drivers/[^/]+(?=/[^/]*:))/([^/]+)"
    r"|/kernel/iommu_groups/([0-9]+)"
)
_FUNCTIONS = "/bus/pci/devices/"
_HANGS = OSError(errno.ETIMEDOUT, "an earlier attempt to read one of its files has not returned")


class Progress:
    """The progress of one thread, which updates it; others read it.

    Args:
        without: names of devices whose files are not touched, because one of them hangs.
        groups: of each IOMMU group, by number, the device that was read last; updated.
    """

    def __init__(self, without: Collection[str] = frozenset(), groups: dict[str, str] | None = None) -> None:
        self.without = without
        self.steps = 0
        """How many steps were begun."""
        self.path = ""
        """The file or directory of the last of them."""
        self.owner: str | None = None
        """The device for which files are read whose paths name none."""
        self._groups = {} if groups is None else groups

    @property
    def device(self) -> str | None:
        """The device whose file it is: a BDF, the UUID of an mdev, or the name of a parent."""
        match = _OF_DEVICE.search(self.path)
        if match is None:
            return self.owner
        return match[1] or self._groups.get(match[2], self.owner)

    def to(self, path: str) -> None:
        """Note the next step."""
        self.path = path
        self.steps += 1

    def text(self) -> str:
        """The present activity, in words."""
        return f"reading {self.path}"

    def open_tree(self, path: str) -> DiskTree:
        """A tree of files that updates this progress."""
        self.to(path)
        return _FollowedTree(path, self)

    def has_group(self, target: str | None) -> None:
        """Note to which group the link of the present device points."""
        if target is not None and (device := self.device) is not None:
            self._groups[target.rpartition("/")[2]] = device


class _FollowedTree(NodeTree):
    """Notes every step. A function that is left out is one that can't be read, and so not taken for free (T2)."""

    __slots__ = ("_progress",)

    def __init__(self, path: str, progress: Progress, parent: DiskTree | None = None) -> None:
        super().__init__(path, parent)
        self._progress = progress

    def read(self, path: str, limit: int = PAGE, offset: int = 0) -> bytes | None:
        return None if self._is_left_out(path) else super().read(path, limit, offset)

    def link(self, path: str) -> str | None:
        if self._is_left_out(path):
            return None
        target = super().link(path)
        if path.endswith("iommu_group"):
            self._progress.has_group(target)
        return target

    def names(self, path: str) -> list[str]:
        return [] if self._is_left_out(path) else super().names(path)

    def inodes(self, path: str) -> dict[str, int]:
        return {} if self._is_left_out(path) else super().inodes(path)

    def exists(self, path: str) -> bool:
        self._progress.to(f"{self._path}/{path}")
        return self._names_left_out() or super().exists(path)

    def below(self, path: str) -> DiskTree:
        self._is_left_out(path)
        return _FollowedTree(path, self._progress, self)

    def _is_left_out(self, path: str) -> bool:
        """Note the next step, and whether it isn't taken.

        Raises:
            UnreadableFile: it isn't, and is about a PCI function.
        """
        self._progress.to(f"{self._path}/{path}")
        if not self._names_left_out():
            return False
        if _FUNCTIONS in self._progress.path:
            self._look_at(_HANGS, path)
        return True

    def _names_left_out(self) -> bool:
        progress = self._progress
        return bool(progress.without) and progress.device in progress.without
