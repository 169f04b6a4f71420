"""Files that are there and can't be read: after an I/O error, without permission, or because a call never returns."""

from __future__ import annotations

import os
import resource
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

READERS = ("launcherkit.host.tree", "launcherkit_plugin.devices.nodes")
"""The modules that read sysfs."""


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


class Stall:
    """System calls of those who read sysfs that don't return.

    ``words``: such a call has one of them in its path, at its end if a word ends with ``$``; ``calls``: their names, as
    in the module ``os``.
    """

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.words: tuple[str, ...] = ()
        self.calls: tuple[str, ...] = ("open",)
        self.waiting: set[int] = set()
        """The threads whose calls don't return."""
        self.free = threading.Event()
        for module in READERS:
            patch.setattr(f"{module}.os", _HangingOs(self, import_module(module).os))

    def call(self, name: str, path: str | int, dir_fd: int | None) -> None:
        """A system call: returns once it may be done."""
        if name not in self.calls:
            return
        free = self.free  # before the words: that of a stall that has ended meanwhile is set
        folder = path if isinstance(path, int) else dir_fd
        whole = "" if folder is None or folder < 0 else os.readlink(f"/proc/self/fd/{folder}")
        if not isinstance(path, int):
            whole = f"{whole}/{path}"
        if any(word in f"{whole}$" for word in self.words):
            self.waiting.add(threading.get_ident())
            free.wait(60)
            self.waiting.discard(threading.get_ident())

    def ends(self) -> None:
        """All return, and from now on no call hangs."""
        self.words = ()
        self.free.set()
        self.free = threading.Event()


class _HangingOs:
    """The module ``os`` for one module that reads files."""

    def __init__(self, stall: Stall, beneath: Any) -> None:
        self._stall = stall
        self._os = beneath

    def __getattr__(self, name: str) -> Any:
        function = getattr(self._os, name)
        if name not in ("open", "read", "pread", "readlink", "listdir", "scandir", "access"):
            return function

        def call(path: str | int, *arguments: Any, dir_fd: int | None = None) -> Any:
            self._stall.call(name, path, dir_fd)
            return function(path, *arguments, **({} if dir_fd is None else {"dir_fd": dir_fd}))

        return call


@contextmanager
def failing(path: Path, errno: int, *modules: str) -> Iterator[None]:
    """Everything at and below a path fails for some modules: those that read sysfs, if none is named.

    Paths are as they are walked: what is reached by another link doesn't fail.
    """
    with pytest.MonkeyPatch.context() as patch:
        for module in modules or READERS:
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
