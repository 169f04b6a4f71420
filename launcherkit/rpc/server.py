"""grpclib's server, bounded: so many connections, an answer for every method, and an end that flushes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from grpclib import Status
from grpclib.const import Cardinality
from grpclib.const import Handler as Method
from grpclib.protocol import H2Protocol
from grpclib.server import Handler as Connected
from grpclib.server import Server, Stream
from h2.connection import H2Connection

CONNECTIONS_AT_ONCE = 256

H2Connection.MAX_CLOSED_STREAMS = 1024
"""A call is a stream, and h2 remembers how each one ended, to forgive frames that come late: of 65,536 calls, which is
8 MB for a client that stays, as the kubelet does."""
FLUSH_SECONDS = 5.0


class BoundedServer(Server):
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


def keep_quiet(env: Mapping[str, str]) -> None:
    """What peers do wrong is theirs: grpclib's and asyncio's tracebacks are for who debugs us."""
    if not env.get("LAUNCHERKIT_DEBUG"):
        for name in ("grpclib", "asyncio"):
            logger = logging.getLogger(name)
            logger.addHandler(logging.NullHandler())
            logger.propagate = False
