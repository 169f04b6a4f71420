"""One call over gRPC: received within bounds, counted, and refused where it is too much or too late.

grpclib reads whatever length a message says that it has. Here the length is looked at before the message is read.
"""

from __future__ import annotations

import asyncio
from typing import Protocol, TypeVar

from google.protobuf.message import DecodeError
from grpclib import GRPCError, Status
from grpclib.events import RecvRequest
from grpclib.server import Stream

from launcherkit.errors import MessageTooLarge
from launcherkit.rpc.refusal import refusal

REQUEST_BYTES = 16 << 20
"""The largest request: a domain may have 8 MiB (X5), and the VMI comes beside it."""

RECEIVE_SECONDS = 30.0
"""For how long a request may be on its way: who stops in the middle must not hold its place for ever."""

CALLS_AT_ONCE = 256


class Decodable(Protocol):
    """What is used of a generated message."""

    @classmethod
    def FromString(cls, s: bytes) -> Decodable: ...  # protobuf's name


Asked = TypeVar("Asked", bound=Decodable)
Answered = TypeVar("Answered")


async def receive(stream: Stream[Asked, Answered], message_type: type[Asked]) -> Asked:
    """The one message of a request.

    Raises:
        GRPCError: it is too large (LK615), broken, compressed, or does not arrive.
    """
    try:
        async with asyncio.timeout(RECEIVE_SECONDS):
            data = await _frame(stream)
    except TimeoutError as late:
        raise GRPCError(Status.DEADLINE_EXCEEDED, "the request did not arrive in time") from late
    except AssertionError as short:  # grpclib's way to say that the stream ended before
        raise GRPCError(Status.INVALID_ARGUMENT, "the request ended in the middle of its message") from short
    try:
        message = message_type.FromString(data)
    except DecodeError as broken:
        raise GRPCError(Status.INVALID_ARGUMENT, f"the request is no {message_type.__name__}") from broken
    assert isinstance(message, message_type)
    return message


async def _frame(stream: Stream[Asked, Answered]) -> bytes:
    """The bytes of a message: a flag and a length of four bytes come before it."""
    arriving = stream._stream  # the only way to see the length; grpclib 0.4 has no limit of its own
    head = await arriving.recv_data(5)
    if len(head) < 5:
        raise GRPCError(Status.INVALID_ARGUMENT, "the request has no message")
    if head[0]:
        raise GRPCError(Status.UNIMPLEMENTED, "compressed messages are not read")
    length = int.from_bytes(head[1:], "big")
    if length > REQUEST_BYTES:
        raise refusal(
            MessageTooLarge(
                f"the request has {length} bytes, the limit is {REQUEST_BYTES}",
                "Send the domain and the VMI alone; a domain may have 8 MiB.",
            )
        )
    return await arriving.recv_data(length)


class Calls:
    """The calls that are under way. `admit` is a listener of grpclib's `RecvRequest`."""

    def __init__(self) -> None:
        self.draining = False
        self._tasks: set[asyncio.Task[object]] = set()

    async def admit(self, _: RecvRequest) -> None:
        """Count a call until its answer is written, or refuse it."""
        if self.draining:
            raise GRPCError(Status.UNAVAILABLE, "launcherkit is ending")
        if len(self._tasks) >= CALLS_AT_ONCE:
            raise GRPCError(Status.RESOURCE_EXHAUSTED, f"{CALLS_AT_ONCE} calls are under way; try again")
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def __len__(self) -> int:
        return len(self._tasks)

    async def drain(self, seconds: float) -> int:
        """Refuse new calls and wait for the others; gives the number of those that did not end in time."""
        self.draining = True
        if not self._tasks:
            return 0
        _, late = await asyncio.wait(set(self._tasks), timeout=seconds)
        return len(late)
