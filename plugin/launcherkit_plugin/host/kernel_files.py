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
    """The files below a directory. A write blocks for as long as the driver takes."""

    def __init__(self, root: str) -> None:
        self._root = root

    def tree(self) -> Tree:
        return DiskTree(self._root)

    def write(self, path: str, text: str) -> None:
        # Neither made nor cut: what isn't there is an error, and a file of sysfs has no length.
        handle = os.open(os.path.join(self._root, path), os.O_WRONLY | os.O_CLOEXEC | os.O_NOCTTY)
        try:
            os.write(handle, text.encode())
        finally:
            os.close(handle)


class TimedFiles(DiskFiles):
    """The same for a command, whose user must not wait for ever: a write that takes too long is left to itself.

    The daemon has `launcherkit_plugin.host.guarded` for this, which knows later what hangs.
    """

    def __init__(self, root: str, patience: float = PATIENCE_SECONDS) -> None:
        super().__init__(root)
        self._patience = patience

    def write(self, path: str, text: str) -> None:
        problems: list[OSError] = []

        def attempt() -> None:
            try:
                super(TimedFiles, self).write(path, text)
            except OSError as problem:
                problems.append(problem)

        thread = threading.Thread(target=attempt, name=f"write {path}", daemon=True)
        thread.start()
        thread.join(self._patience)
        if thread.is_alive():
            raise TimeoutError(f"no answer for {self._patience:g} s")
        for problem in problems:
            raise problem
