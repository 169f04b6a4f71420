"""Binds a unix socket at a path: a visible socket can be used, and a live one is never replaced.

Clients that look for sockets connect to whatever is in the folder, so a name that accepts connections must be the final
one. The socket is bound under another name, gets its mode, is renamed, and listens last: until then it refuses.
"""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TypeAlias
from zlib import crc32

from launcherkit.errors import LauncherkitError

MODE = 0o660
"""Clients have this process's user or group."""

DIAL_SECONDS = 1.0

PATH_BYTES = 107
"""Linux's limit for a socket's path."""

SocketIdentity: TypeAlias = tuple[int, int, int]
"""Device, inode and change time; the inode alone may be reused at once."""

InUse: TypeAlias = Callable[[str], LauncherkitError]
NotMade: TypeAlias = Callable[[str, str], LauncherkitError]
"""Makes the error from the path and the reason."""


@contextmanager
def socket_at(path: str, in_use: InUse, not_made: NotMade) -> Iterator[tuple[socket.socket, SocketIdentity]]:
    """A socket at a path, not listening yet; removed at the end if it is still there.

    Args:
        path: of at most `PATH_BYTES`.
        in_use: makes the error if another process answers at the path.
        not_made: makes the error if the folder is missing or can't be written, or something else has the name.
    """
    if len(os.fsencode(path)) > PATH_BYTES:
        raise not_made(path, f"AF_UNIX path too long: a socket's has {PATH_BYTES} bytes at most")
    _make_way(path, in_use, not_made)
    folder, name = os.path.split(path)
    aside = os.path.join(folder, f".{crc32(name.encode()):08x}")  # short: if the path can be bound, so can this one
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    with made:
        try:
            with suppress(FileNotFoundError):
                os.unlink(aside)  # left by a predecessor that was killed between the next lines
            made.bind(aside)
            os.chmod(aside, MODE)
            os.rename(aside, path)
            ours = identity(path)
        except OSError as problem:
            with suppress(OSError):
                os.unlink(aside)
            raise not_made(path, problem.strerror or str(problem)) from problem
        if ours is None:
            raise not_made(path, "it was removed at once")
        try:
            yield made, ours
        finally:
            if identity(path) == ours:  # a successor's socket stays
                with suppress(OSError):
                    os.unlink(path)


def identity(path: str) -> SocketIdentity | None:
    """The identity of the file at a path; None if there is none."""
    try:
        status = os.lstat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino, status.st_ctime_ns


def _make_way(path: str, in_use: InUse, not_made: NotMade) -> None:
    """Check that nothing is at the path except the socket of a dead process."""
    try:
        mode = os.lstat(path).st_mode
    except FileNotFoundError:
        return
    except OSError as problem:
        raise not_made(path, problem.strerror or str(problem)) from problem
    if not stat.S_ISSOCK(mode):
        raise not_made(path, "what is there is not a socket")
    if answers(path):
        raise in_use(path)


def answers(path: str) -> bool:
    """Whether a process listens there, even if it is too busy to accept; a socket that refuses has no process."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(DIAL_SECONDS)
        try:
            probe.connect(path)
        except (ConnectionRefusedError, FileNotFoundError):
            return False
        except OSError:
            return True
        return True
