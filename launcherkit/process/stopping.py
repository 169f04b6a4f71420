"""SIGTERM and SIGINT, by which a server is told to stop."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_STOPS = (signal.SIGTERM, signal.SIGINT)


@contextmanager
def told_to_stop(told: Callable[[], object]) -> Iterator[None]:
    """Call ``told`` in the event loop at each signal while the block runs; after it they are ignored.

    A process that is ending would otherwise be killed by a signal that comes after its handlers have gone, and its
    exit code would tell of a failure.
    """
    loop = asyncio.get_running_loop()
    for number in _STOPS:
        loop.add_signal_handler(number, told)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_BLOCK, _STOPS)  # removing a handler restores the default for a moment
        for number in _STOPS:
            loop.remove_signal_handler(number)
            signal.signal(number, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _STOPS)
