"""Reads whole files named on a command line."""

from __future__ import annotations

import os
import stat
import sys

from launcherkit.errors import UnreadableFile

LIMIT = 64 << 20
"""The limit, in bytes."""

_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
"""Non-blocking, because opening a FIFO without a writer would wait for ever."""

_KINDS = {
    stat.S_IFIFO: "a FIFO or pipe",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
}
_REMEDY_KIND = "Give a regular file. If standard input can be read, - stands for it."


def read_file(path: str, limit: int = LIMIT) -> bytes:
    """The content of a file, or of standard input for ``-``; at most ``limit`` bytes of it.

    Raises:
        UnreadableFile: names the path and the system's reason, or what it is instead of a regular file.
    """
    try:
        if path == "-":
            if sys.stdin is None:
                raise ValueError("standard input is closed")
            return sys.stdin.buffer.read(limit)
        handle = os.open(path, _FLAGS)
        try:
            kind = stat.S_IFMT(os.fstat(handle).st_mode)
            if kind in _KINDS:
                raise UnreadableFile(f"{path}: is {_KINDS[kind]}, not a file", _REMEDY_KIND, file=path)
            with open(handle, "rb", closefd=False) as file:  # raises for a directory
                return file.read(limit)
        finally:
            os.close(handle)
    except (OSError, ValueError) as problem:
        reason = problem.strerror if isinstance(problem, OSError) and problem.strerror else str(problem)
        raise UnreadableFile(f"{path}: {reason}", "Check the path and its permissions.", file=path) from problem
