"""One connection of a server, with limits (T4) for frames, for time without a call, and for time without reading.

It adds limits to grpclib's protocol, which takes in whatever a peer sends, at once, and writes without bound.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Protocol, cast

from grpclib import protocol
from grpclib.config import Configuration
from grpclib.protocol import H2Protocol
from grpclib.server import Handler
from h2.config import H2Configuration

from launcherkit.rpc.frames import Budget, Frames

IDLE_SECONDS = 300.0
"""How long a connection may stay without a call. One with a call under way, such as the kubelet's, isn't idle."""
STALL_SECONDS = 30.0
"""How long a peer may read nothing of what is written to it."""
FLUSH_SECONDS = 5.0
"""How long a peer may take to read the rest after the last write."""
LINGER_SECONDS = 1.0
"""How long a peer that has got everything may take to close."""
READ_BYTES = 64 * 1024
"""How much is read from a socket at once."""


class Peers(Protocol):
    """What a connection must know about the others: `launcherkit.rpc.connections.Connections`."""

    debtors: int
    """How many connections wait for their budget to grow."""

    def opened(self, connection: BoundedConnection) -> bool: ...

    def closed(self, connection: BoundedConnection) -> None: ...


class CallHandler(Handler):
    """grpclib's calls of one connection, each released exactly once, however it ends.

    grpclib keeps a stream for ever if its task is cancelled before it has begun, as by a reset directly after the
    headers.
    """

    when_ended: Callable[[bool], None]
    """Called at the end of a call, with whether it was answered."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._reset: set[protocol.Stream] = set()

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
                self.when_ended(stream not in self._reset)
                self._reset.discard(stream)

        super().accept(stream, headers, release)
        self._tasks[stream].add_done_callback(release)

    def cancel(self, stream: protocol.Stream) -> None:
        """See grpclib: the peer has reset the stream."""
        self._reset.add(stream)
        super().cancel(stream)


class HalfClosingTransport:
    """A transport whose writing can be shut down while it goes on reading.

    What grpclib writes after that is dropped; asyncio's own transports would raise an error.
    """

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._finished = False
        self.get_extra_info = transport.get_extra_info
        self.is_reading = transport.is_reading
        self.pause_reading = transport.pause_reading
        self.resume_reading = transport.resume_reading
        self.abort = transport.abort
        self.close = transport.close
        self.get_write_buffer_size = transport.get_write_buffer_size

    def write(self, data: bytes) -> None:
        """Write after earlier data."""
        if not self._finished:
            self._transport.write(data)

    def finish(self) -> None:
        """Shut down writing after everything written has been sent, and keep reading until the peer closes.

        A peer that writes to a socket closed in both directions gets EPIPE, and grpclib's clients then drop an answer
        that they have not read yet.
        """
        self._finished = True
        self._transport.write_eof()

    def is_closing(self) -> bool:
        """Whether it no longer accepts writes."""
        return self._finished or self._transport.is_closing()


class BoundedConnection(H2Protocol):
    """A connection that takes turns with the others."""

    def __init__(
        self, calls: CallHandler, config: Configuration, h2_config: H2Configuration, connections: Peers
    ) -> None:
        super().__init__(calls, config, h2_config)
        calls.when_ended = self._call_ended
        self._peers = connections
        self._loop = asyncio.get_running_loop()
        self._frames = Frames()
        self._budget = Budget(self._loop.time())
        self._pending, self._at = b"", 0
        self._turn: asyncio.Handle | None = None
        self._in_debt = False
        self._stalled: asyncio.TimerHandle | None = None
        self._idle: asyncio.TimerHandle | None = None
        self._transport: HalfClosingTransport | None = None
        self.last_used = self._loop.time()
        """When it was opened, or its last call was answered; in monotonic seconds."""

    @property
    def is_busy(self) -> bool:
        """Whether it has a call whose request has arrived."""
        return any(stream.buffer._eof for stream in self.processor.streams.values())

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See asyncio. If there is no room for it, it is closed without a greeting."""
        taken = cast("asyncio.Transport", transport)
        if not self._peers.opened(self):
            self.handler.close()
            taken.abort()
            return
        taken.max_size = READ_BYTES  # type: ignore[attr-defined]  # asyncio's selector transports have it
        self._transport = HalfClosingTransport(taken)
        super().connection_made(cast("asyncio.Transport", self._transport))
        self._idle = self._loop.call_later(IDLE_SECONDS, self._look_whether_idle)

    def data_received(self, data: bytes) -> None:
        """See asyncio."""
        if self._transport is None or self._transport.is_closing():
            return
        self._pending, self._at = self._pending[self._at :] + data, 0
        if self._turn is None:
            self._take()

    def _take(self) -> None:
        """Take a few frames. If some are left, or they cost too much, reading pauses."""
        transport = self._transport
        if transport is None:
            return
        self._turn = None
        self._set_debt(False)
        end, cost = self._frames.take(self._pending, self._at)
        part, self._at = self._pending[self._at : end], end
        try:
            super().data_received(part)
        except Exception:  # a frame that is unknown to grpclib or malformed ends only its connection
            self.abort()
        if transport.is_closing():
            self._pending, self._at = b"", 0
            return
        owed = self._budget.spend(cost, self._loop.time(), self._peers.debtors)
        if owed:
            self._set_debt(True)
            self._turn = self._loop.call_later(owed, self._take)
        elif self._at < len(self._pending):
            self._turn = self._loop.call_soon(self._take)
        if self._turn is not None:
            transport.pause_reading()
        elif not transport.is_reading():
            transport.resume_reading()

    def _set_debt(self, in_debt: bool) -> None:
        self._peers.debtors += in_debt - self._in_debt
        self._in_debt = in_debt

    def pause_writing(self) -> None:
        """See asyncio."""
        super().pause_writing()
        self._stalled = self._loop.call_later(STALL_SECONDS, self.abort)

    def resume_writing(self) -> None:
        """See asyncio."""
        super().resume_writing()
        _cancel(self._stalled)

    def _call_ended(self, answered: bool) -> None:
        self.last_used = self._loop.time()
        if answered:
            self._budget.answered()

    def _look_whether_idle(self) -> None:
        left = self.last_used + IDLE_SECONDS - self._loop.time()
        if self.processor.streams:
            left = IDLE_SECONDS
        if left > 0:
            self._idle = self._loop.call_later(left, self._look_whether_idle)
        else:
            self.end()

    def end(self) -> None:
        """Send GOAWAY, so that the peer connects again for further calls, and close."""
        if self._transport is not None and not self._transport.is_closing():
            self.connection._connection.close_connection()
            self.connection.flush()
            self.close()

    def close(self) -> None:
        """Stop writing after everything written has been sent; the connection ends when the peer closes, or after some
        seconds."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.finish()
            self._transport.resume_reading()
            _cancel(self._turn)
            _cancel(self._idle)
            left = self._transport.get_write_buffer_size()
            self._idle = self._loop.call_later(FLUSH_SECONDS if left else LINGER_SECONDS, self.abort)

    def abort(self) -> None:
        """Close at once."""
        if self._transport is not None:
            self._transport.abort()

    def connection_lost(self, exc: BaseException | None) -> None:
        """See asyncio."""
        if self._transport is None:
            return
        self._transport = None
        for handle in (self._turn, self._stalled, self._idle):
            _cancel(handle)
        self._pending, self._at = b"", 0
        self._set_debt(False)
        super().connection_lost(exc)
        self._peers.closed(self)


def _cancel(handle: asyncio.Handle | None) -> None:
    if handle is not None:
        handle.cancel()
