"""A unix socket at a path: bound so that who sees it can talk to it, and nobody else's is taken.

Who looks for sockets dials whatever is in the folder, so a name that can be dialled must be the final one. The socket
is bound under another name, gets its mode, takes its place by rename, and listens last: until then it refuses.
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
"""Who dials has this process's user or group."""

DIAL_SECONDS = 1.0

PATH_BYTES = 107
"""Linux's limit."""

SocketIdentity: TypeAlias = tuple[int, int, int]
"""Device, inode and change time: an inode's number is given to the next file at once."""

InUse: TypeAlias = Callable[[str], LauncherkitError]
NotMade: TypeAlias = Callable[[str, str], LauncherkitError]
"""By the path and the reason."""


@contextmanager
def socket_at(path: str, in_use: InUse, not_made: NotMade) -> Iterator[tuple[socket.socket, SocketIdentity]]:
    """A socket at a path, not listening yet; gone again afterwards, where it is still ours.

    Args:
        path: of at most `PATH_BYTES`.
        in_use: the error where another process answers at the path.
        not_made: the error where the folder is not there or can't be written, or something else is in the way.
    """
    if len(os.fsencode(path)) > PATH_BYTES:
        raise not_made(path, f"AF_UNIX path too long: a socket's has {PATH_BYTES} bytes at most")
    _make_way(path, in_use, not_made)
    folder, name = os.path.split(path)
    aside = os.path.join(folder, f".{crc32(name.encode()):08x}")  # short: a path that can be bound can be bound beside
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    with made:
        try:
            with suppress(FileNotFoundError):
                os.unlink(aside)  # of a predecessor that was killed between the next lines
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
            if identity(path) == ours:  # one that a successor put in its place stays
                with suppress(OSError):
                    os.unlink(path)


def identity(path: str) -> SocketIdentity | None:
    """What is at a path; None where nothing is."""
    try:
        there = os.lstat(path)
    except OSError:
        return None
    return there.st_dev, there.st_ino, there.st_ctime_ns


def _make_way(path: str, in_use: InUse, not_made: NotMade) -> None:
    """See that nothing is at the path but the socket of a process that has died."""
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
    """Whether a process listens there. One that is too busy to accept does; one that only refuses has died."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(DIAL_SECONDS)
        try:
            probe.connect(path)
        except (ConnectionRefusedError, FileNotFoundError):
            return False
        except OSError:
            return True
        return True
