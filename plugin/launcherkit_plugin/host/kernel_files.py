"""Reads and writes files of sysfs below some root. A write is an order to a driver, and some never come back."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, Protocol

from launcherkit.sources.tree import DiskTree

if TYPE_CHECKING:
    from launcherkit.sources.tree import Tree

PATIENCE_SECONDS = 15.0
"""For how long a write may take. A driver that has more to do than that is stuck, often for ever."""


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
    """The files below a directory.

    A write runs in a thread of its own. One that takes too long is left to itself, and until it is done no other is
    begun at the same file, so no more than one thread hangs at each.
    """

    def __init__(self, root: str, patience: float = PATIENCE_SECONDS) -> None:
        self._root = root
        self._patience = patience
        self._stuck: set[str] = set()

    @property
    def hanging(self) -> frozenset[str]:
        """Where something is being written, perhaps for ever."""
        return frozenset(self._stuck)

    def tree(self) -> Tree:
        return DiskTree(self._root)

    def write(self, path: str, text: str) -> None:
        if path in self._stuck:
            raise TimeoutError(f"an earlier write to {path} hangs")
        self._stuck.add(path)
        problems: list[OSError] = []
        thread = threading.Thread(target=self._write, args=(path, text, problems), name=f"write {path}", daemon=True)
        thread.start()
        thread.join(self._patience)
        if thread.is_alive():
            raise TimeoutError(f"no answer for {self._patience:g} s")
        for problem in problems:
            raise problem

    def _write(self, path: str, text: str, problems: list[OSError]) -> None:
        try:
            # Neither made nor cut: what isn't there is an error, and a file of sysfs has no length.
            handle = os.open(os.path.join(self._root, path), os.O_WRONLY | os.O_CLOEXEC | os.O_NOCTTY)
            try:
                os.write(handle, text.encode())
            finally:
                os.close(handle)
        except OSError as problem:
            problems.append(problem)
        finally:
            self._stuck.discard(path)
