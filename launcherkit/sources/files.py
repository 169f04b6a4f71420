"""Reads whole files that people name on a command line."""

from __future__ import annotations

import sys

from launcherkit.errors import UnreadableFile

LIMIT = 64 << 20
"""Bytes; more is not read, for a name may stand for a device that never ends."""


def read_file(path: str, limit: int = LIMIT) -> bytes:
    """The content of a file, or of standard input for ``-``; at most ``limit`` bytes of it.

    Raises:
        UnreadableFile: names the path and the system's reason.
    """
    try:
        if path == "-":
            if sys.stdin is None:
                raise ValueError("standard input is closed")
            return sys.stdin.buffer.read(limit)
        with open(path, "rb") as file:
            return file.read(limit)
    except (OSError, ValueError) as problem:
        reason = problem.strerror if isinstance(problem, OSError) and problem.strerror else str(problem)
        raise UnreadableFile(f"{path}: {reason}", "Check the path and its permissions.") from problem
