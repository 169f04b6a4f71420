"""One connection of a server: how much is read at once, and how it ends (T4)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

from grpclib import protocol
from grpclib.config import Configuration
from grpclib.protocol import H2Protocol
from grpclib.server import Handler
from h2.config import H2Configuration

if TYPE_CHECKING:
    pass

READ_BYTES = 1024
"""How much is read from a socket at once, then others have their turn: at most a hundred frames."""
SEND_BYTES = 16384
"""How much is written before it is sent without waiting for more."""
FLUSH_SECONDS = 5.0
"""How long a peer may take to read the rest after the last write."""
LINGER_SECONDS = 1.0
"""How long a peer that has got everything may take to close."""


class CallHandler(Handler):
    """grpclib's calls of one connection, each released exactly once, however it ends.

    grpclib keeps a stream for ever if its task is cancelled before it has begun, as by a reset directly after the
    headers.
    """

    when_ended: Callable[[], None]
    """Called at the end of a call."""

    def accept(
        self, stream: protocol.Stream, headers: list[tuple[str, str]], release_stream: Callable[[], Any]
    ) -> None:
        """See grpclib."""
        released = False

        def release(_: object = None) -> None:
            nonlocal released
            if not released:
                released = True
                release_stream()
                self.when_ended()

        super().accept(stream, headers, release)
        self._tasks[stream].add_done_callback(release)


class HalfClosingTransport:
    """A transport whose writing can be shut down while it goes on reading, and which sends at once what is written at
    one time: headers, message and trailers of an answer, which grpclib writes one by one, wake the peer once.

    What grpclib writes after the end is dropped; asyncio's own transports would raise an error.
    """

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._call_soon = asyncio.get_running_loop().call_soon
        self._unsent = bytearray()
        self._finished = False
        self.get_extra_info = transport.get_extra_info
        self.pause_reading = transport.pause_reading
        self.resume_reading = transport.resume_reading
        self.abort = transport.abort
        self.get_write_buffer_size = transport.get_write_buffer_size

    def write(self, data: bytes) -> None:
        """Write after earlier data. It is sent when the event loop has its turn, or before that if it is much."""
        if self._finished:
            return
        if not self._unsent:
            self._call_soon(self.flush)
        self._unsent += data
        if len(self._unsent) > SEND_BYTES:
            self.flush()

    def flush(self) -> None:
        """Send what has been written."""
        if self._unsent:
            unsent, self._unsent = self._unsent, bytearray()
            self._transport.write(unsent)

    def finish(self) -> None:
        """Shut down writing after everything written has been sent, and keep reading until the peer closes.

        A peer that writes to a socket closed in both directions gets EPIPE, and grpclib's clients then drop an answer
        that they have not read yet.
        """
        self._finished = True
        self.flush()
        self._transport.write_eof()

    def close(self) -> None:
        """Close both directions after everything written has been sent."""
        self.flush()
        self._transport.close()

    def is_closing(self) -> bool:
        """Whether it no longer accepts writes."""
        return self._finished or self._transport.is_closing()


class BoundedConnection(H2Protocol):
    """A connection of which little is read at once, and nothing while its peer doesn't read."""

    def __init__(
        self, calls: CallHandler, config: Configuration, h2_config: H2Configuration, connections: Connections
    ) -> None:
        super().__init__(calls, config, h2_config)
        calls.when_ended = self._call_ended
        self._connections = connections
        self._loop = asyncio.get_running_loop()
        self._ending: asyncio.TimerHandle | None = None
        self._transport: HalfClosingTransport | None = None
        self.last_used = self._loop.time()
        """When it was opened, or its last call ended; in monotonic seconds."""

    @property
    def is_busy(self) -> bool:
        """Whether it has a call whose request has arrived."""
        return any(stream.buffer._eof for stream in self.processor.streams.values())

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See asyncio. If there is no room for it, it is closed without a greeting."""
        taken = cast("asyncio.Transport", transport)
        if not self._connections.opened(self):
            self.handler.close()
            taken.abort()
            return
        read_little(taken)
        self._transport = HalfClosingTransport(taken)
        super().connection_made(cast("asyncio.Transport", self._transport))

    def data_received(self, data: bytes) -> None:
        """See asyncio."""
        if self._transport is None or self._transport.is_closing():
            return
        try:
            super().data_received(data)
        except Exception:  # a frame that is unknown to grpclib or malformed ends only its connection
            self.abort()

    def pause_writing(self) -> None:
        """See asyncio. Nothing more is read of a peer that doesn't read: most frames have an answer."""
        super().pause_writing()
        if self._transport is not None:
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        """See asyncio."""
        super().resume_writing()
        if self._transport is not None:
            self._transport.resume_reading()

    def _call_ended(self) -> None:
        self.last_used = self._loop.time()
        if self._transport is not None:
            self._transport.flush()

    def close(self) -> None:
        """Stop writing after everything written has been sent; the connection ends when the peer closes, or after some
        seconds."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.finish()
            self._transport.resume_reading()
            left = self._transport.get_write_buffer_size()
            self._ending = self._loop.call_later(FLUSH_SECONDS if left else LINGER_SECONDS, self.abort)

    def abort(self) -> None:
        """Close at once."""
        if self._transport is not None:
            self._transport.abort()

    def connection_lost(self, exc: BaseException | None) -> None:
        """See asyncio."""
        if self._transport is None:
            return
        self._transport = None
        if self._ending is not None:
            self._ending.cancel()
        super().connection_lost(exc)
        self._connections.closed(self)


def read_little(transport: asyncio.BaseTransport) -> None:
    """Read at most `READ_BYTES` of a peer before others have their turn; asyncio's own limit is 256 KiB."""
    transport.max_size = READ_BYTES  # type: ignore[attr-defined]  # asyncio's selector transports have it


# All connections of a server: their number is limited, and idle ones make room for new ones (T4).


CONNECTIONS_AT_ONCE = 256
NEW_SECONDS = 1.0
"""How long a connection without a call keeps its place at least, after it was opened or its last call ended."""


class Connections:
    """The open connections."""

    def __init__(self) -> None:
        self._open: dict[BoundedConnection, None] = {}
        self._ending = False
        self._all_gone = asyncio.Event()
        self._all_gone.set()

    def opened(self, connection: BoundedConnection) -> bool:
        """Whether there is room for a connection; if necessary, the one that has been idle for longest is closed."""
        if self._ending:  # it was accepted a moment ago; `hang_up` would miss it
            return False
        if len(self._open) >= CONNECTIONS_AT_ONCE:
            since = connection.last_used - NEW_SECONDS
            idle = [each for each in self._open if each.last_used <= since and not each.is_busy]
            if not idle:
                return False
            oldest = min(idle, key=lambda other: other.last_used)
            del self._open[oldest]
            oldest.abort()
        self._open[connection] = None
        self._all_gone.clear()
        return True

    def closed(self, connection: BoundedConnection) -> None:
        """Forget a connection that has ended."""
        self._open.pop(connection, None)
        if not self._open:
            self._all_gone.set()

    async def hang_up(self) -> None:
        """Close each connection after everything written has been sent; peers that don't read are not waited for."""
        self._ending = True
        for connection in list(self._open):
            connection.close()
        await self._all_gone.wait()
