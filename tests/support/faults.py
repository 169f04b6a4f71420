"""Files that are there and can't be read: after an I/O error, without permission, or on a mount that has gone stale."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest


class FaultyOs:
    """The module ``os`` for one module that reads files, or another such: below some path every call fails."""

    def __init__(self, path: Path, errno: int, beneath: Any = os) -> None:
        self._os = beneath
        self._path = str(path)
        self._errno = errno

    def __getattr__(self, name: str) -> Any:
        return getattr(self._os, name)

    def open(self, path: str, flags: int, *, dir_fd: int | None = None) -> Any:
        self._check(path, dir_fd)
        return self._os.open(path, flags, dir_fd=dir_fd)

    def readlink(self, path: str, *, dir_fd: int | None = None) -> Any:
        self._check(path, dir_fd)
        return self._os.readlink(path, dir_fd=dir_fd)

    def listdir(self, path: str) -> Any:
        self._check(path, None)
        return self._os.listdir(path)

    def _check(self, path: str, dir_fd: int | None) -> None:
        folder = os.readlink(f"/proc/self/fd/{dir_fd}") if dir_fd is not None and dir_fd >= 0 else os.getcwd()
        whole = os.path.normpath(os.path.join(folder, path))
        if whole == self._path or whole.startswith(self._path + "/"):
            raise OSError(self._errno, os.strerror(self._errno), path)


@contextmanager
def failing(path: Path, errno: int, *modules: str) -> Iterator[None]:
    """Everything at and below a path fails for some modules: those that read sysfs, if none is named.

    Paths are as they are walked: what is reached by another link doesn't fail.
    """
    with pytest.MonkeyPatch.context() as patch:
        for module in modules or ("launcherkit.sources.file_tree", "launcherkit_plugin.devices.nodes"):
            patch.setattr(f"{module}.os", FaultyOs(path, errno, import_module(module).os))
        yield


@contextmanager
def no_more_files() -> Iterator[None]:
    """This process can't open another file (EMFILE)."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest = os.open("/", os.O_RDONLY)
    os.close(lowest)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
