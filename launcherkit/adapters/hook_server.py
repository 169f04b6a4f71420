"""Serves hooks on unix sockets until it is told to end, then lets the calls under way finish."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any, NamedTuple, cast

from grpclib import Status
from grpclib.const import Cardinality
from grpclib.const import Handler as Method
from grpclib.events import RecvRequest, listen
from grpclib.protocol import H2Protocol
from grpclib.server import Handler as Connected
from grpclib.server import Server, Stream

from launcherkit.adapters.hook_calls import Calls
from launcherkit.adapters.hook_socket import bound_socket
from launcherkit.edge import tell

CONNECTIONS_AT_ONCE = 256
DRAIN_SECONDS = 20.0
"""Below the 30 s that Kubernetes gives a container to end."""

FLUSH_SECONDS = 5.0


class Endpoint(NamedTuple):
    """A socket's path, the services on it, and what they are called in the log."""

    path: str
    services: Sequence[Any]  # generated bases, which have a ``__mapping__`` alone in common
    title: str


async def serve(endpoints: Sequence[Endpoint], stop: asyncio.Event, env: Mapping[str, str]) -> None:
    """Serve until ``stop`` is set, or SIGTERM or SIGINT arrive; a second signal doesn't wait for calls any more.

    Raises:
        SocketInUse, SocketNotMade: nothing is served then.
    """
    _keep_quiet(env)
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: tell("error", f"a connection failed: {context['message']}", env))
    calls, hurry = Calls(), asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, lambda: hurry.set() if stop.is_set() else stop.set())
    with ExitStack() as sockets:
        bound = [(endpoint, sockets.enter_context(bound_socket(endpoint.path))) for endpoint in endpoints]
        servers = []
        for endpoint, sock in bound:
            server = HookServer(endpoint.services)
            listen(server, RecvRequest, calls.admit)
            await server.start(sock=sock)
            servers.append(server)
            tell("note", f"serving {endpoint.title} on {endpoint.path}", env)
        await stop.wait()
        for server in servers:
            server.refuse()
    tell("note", f"ending; calls under way: {len(calls)}", env)
    await _finish(servers, calls, hurry, env)


async def _finish(servers: Sequence[HookServer], calls: Calls, hurry: asyncio.Event, env: Mapping[str, str]) -> None:
    """Wait for calls, send what they answered, and close."""
    draining = asyncio.ensure_future(calls.drain(DRAIN_SECONDS))
    hurried = asyncio.ensure_future(hurry.wait())
    await asyncio.wait({draining, hurried}, return_when=asyncio.FIRST_COMPLETED)
    hurried.cancel()
    if not draining.done():
        draining.cancel()
    elif late := draining.result():
        tell("error", f"ending; {late} calls did not finish in {DRAIN_SECONDS:.0f} s", env)
    for server in servers:
        await server.hang_up()


class HookServer(Server):
    """grpclib's server with its connections counted, so that they can be limited, and flushed at the end."""

    def __init__(self, services: Sequence[Any]) -> None:
        super().__init__(services)
        self._open: set[asyncio.Transport] = set()
        self._all_gone = asyncio.Event()
        self._all_gone.set()

    def _protocol_factory(self) -> H2Protocol:
        plain = super()._protocol_factory()
        assert isinstance(plain.handler, Connected)
        plain.handler.mapping = _Methods(plain.handler.mapping)
        return _Counted(plain, self._opened, self._closed)

    def _opened(self, transport: asyncio.Transport) -> bool:
        if len(self._open) >= CONNECTIONS_AT_ONCE:
            return False
        self._open.add(transport)
        self._all_gone.clear()
        return True

    def _closed(self, transport: asyncio.Transport) -> None:
        self._open.discard(transport)
        if not self._open:
            self._all_gone.set()

    def refuse(self) -> None:
        """Accept no more connections; those that are there stay."""
        assert self._server is not None
        self._server.close()

    async def hang_up(self) -> None:
        """Close every connection once what was written to it has left."""
        self.close()
        for transport in list(self._open):
            transport.close()
        try:
            async with asyncio.timeout(FLUSH_SECONDS):
                await self._all_gone.wait()
        except TimeoutError:  # who doesn't read its answer doesn't keep us
            for transport in list(self._open):
                transport.abort()


class _Methods(dict[str, Method]):
    """Has a method for unknown names: grpclib refuses them without a content type, which clients can't read."""

    def get(self, name: str, default: object = None) -> Any:  # noqa: ARG002
        async def unknown(stream: Stream[Any, Any]) -> None:
            await stream.send_trailing_metadata(
                status=Status.UNIMPLEMENTED, status_message=f"launcherkit serves no {name[:200]} on this socket"
            )

        return super().get(name) or Method(unknown, Cardinality.UNARY_UNARY, object, object)


class _Counted(H2Protocol):
    """A connection that says when it comes and goes."""

    def __init__(
        self,
        plain: H2Protocol,
        opened: Callable[[asyncio.Transport], bool],
        closed: Callable[[asyncio.Transport], None],
    ) -> None:
        super().__init__(plain.handler, plain.config, plain.h2_config)
        self._when_opened = opened
        self._when_closed = closed
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        taken = cast("asyncio.Transport", transport)
        if not self._when_opened(taken):
            self.handler.close()
            taken.abort()
            return
        self._transport = taken
        super().connection_made(transport)

    def connection_lost(self, exc: BaseException | None) -> None:
        if self._transport is not None:
            super().connection_lost(exc)
            self._when_closed(self._transport)
            self._transport = None


def _keep_quiet(env: Mapping[str, str]) -> None:
    """What peers do wrong is theirs: grpclib's and asyncio's tracebacks are for who debugs us."""
    if not env.get("LAUNCHERKIT_DEBUG"):
        for name in ("grpclib", "asyncio"):
            logger = logging.getLogger(name)
            logger.addHandler(logging.NullHandler())
            logger.propagate = False
