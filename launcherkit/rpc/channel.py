"""A client's channel to a unix socket."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar, cast

from grpclib.client import Channel, Handler
from grpclib.protocol import H2Protocol

from launcherkit.rpc.connection import read_little

T = TypeVar("T")

OVERHEAD_BYTES = 64 * 1024
"""What a server may send that belongs to no message, such as headers and pings. 16 MiB have 10 KB."""


def unix_channel(path: str) -> Channel:
    """A channel to a unix socket; it connects on first use."""
    return _UnixChannel(path=path)


class _UnixChannel(Channel):
    """Has the authority ``localhost``, as Go's clients do; grpclib's is ``127.0.0.1:50051`` even for a unix socket."""

    def _get_authority(self, host: str, port: int) -> str:  # noqa: ARG002  # of grpclib
        return "localhost"

    def _protocol_factory(self) -> H2Protocol:
        return _BoundedClient(Handler(), self._config, self._h2_config)


class _BoundedClient(H2Protocol):
    """A connection to a server that may send without end: others have their turn, and it is closed after a while."""

    _read = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See asyncio."""
        read_little(transport)
        self._abort = cast("asyncio.Transport", transport).abort
        super().connection_made(transport)

    def data_received(self, data: bytes) -> None:
        """See asyncio."""
        self._read += len(data)
        super().data_received(data)
        if self._read - self.connection.data_received > OVERHEAD_BYTES:
            self._abort()


async def in_a_task(call: Coroutine[Any, Any, T]) -> T:
    """Run a call in a task of its own, which grpclib cancels when it loses the connection.

    grpclib doesn't undo the cancellation. Up to Python 3.11.2, Debian 12's, the caller's next `asyncio.timeout` would
    take it for a cancellation of the caller, whose task would end silently.
    """
    return await asyncio.create_task(call)
