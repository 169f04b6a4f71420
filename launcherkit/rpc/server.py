"""grpclib's server with limits: bounded connections, an answer for every method, and a shutdown that flushes."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import struct
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from grpclib import Status
from grpclib.config import Configuration
from grpclib.const import Cardinality
from grpclib.const import Handler as Method
from grpclib.events import RecvRequest, listen
from grpclib.protocol import H2Protocol
from grpclib.server import Server, Stream
from h2.connection import H2Connection

from launcherkit.rpc.calls import Calls, Faults
from launcherkit.rpc.connection import BoundedConnection, CallHandler, Connections
from launcherkit.rpc.methods import Servicer
from launcherkit.rpc.unix_socket import InUse, NotMade, SocketIdentity, socket_at

# Who may call: root and this process's user, who may end this process anyway (T4).


_CREDENTIALS = struct.Struct("iII")
"""The pid, uid and gid of a peer: ``struct ucred``."""
_AT_ONCE = 16
"""How many strangers are turned away before the event loop has its turn."""


class OwnersSocket(socket.socket):
    """A listening unix socket that closes connections of others as it accepts them."""

    def accept(self) -> tuple[socket.socket, Any]:
        """See `socket.socket`.

        Raises:
            ConnectionAbortedError: there were only strangers; asyncio tries again.
        """
        for _ in range(_AT_ONCE):
            connection, address = super().accept()
            uid = _uid_of(connection)
            if uid in (0, os.geteuid()):
                return connection, address
            connection.close()
            text = f"a connection of user {uid} was closed: only root and the user of this process may call"
            asyncio.get_running_loop().call_exception_handler({"message": text})
        raise ConnectionAbortedError


def _uid_of(connection: socket.socket) -> int:
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return int(_CREDENTIALS.unpack(credentials)[1])


WINDOW_BYTES = (1 << 16) - 1
"""Bytes that a peer may send before they are read, for each connection: HTTP/2's default, not grpclib's 4 MiB."""

H2Connection.MAX_CLOSED_STREAMS = 1024
"""Each call is a stream. h2 remembers how streams ended, to tolerate late frames: by default of 65,536, which takes
8 MB for a client that stays connected, as the kubelet does."""


class BoundedServer(Server):
    """grpclib's server with limits on what peers can use (T4).

    Args:
        services: the servicers.
        calls: those under way; servers of one process may share them.
    """

    def __init__(self, services: Sequence[Servicer], calls: Calls) -> None:
        windows = Configuration(http2_connection_window_size=WINDOW_BYTES, http2_stream_window_size=WINDOW_BYTES)
        super().__init__(services, config=windows)
        self._mapping = _Methods(self._mapping)
        self._connections = Connections()
        listen(self, RecvRequest, calls.admit)

    async def listen(self, bound: socket.socket) -> None:
        """Serve on a bound unix socket, which the caller must close."""
        listening = OwnersSocket(fileno=os.dup(bound.fileno()))
        try:
            await self.start(sock=listening)
        except BaseException:  # asyncio leaves it open if this is cancelled
            listening.close()
            raise

    def _protocol_factory(self) -> H2Protocol:
        self.__gc_step__()
        calls = CallHandler(self._mapping, self._codec, self._status_details_codec, self.__dispatch__)
        self._handlers.add(calls)
        return BoundedConnection(calls, self._config, self._h2_config, self._connections)

    def refuse(self) -> None:
        """Accept no more connections; existing ones stay."""
        assert self._server is not None
        self._server.close()

    async def hang_up(self) -> None:
        """Close each connection after everything written has been sent."""
        self.close()
        await self._connections.hang_up()


@asynccontextmanager
async def serving(
    path: str,
    services: Sequence[Servicer],
    in_use: InUse,
    not_made: NotMade,
    *,
    drain_seconds: float,
    endless: Collection[str] = (),
    late: Callable[[str], object] = lambda _: None,
) -> AsyncIterator[SocketIdentity]:
    """Serve on a unix socket while the block runs.

    At its end new calls are refused, those under way get some seconds, then connections are closed and the socket is
    removed, in this order. Endless calls must be ended first.

    Args:
        path, in_use, not_made: as for `launcherkit.rpc.unix_socket.socket_at`, whose errors are raised.
        services: as for `BoundedServer`.
        drain_seconds: how long calls under way may take to finish.
        endless: as for `Calls`.
        late: called with a line about calls that did not finish.
    """
    with socket_at(path, in_use, not_made) as (made, ours):
        calls = Calls(endless)
        server = BoundedServer(services, calls)
        await server.listen(made)
        try:
            yield ours
        finally:
            server.refuse()
            await finish([server], calls, drain_seconds, late)


async def finish(
    servers: Sequence[BoundedServer],
    calls: Calls,
    seconds: float,
    late: Callable[[str], object],
    hurried: asyncio.Event | None = None,
) -> None:
    """Wait for calls in progress, send their answers, and close all connections.

    Args:
        servers: which accept no more connections.
        calls: theirs.
        seconds: how long the calls may take.
        late: called with a line about those that did not finish.
        hurried: they aren't waited for any more once this is set.
    """
    draining = asyncio.ensure_future(calls.drain(seconds))
    waiting = asyncio.ensure_future((hurried or asyncio.Event()).wait())
    try:
        await asyncio.wait({draining, waiting}, return_when=asyncio.FIRST_COMPLETED)
        if draining.done() and (left := draining.result()):
            late(f"ending; calls that did not finish in {seconds:.0f} s: {left}")
    finally:
        draining.cancel()
        waiting.cancel()
        for server in servers:
            await server.hang_up()


class _Methods(dict[str, Method]):
    """Has a method for unknown names: grpclib's own refusal lacks a content type, so clients can't read it."""

    def get(self, name: str, default: object = None) -> Any:  # noqa: ARG002
        async def unknown(stream: Stream[Any, Any]) -> None:
            await stream.send_trailing_metadata(
                status=Status.UNIMPLEMENTED, status_message=f"launcherkit serves no {name[:200]} on this socket"
            )

        return super().get(name) or Method(unknown, Cardinality.UNARY_UNARY, object, object)


def report_faults(env: Mapping[str, str], report: Callable[[str], None]) -> None:
    """Report faults of the running event loop, each once (T4). grpclib's and asyncio's tracebacks are kept out of the
    log: peers' errors are not faults of this process.
    """
    asyncio.get_running_loop().set_exception_handler(Faults(report))
    if not env.get("LAUNCHERKIT_DEBUG"):
        for name in ("grpclib", "asyncio"):
            logger = logging.getLogger(name)
            logger.addHandler(logging.NullHandler())
            logger.propagate = False
