"""File trees from which hosts are read, such as a directory on disk.

Missing and vanished files are None, because sysfs changes while it is read. Existing files that can't be read are
errors: unknown is not absent (T2).
Paths are relative to the tree's root, without a leading slash: ``sys/bus/pci/devices``.
"""

from __future__ import annotations

import errno
import os
from typing import Protocol

from launcherkit.errors import UNREADABLE_FILE, UnreadableFile


class Tree(Protocol):
    """A file tree, as used by the readers of a host."""

    def read(self, path: str, limit: int = ..., offset: int = ...) -> bytes | None:
        """Up to ``limit`` bytes of a file from ``offset`` on."""

    def link(self, path: str) -> str | None:
        """The target of a symbolic link, as written."""

    def names(self, path: str) -> list[str]:
        """The entries of a directory, sorted; empty if there is no such directory."""

    def exists(self, path: str) -> bool:
        """Whether something is at ``path``, after following links; False also if that can't be found out."""

    def below(self, path: str) -> Tree:
        """The tree below the directory ``path``, empty if there is none; the caller closes it."""

    def close(self) -> None:
        """Release the tree's resources; nothing is read from it afterwards."""

    def __enter__(self) -> Tree: ...

    def __exit__(self, *error: object) -> None: ...


PAGE = 4096
"""Bytes of a page, the most that sysfs gives for an attribute; the few reads that may need more pass `LARGE`."""
LARGE = 65536

_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
"""Non-blocking, so that a FIFO in an untrusted tree can't block."""


_DIRECTORY = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC


_ABSENT = frozenset(
    {
        errno.ENOENT,
        errno.ENOTDIR,
        errno.ENODEV,
        errno.ENXIO,
        errno.ESRCH,
        errno.EBADF,  # below a directory that doesn't exist
        errno.EINVAL,  # not a link; also from drivers, for an attribute that they don't have at the moment
        errno.EISDIR,
        errno.ELOOP,
        errno.ENAMETOOLONG,
        errno.EOPNOTSUPP,
        errno.EAGAIN,
        errno.ESPIPE,  # a FIFO in place of a file
    }
)
"""Errors that mean that there is no such file."""

_EXHAUSTED = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})
"""Errors that say nothing about the file."""


def is_about_one_file(problem: UnreadableFile) -> bool:
    """Whether the file itself couldn't be read, rather than this process lacking resources to read any file."""
    cause = problem.__cause__
    return isinstance(cause, OSError) and cause.errno not in _EXHAUSTED


def why_unread(problem: UnreadableFile) -> str:
    """The reason why one function couldn't be read.

    Raises:
        UnreadableFile: the reason isn't the function: nothing else can be read either.
    """
    if not is_about_one_file(problem):
        raise problem
    return problem.message


class DiskTree:
    """The files under a directory, read by raw system calls relative to it.

    `open` takes three times as long, and for a short file the kernel spends most of its time on the path.

    Its methods raise `UnreadableFile` for existing files that can't be read, unless ``strict`` is False.
    """

    __slots__ = ("_path", "_root", "_strict")

    _path: str
    _root: int
    _strict: bool

    def __init__(self, path: str, parent: DiskTree | None = None, *, strict: bool = True) -> None:
        if parent is None:
            self._path, self._strict, above = path, strict, None
        else:
            self._path, self._strict, above = f"{parent._path}/{path}", parent._strict, parent._root
        self._root = -1
        try:
            self._root = os.open(path, _DIRECTORY, dir_fd=above)
        except ValueError:
            pass
        except OSError as problem:  # no file is found below that
            self._look_at(problem, "")

    def read(self, path: str, limit: int = PAGE, offset: int = 0) -> bytes | None:
        try:
            handle = os.open(path, _FLAGS, dir_fd=self._root)
        except ValueError:
            return None
        except OSError as problem:
            self._look_at(problem, path)
            return None
        try:
            return os.pread(handle, limit, offset)
        except OSError as problem:
            self._look_at(problem, path)
            return None
        finally:
            os.close(handle)

    def link(self, path: str) -> str | None:
        try:
            return os.readlink(path, dir_fd=self._root)
        except ValueError:
            return None
        except OSError as problem:
            self._look_at(problem, path)
            return None

    def names(self, path: str) -> list[str]:
        try:
            names = os.listdir(f"{self._path}/{path}")  # by path: a handle would take three more calls
        except ValueError:
            return []
        except OSError as problem:
            self._look_at(problem, path)
            return []
        names.sort()
        return names

    def inodes(self, path: str) -> dict[str, int]:
        """The entries of a directory with their inode numbers: an entry that was created again has another."""
        try:
            with os.scandir(f"{self._path}/{path}") as entries:
                return {entry.name: entry.inode() for entry in entries}
        except ValueError:
            return {}
        except OSError as problem:
            self._look_at(problem, path)
            return {}

    def exists(self, path: str) -> bool:
        return os.access(path, os.F_OK, dir_fd=self._root)

    def below(self, path: str) -> DiskTree:
        return DiskTree(path, self)

    def _look_at(self, problem: OSError, path: str) -> None:
        """Distinguish absent files from unreadable ones.

        Raises:
            UnreadableFile: the file exists, and this tree is strict.
        """
        if self._strict and problem.errno not in _ABSENT:
            raise UNREADABLE_FILE(
                f"{self._path}/{path}".rstrip("/") + f": {problem.strerror}",
                "If too many files are open, see `ulimit -n`; for an I/O error the kernel's log (dmesg) says more; "
                "else see permissions and mounts.",
                file=f"{self._path}/{path}".rstrip("/"),
            ) from problem

    def close(self) -> None:
        if self._root >= 0:
            os.close(self._root)
            self._root = -1

    def __enter__(self) -> DiskTree:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
