"""Calls under way: received within bounds, counted, and ended if they take too long (T4).

grpclib reads messages of any declared length, and waits for ever. Here the length is checked before the message is
read, and each call has a time limit.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable
from typing import Any, Protocol, TypeVar

from google.protobuf.message import DecodeError
from grpclib import GRPCError, Status
from grpclib.events import RecvRequest
from grpclib.server import Stream

from launcherkit.errors import (
    BAD_ANNOTATION,
    MESSAGE_TOO_LARGE,
    UNKNOWN_DOMAIN_TYPE,
    LauncherkitError,
    UnreadableFile,
    on_one_line,
)

# Faults of the event loop itself: each is reported once, however often it recurs (T4).

AGAIN_SECONDS = 60.0
"""A fault that has not recurred for so long counts as new."""


class Faults:
    """A handler for `asyncio.loop.set_exception_handler`.

    If no file descriptor is left, asyncio tries to accept a hundred times each second, and reports each failure.

    Args:
        report: called with the text of a line.
    """

    def __init__(self, report: Callable[[str], None]) -> None:
        self._report = report
        self._last: dict[str, float] = {}

    def __call__(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Report a fault unless it has been reported."""
        problem = context.get("exception")
        text = str(context["message"])
        if isinstance(problem, OSError) and "accept" in text:
            text = f"connections can't be accepted: {problem.strerror}; tried again every second"
        now = loop.time()
        if now - self._last.get(text, now - AGAIN_SECONDS - 1) > AGAIN_SECONDS:
            self._report(text)
        self._last[text] = now
        for old in [each for each, at in self._last.items() if now - at > AGAIN_SECONDS]:
            del self._last[old]


# Errors as a gRPC caller gets them.


MESSAGE_LIMIT = 4096
"""Characters of a gRPC message, which is sent as a header; Kubernetes cuts events at 1024."""


def refusal(error: LauncherkitError, status: Status | None = None) -> GRPCError:
    """An error for gRPC: all errors with their remedies on one bounded line, and a status, by default by the cause."""
    leaves = list(error.leaves())
    texts: list[str] = []
    for leaf in leaves:
        text = " ".join(f"error[{leaf.code}]: {leaf.message}; help: {on_one_line(leaf.remedy)}".split())
        if texts and sum(map(len, texts)) + len(text) > MESSAGE_LIMIT:
            texts.append(f"and {len(leaves) - len(texts)} more, in the log of launcherkit")
            break
        texts.append(text if len(text) <= MESSAGE_LIMIT else text[: MESSAGE_LIMIT - 3] + "...")
    text = "; ".join(texts).encode("utf-8", "backslashreplace").decode()  # grpclib can't send lone surrogates
    return GRPCError(status or _status(leaves), text)


def _status(leaves: Iterable[LauncherkitError]) -> Status:
    """INVALID_ARGUMENT for a wrong request, FAILED_PRECONDITION if host or configuration don't allow it."""
    first = next(iter(leaves))
    if first.code == MESSAGE_TOO_LARGE.code:
        return Status.RESOURCE_EXHAUSTED
    asked_wrongly = first.code.startswith("LK1") and not isinstance(first, UnreadableFile)
    if asked_wrongly or first.code in (BAD_ANNOTATION.code, UNKNOWN_DOMAIN_TYPE.code):
        return Status.INVALID_ARGUMENT
    return Status.FAILED_PRECONDITION


REQUEST_BYTES = 16 << 20
"""The largest request, in bytes: a domain may have 8 MiB (X5), and the VMI comes in addition."""
RECEIVE_SECONDS = 30.0
"""How long a request may take to arrive."""
CALL_SECONDS = 120.0
"""How long a call may take, until its answer's message is written. The kubelet waits for ever for Allocate."""
CALLS_AT_ONCE = 256


class Decodable(Protocol):
    """What is needed of a message: each has a class of its own, generated from its .proto file."""

    @classmethod
    def FromString(cls, s: bytes) -> Decodable: ...  # protobuf's name


AskedT = TypeVar("AskedT", bound=Decodable)
Answered = TypeVar("Answered")


async def receive(stream: Stream[AskedT, Answered], message_type: type[AskedT], limit: int = REQUEST_BYTES) -> AskedT:
    """The only message of a request, of at most ``limit`` bytes.

    Raises:
        GRPCError: it is too large (LK615), malformed or compressed, or does not arrive.
    """
    try:
        async with asyncio.timeout(RECEIVE_SECONDS):
            data = await _frame(stream, limit)
    except TimeoutError as late:
        raise GRPCError(Status.DEADLINE_EXCEEDED, "the request did not arrive in time") from late
    except AssertionError as short:  # grpclib raises it if the stream ends early
        raise GRPCError(Status.INVALID_ARGUMENT, "the request ended in the middle of its message") from short
    try:
        message = message_type.FromString(data)
    except DecodeError as broken:
        raise GRPCError(Status.INVALID_ARGUMENT, f"the request is not a {message_type.__name__}") from broken
    assert isinstance(message, message_type)
    return message


async def _frame(stream: Stream[AskedT, Answered], limit: int) -> bytes:
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
            MESSAGE_TOO_LARGE(
                f"the request has {length} bytes, the limit is {limit}",
                "Send less: a domain may have 8 MiB, and the VMI comes in addition; requests of a kubelet are some "
                "kilobytes.",
            )
        )
    data = await arriving.recv_data(length)
    if len(data) < length:
        raise GRPCError(Status.INVALID_ARGUMENT, "the request ended in the middle of its message")
    return data


class Calls:
    """The calls that are under way. `admit` is a listener of grpclib's `RecvRequest`.

    Args:
        endless: the paths of methods whose calls have no end, such as the kubelet's ListAndWatch.
    """

    def __init__(self, endless: Collection[str] = ()) -> None:
        self.draining = False
        self._endless = endless
        self._tasks: set[asyncio.Task[Any]] = set()

    async def admit(self, event: RecvRequest) -> None:
        """Count a call until its answer is written, or refuse it."""
        if self.draining:
            raise GRPCError(Status.UNAVAILABLE, "launcherkit is ending")
        if len(self._tasks) >= CALLS_AT_ONCE:
            raise GRPCError(Status.RESOURCE_EXHAUSTED, f"{CALLS_AT_ONCE} calls are under way; try again")
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        if event.method_name not in self._endless:
            event.method_func = _within(CALL_SECONDS, event.method_func)

    def __len__(self) -> int:
        return len(self._tasks)

    async def drain(self, seconds: float) -> int:
        """Refuse new calls and wait for the others; returns the number of those that did not end in time."""
        self.draining = True
        return len((await asyncio.wait(set(self._tasks), timeout=seconds))[1]) if self._tasks else 0


def _within(seconds: float, method: Callable[[Stream[Any, Any]], Any]) -> Any:
    """The method with a time limit."""

    async def limited(stream: Stream[Any, Any]) -> None:
        try:
            async with asyncio.timeout(seconds):
                await method(stream)
        except TimeoutError as late:
            raise GRPCError(Status.DEADLINE_EXCEEDED, "the call took too long") from late

    return limited
