"""How a server ends: by SIGTERM or SIGINT, and without waiting for calls in progress by a second one."""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager, contextmanager, suppress
from typing import Any

_STOPS = (signal.SIGTERM, signal.SIGINT)


class Stop:
    """Whether a server has been told to end. To be made in the event loop's thread."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        """It ends, once calls in progress have."""
        self.hurried = asyncio.Event()
        """It doesn't wait for them either."""

    def ask(self) -> None:
        """Ask the server to end, and to hurry if it has been asked before."""
        (self.hurried if self.asked.is_set() else self.asked).set()


@contextmanager
def stopped_by_signals(stop: Stop) -> Iterator[None]:
    """Ask at each SIGTERM and SIGINT while the block runs; after it they are ignored.

    A process that is ending would otherwise be killed by a signal that comes after its handlers have gone, and its
    exit code would tell of a failure.
    """
    loop = asyncio.get_running_loop()
    # Not the loop's own handlers: it restores the default when it removes one, and though the signal be blocked in this
    # thread, another thread would take it and end the process.
    ours, told = socket.socketpair()
    with ours, told:
        ours.setblocking(False)
        told.setblocking(False)
        former = signal.set_wakeup_fd(told.fileno(), warn_on_full_buffer=False)
        loop.add_reader(ours, _drain, ours)
        for number in _STOPS:
            signal.signal(number, lambda *_: loop.call_soon(stop.ask))
        try:
            yield
        finally:
            for number in _STOPS:
                signal.signal(number, signal.SIG_IGN)
            loop.remove_reader(ours)
            signal.set_wakeup_fd(former)


def _drain(wakeups: socket.socket) -> None:
    """Forget that signals came: their handlers have run by now, as this one does, in the main thread."""
    with suppress(BlockingIOError):
        while wakeups.recv(512):
            pass


async def serve_until_stopped(server: AbstractAsyncContextManager[object]) -> None:
    """Keep a server open until a signal."""
    stop = Stop()
    with stopped_by_signals(stop):
        async with server:
            await stop.asked.wait()


async def first_of(task: asyncio.Future[Any], event: asyncio.Event) -> None:
    """Wait until a task is done or an event is set."""
    waiting = asyncio.ensure_future(event.wait())
    try:
        await asyncio.wait({task, waiting}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        waiting.cancel()
