"""The unix socket of a hook, and its name."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager

from launcherkit.errors import BadHookName, SocketInUse, SocketNotMade
from launcherkit.rpc.unix_socket import socket_at


def check_name(name: str, what: str) -> str:
    """A name of one path component, for the socket's file or folder.

    Raises:
        BadHookName: it isn't valid as the name of a container or a plugin.
    """
    plain = name.replace("-", "").replace(".", "").replace("_", "")
    if not (plain.isascii() and plain.isalnum() and name[0].isalnum() and len(name) <= 253):
        raise BadHookName(
            f"{what}: {name[:60]!r} is not a valid socket name",
            "Give letters, digits, dots and dashes, a letter or digit first, as Kubernetes names containers.",
            key=what,
        )
    return name


@contextmanager
def bound_socket(path: str) -> Iterator[socket.socket]:
    """A socket at a path, not listening yet: a launcher that finds it tries again until it listens.

    Raises:
        SocketInUse: another process answers there.
        SocketNotMade: the folder is not there or can't be written, or something else is in the way.
    """
    with socket_at(path, _in_use, not_made) as (made, _):
        yield made


def _in_use(path: str) -> SocketInUse:
    return SocketInUse(
        f"{path}: another process answers there",
        "Run one hook for each name: set CONTAINER_NAME to the container's own, or name another folder.",
        file=path,
    )


def not_made(path: str, why: str) -> SocketNotMade:
    """The error for a socket that can't be created."""
    return SocketNotMade(
        f"{path}: the socket can't be created: {why}",
        "Mount the folder that the launcher looks into, writable for this user, or name another one.",
        file=path,
    )
