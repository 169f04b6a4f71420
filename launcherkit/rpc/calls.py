"""Calls under way: received within bounds, counted, and ended if they are too many, too large or too late (T4).

grpclib reads messages of any declared length, and waits for ever. Here the length is checked before the message is
read, each call has a time limit, and if there are too many, the one that has made the least progress ends.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from contextvars import ContextVar
from math import inf
from typing import Any, Protocol, TypeVar

from google.protobuf.message import DecodeError
from grpclib import GRPCError, Status
from grpclib.events import RecvRequest
from grpclib.server import Stream

from launcherkit.errors import MessageTooLarge
from launcherkit.rpc.refusal import refusal

REQUEST_BYTES = 16 << 20
"""The largest request, in bytes: a domain may have 8 MiB (X5), and the VMI comes in addition."""
BYTES_UNDER_WAY = REQUEST_BYTES
"""The limit for the unanswered requests of all calls together, in bytes. Beyond it the oldest large call ends,
preferably one whose request has not arrived."""
RECEIVE_SECONDS = 30.0
"""How long a request may take to arrive."""
CALL_SECONDS = 120.0
"""How long a call may take, from its headers to the last byte of its answer's message."""
CALLS_AT_ONCE = 256
STREAMS_AT_ONCE = 16
"""The limit for endless calls, such as the kubelet's ListAndWatch, of which each resource has one."""

_PIECE_BYTES = 64 * 1024


class Decodable(Protocol):
    """The part of a generated message that is used."""

    @classmethod
    def FromString(cls, s: bytes) -> Decodable: ...  # protobuf's name


AskedT = TypeVar("AskedT", bound=Decodable)
Answered = TypeVar("Answered")


async def receive(stream: Stream[AskedT, Answered], message_type: type[AskedT], limit: int = REQUEST_BYTES) -> AskedT:
    """The only message of a request, of at most ``limit`` bytes.

    Raises:
        GRPCError: it is too large (LK615), malformed or compressed, or does not arrive.
    """
    call = _CALL.get()
    try:
        data = await _frame(stream, limit, call.grow)
    except AssertionError as short:  # grpclib raises it if the stream ends early
        raise GRPCError(Status.INVALID_ARGUMENT, "the request ended in the middle of its message") from short
    try:
        message = message_type.FromString(data)
    except DecodeError as broken:
        raise GRPCError(Status.INVALID_ARGUMENT, f"the request is not a {message_type.__name__}") from broken
    assert isinstance(message, message_type)
    call.arrived()
    return message


async def _frame(stream: Stream[AskedT, Answered], limit: int, grow: Callable[[int], None]) -> bytes:
    """The bytes of a message, which a flag and a length of four bytes precede."""
    arriving = stream._stream  # the only way to see the length; grpclib 0.4 has no limit of its own
    head = await arriving.recv_data(5)
    if len(head) < 5:
        raise GRPCError(Status.INVALID_ARGUMENT, "the request has no message")
    if head[0]:
        raise GRPCError(Status.UNIMPLEMENTED, "compressed messages are not read")
    length = int.from_bytes(head[1:], "big")
    if length > limit:
        raise refusal(
            MessageTooLarge(
                f"the request has {length} bytes, the limit is {limit}",
                "Send less: a domain may have 8 MiB, and the VMI comes in addition; requests of a kubelet are some "
                "kilobytes.",
            )
        )
    data = bytearray()
    while left := length - len(data):
        piece = await arriving.recv_data(min(left, _PIECE_BYTES))
        if not piece:
            raise GRPCError(Status.INVALID_ARGUMENT, "the request ended in the middle of its message")
        grow(len(piece))
        data += piece
    return bytes(data)


class _Call:
    """A call under way.

    Args:
        timeout: ends it.
        calls: all that are under way.
        now: when its headers arrived, in seconds of the event loop.
        seconds: how long it may take.
    """

    def __init__(self, timeout: asyncio.Timeout, calls: Calls, now: float, seconds: float) -> None:
        self._timeout = timeout
        self._calls = calls
        self._deadline = now + seconds
        self.due = min(now + RECEIVE_SECONDS, self._deadline)
        """When it is ended, unless its request is complete by then."""
        self.why = ""
        """Why it was ended."""
        self.has_arrived = False
        self.size = 0

    def grow(self, size: int) -> None:
        """Count bytes that have arrived."""
        self.size += size
        self._calls.count_bytes(size)

    def arrived(self) -> None:
        """Its request is complete."""
        self.has_arrived, self.due = True, self._deadline

    def end(self, why: str = "others had to wait") -> None:
        """End it early."""
        self.why = why
        self.release()
        if not self._timeout.expired():
            self._timeout.reschedule(asyncio.get_running_loop().time())

    def release(self) -> None:
        """Its request is no longer kept, and its time no longer runs."""
        size, self.size, self.has_arrived, self.due = self.size, 0, True, inf
        self._calls.count_bytes(-size)


_CALL: ContextVar[_Call] = ContextVar("call")
"""The call that the running task answers."""


class Calls:
    """The calls that are under way. `admit` is a listener of grpclib's `RecvRequest`.

    Args:
        endless: the paths of methods whose calls have no end.
    """

    def __init__(self, endless: Collection[str] = ()) -> None:
        self.draining = False
        self._endless = endless
        self._streams = 0
        self._calls: dict[asyncio.Task[object], _Call] = {}
        self._size = 0
        self._timer: asyncio.TimerHandle | None = None
        """One timer for all calls. If each had its own, nearly all would be cancelled unused."""

    async def admit(self, event: RecvRequest) -> None:
        """Count a call until its answer is written, or refuse it."""
        if self.draining:
            raise GRPCError(Status.UNAVAILABLE, "launcherkit is ending")
        if event.method_name in self._endless:
            if self._streams >= STREAMS_AT_ONCE:
                raise GRPCError(Status.RESOURCE_EXHAUSTED, f"{STREAMS_AT_ONCE} such calls are under way")
            event.method_func = self._within(event.method_func, inf)
            return
        if len(self._calls) >= CALLS_AT_ONCE:
            waiting = next((call for call in self._calls.values() if not call.has_arrived), None)
            if waiting is None:
                raise GRPCError(Status.RESOURCE_EXHAUSTED, f"{CALLS_AT_ONCE} calls are under way; try again")
            waiting.end()
        event.method_func = self._within(event.method_func, CALL_SECONDS)

    def _within(self, method: Callable[[Stream[Any, Any]], Any], seconds: float) -> Any:
        """The method with a time limit; infinity: only the request has one."""

        async def limited(stream: Stream[Any, Any]) -> None:
            timeout = asyncio.timeout(None)
            call = _Call(timeout, self, asyncio.get_running_loop().time(), seconds)
            try:
                async with timeout:
                    await self._counted(method, stream, call, endless=seconds == inf)
            except TimeoutError as late:
                raise GRPCError(Status.DEADLINE_EXCEEDED, call.why or "the call took too long") from late

        return limited

    async def _counted(
        self, method: Callable[[Stream[Any, Any]], Any], stream: Stream[Any, Any], call: _Call, *, endless: bool
    ) -> None:
        _CALL.set(call)
        task = asyncio.current_task()
        assert task is not None
        self._calls[task] = call
        self._streams += endless
        self._watch(call.due)
        try:
            await method(stream)
        finally:
            self._streams -= endless
            call.release()
            task.add_done_callback(self._calls.pop)  # its trailers are still to be written

    def _watch(self, due: float) -> None:
        """Look at ``due`` for calls whose time is over, if that is before the next look."""
        if self._timer is not None:
            if self._timer.when() <= due:
                return
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_at(due, self._end_late)

    def _end_late(self) -> None:
        """End calls whose time is over."""
        self._timer = None
        now = asyncio.get_running_loop().time()
        for call in self._calls.values():
            if call.due <= now:
                call.end("the call took too long" if call.has_arrived else "the request did not arrive in time")
        earliest = min((call.due for call in self._calls.values()), default=inf)
        if earliest < inf:
            self._watch(earliest)

    def count_bytes(self, size: int) -> None:
        """Add to the bytes under way; if there are too many, a call ends."""
        self._size += size
        if self._size > BYTES_UNDER_WAY:
            large = [call for call in self._calls.values() if call.size >= _PIECE_BYTES]
            if large:
                min(large, key=lambda call: call.has_arrived).end()

    def __len__(self) -> int:
        return len(self._calls)

    async def drain(self, seconds: float) -> int:
        """Refuse new calls and wait for the others; returns the number of those that did not end in time."""
        self.draining = True
        late = (await asyncio.wait(set(self._calls), timeout=seconds))[1] if self._calls else ()
        if self._timer is not None:
            self._timer.cancel()
        return len(late)
