"""The files of claims, written whole or not at all, and removed; what that takes, tests can make fail."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress

from launcherkit.atomic import write_atomically
from launcherkit.errors import UnwritableFile
from launcherkit_plugin.model.errors import ClaimFilesFailed


class WholeFiles:
    """Writes and removes files.

    Args:
        step: called with each path before something is done to it; a test raises there what it wants to happen.
    """

    def __init__(self, step: Callable[[str], object] = str) -> None:
        self._step = step

    def write(self, path: str, data: bytes, *, durable: bool = False) -> None:
        """Put it there, readable for everyone, with the folders above it.

        Args:
            path: of the file.
            data: all of it.
            durable: it is on disk when this returns. What is made again after the next boot needn't be.

        Raises:
            ClaimFilesFailed: names the file and the reason; it is as it was.
        """
        self._step(path)
        with suppress(OSError):  # the write gives the reason
            os.makedirs(os.path.dirname(path), mode=0o755, exist_ok=True)
        try:
            write_atomically(path, data, durable=durable)
        except UnwritableFile as problem:
            raise files_failed("can't be written", problem.message, path) from problem

    def remove(self, path: str) -> None:
        """Remove it; what isn't there needn't be removed.

        Raises:
            ClaimFilesFailed: names the file and the reason.
        """
        self._step(path)
        try:
            os.unlink(path)
        except (FileNotFoundError, NotADirectoryError):
            return
        except OSError as problem:
            raise files_failed("can't be removed", f"{path}: {problem.strerror}", path) from problem


def files_failed(what: str, why: str, path: str) -> ClaimFilesFailed:
    """The error of a file that ``what`` says."""
    return ClaimFilesFailed(
        f"a file of the ResourceClaim {what}: {why}",
        "Make room on that file system, or mount the folder writable (component `dra`). The kubelet tries again by "
        "itself.",
        file=path,
    )
