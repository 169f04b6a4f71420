"""Writes the files of claims atomically, and removes them. Tests can make each step fail."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress

from launcherkit_plugin.model.errors import ClaimFilesFailed


class WholeFiles:
    """Writes and removes files.

    Args:
        step: called with each path before it is written or removed; tests raise errors there.
    """

    def __init__(self, step: Callable[[str], object] = str) -> None:
        self._step = step

    def write(self, path: str, data: bytes) -> None:
        """Write a file, readable for everyone, and create its folders. Only one task at a time may write a file.

        Raises:
            ClaimFilesFailed: names the file and the reason; the file is unchanged.
        """
        self._step(path)
        folder, name = os.path.split(path)
        beside = f"{folder}/.{name}"
        try:
            _write(beside, data)
            os.rename(beside, path)
        except OSError as problem:
            with suppress(OSError):
                os.unlink(beside)
            raise files_failed("can't be written", f"{path}: {problem.strerror}", path) from problem

    def remove(self, path: str) -> None:
        """Remove a file if it exists.

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


def _write(path: str, data: bytes) -> None:
    how = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        file = os.open(path, how)
    except FileNotFoundError:
        os.makedirs(os.path.dirname(path), mode=0o755, exist_ok=True)
        file = os.open(path, how)
    try:
        os.fchmod(file, 0o644)
        left = memoryview(data)
        while left:
            left = left[os.write(file, left) :]
    finally:
        os.close(file)


def files_failed(what: str, why: str, path: str) -> ClaimFilesFailed:
    """The error if a file ``what``, such as "can't be written"."""
    return ClaimFilesFailed(
        f"a file of the ResourceClaim {what}: {why}",
        "Make room on that file system, or mount the folder writable (component `dra`). The kubelet tries again by "
        "itself.",
        file=path,
    )
