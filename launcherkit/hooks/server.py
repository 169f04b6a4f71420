"""Serves hooks on unix sockets until it is told to stop, then finishes the calls under way."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from launcherkit.errors import BAD_HOOK_NAME, SOCKET_IN_USE, SOCKET_NOT_MADE, CannotServe
from launcherkit.process.edge import print_message
from launcherkit.process.stopping import Stop, stopped_by_signals
from launcherkit.rpc.calls import Calls
from launcherkit.rpc.methods import Servicer
from launcherkit.rpc.server import BoundedServer, finish, report_faults
from launcherkit.rpc.unix_socket import socket_at

# The unix socket of a hook, and its name.


def check_name(name: str, source: str) -> str:
    """A name of one path component, for the socket's file or folder.

    Raises:
        BAD_HOOK_NAME: it isn't valid as the name of a container or a plugin.
    """
    plain = name.replace("-", "").replace(".", "").replace("_", "")
    if not (plain.isascii() and plain.isalnum() and name[0].isalnum() and len(name) <= 253):
        raise BAD_HOOK_NAME(
            f"{source}: {name[:60]!r} is not a valid socket name",
            "Give letters, digits, dots and dashes, a letter or digit first, as Kubernetes names containers.",
            key=source,
        )
    return name


@contextmanager
def bound_socket(path: str) -> Iterator[socket.socket]:
    """A socket at a path, not listening yet: a launcher that finds it tries again until it listens.

    Raises:
        SOCKET_IN_USE: another process answers there.
        SOCKET_NOT_MADE: the folder is not there or can't be written, or something else has the name.
    """
    with socket_at(path, _in_use, not_made) as (made, _):
        yield made


def _in_use(path: str) -> CannotServe:
    return SOCKET_IN_USE(
        f"{path}: another process answers there",
        "Run one hook for each name: set CONTAINER_NAME to the container's own, or name another folder.",
        file=path,
    )


def not_made(path: str, reason: str) -> CannotServe:
    """The error for a socket that can't be created."""
    return SOCKET_NOT_MADE(
        f"{path}: the socket can't be created: {reason}",
        "Mount the folder that the launcher looks into, writable for this user, or name another one.",
        file=path,
    )


DRAIN_SECONDS = 20.0
"""Below the 30 s that Kubernetes gives a container to end."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A socket's path, the services on it, and their name in the log."""

    path: str
    services: Sequence[Servicer]
    title: str


async def serve(endpoints: Sequence[Endpoint], stop: Stop, env: Mapping[str, str]) -> None:
    """Serve until ``stop`` is asked, or SIGTERM or SIGINT arrives; after a second signal calls aren't waited for.

    Raises:
        SOCKET_IN_USE, SOCKET_NOT_MADE: a socket can't be had; nothing is served.
    """
    report_faults(env, lambda text: print_message("error", text, env))
    calls = Calls()
    with stopped_by_signals(stop):
        with ExitStack() as sockets:
            bound = [(endpoint, sockets.enter_context(bound_socket(endpoint.path))) for endpoint in endpoints]
            servers = []
            for endpoint, sock in bound:
                server = BoundedServer(endpoint.services, calls)
                await server.listen(sock)
                servers.append(server)
                print_message("note", f"serving {endpoint.title} on {endpoint.path}", env)
            await stop.asked.wait()
            for server in servers:
                server.refuse()
        print_message("note", f"ending; calls under way: {len(calls)}", env)
        await finish(servers, calls, DRAIN_SECONDS, lambda text: print_message("error", text, env), stop.hurried)
