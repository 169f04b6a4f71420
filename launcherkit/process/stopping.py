"""How a server ends: by SIGTERM or SIGINT, and without waiting for calls in progress by a second one."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
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
    for number in _STOPS:
        loop.add_signal_handler(number, stop.ask)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_BLOCK, _STOPS)  # removing a handler restores the default for a moment
        for number in _STOPS:
            loop.remove_signal_handler(number)
            signal.signal(number, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _STOPS)


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
