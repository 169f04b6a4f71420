"""Whether a configuration's files are others than they were."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import NamedTuple


class FileVersion(NamedTuple):
    """Which file is behind a path at the moment. Kubelets swap a link above a ConfigMap's files, editors rename."""

    real: str
    inode: int
    size: int
    changed_ns: int


def versions(paths: Iterable[str]) -> dict[str, FileVersion | None]:
    """What is behind each path, None where nothing is. Compare with an earlier one."""
    return {path: _version(path) for path in paths}


def _version(path: str) -> FileVersion | None:
    real = os.path.realpath(path)
    try:
        status = os.stat(real)
    except OSError:
        return None
    return FileVersion(real, status.st_ino, status.st_size, status.st_mtime_ns)


def folders(paths: Iterable[str]) -> tuple[str, ...]:
    """The folders in which something changes when one of the files does: its own, and that of what it is a link to."""
    found: dict[str, None] = {}
    for path in paths:
        found[os.path.dirname(os.path.abspath(path))] = None
        found[os.path.dirname(os.path.realpath(path))] = None
    return tuple(found)
