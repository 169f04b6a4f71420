"""The unix socket of a hook: bound so that who sees it can talk to it, and nobody else's is taken.

KubeVirt's launcher lists the folder and dials whatever is in it, so a name that can be dialled must be the final one.
The socket is bound under another name, gets its mode, takes its place by rename, and listens last: until then it
refuses, and the launcher tries again.
"""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from launcherkit.errors import BadHookName, SocketInUse, SocketNotMade

MODE = 0o660
"""The launcher has this process's user or, by ``fsGroup``, its group."""

DIAL_SECONDS = 1.0


def check_name(name: str, what: str) -> str:
    """A name of one path component, for the socket's file or folder.

    Raises:
        BadHookName: it holds what a container's or a plugin's name can't.
    """
    plain = name.replace("-", "").replace(".", "").replace("_", "")
    if not (plain.isascii() and plain.isalnum() and name[0].isalnum() and len(name) <= 253):
        raise BadHookName(
            f"{what}: {name[:60]!r} is no name of a socket",
            "Give letters, digits, dots and dashes, a letter or digit first, as Kubernetes names containers.",
        )
    return name


@contextmanager
def bound_socket(path: str) -> Iterator[socket.socket]:
    """A socket at a path, not listening yet; gone again afterwards, where it is still ours.

    Raises:
        SocketInUse: another process answers there.
        SocketNotMade: the folder is not there or can't be written, or something else is in the way.
    """
    _make_way(path)
    folder, name = os.path.split(path)
    aside = os.path.join(folder, f".{name}.new")
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    with made:
        try:
            with suppress(FileNotFoundError):
                os.unlink(aside)  # of a predecessor that was killed between the next lines
            made.bind(aside)
            os.chmod(aside, MODE)
            os.rename(aside, path)
        except OSError as problem:
            with suppress(OSError):
                os.unlink(aside)
            raise not_made(path, problem) from problem
        ours = os.lstat(path)
        try:
            yield made
        finally:
            remove(path, ours)


def not_made(path: str, problem: OSError | str) -> SocketNotMade:
    """The error where a socket can't be made."""
    why = (problem.strerror or str(problem)) if isinstance(problem, OSError) else problem
    return SocketNotMade(
        f"{path}: no socket can be made there: {why}",
        "Mount the folder that the launcher looks into, writable for this user, or name another one.",
    )


def remove(path: str, ours: os.stat_result) -> None:
    """Take our socket away; one that a successor put in its place stays."""
    with suppress(OSError):
        there = os.lstat(path)
        if (there.st_dev, there.st_ino) == (ours.st_dev, ours.st_ino):
            os.unlink(path)


def _make_way(path: str) -> None:
    """See that nothing is at the path but the socket of a process that has died."""
    try:
        mode = os.lstat(path).st_mode
    except FileNotFoundError:
        return
    except OSError as problem:
        raise not_made(path, problem) from problem
    if not stat.S_ISSOCK(mode):
        raise not_made(path, "what is there is not a socket")
    if _answers(path):
        raise SocketInUse(
            f"{path}: another process answers there",
            "Run one hook for each name: set CONTAINER_NAME to the container's own, or name another folder.",
        )


def _answers(path: str) -> bool:
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
