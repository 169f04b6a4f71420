"""Waiting that a signal ends: a request to stop, or the end of a child."""

from __future__ import annotations

import select
import signal
import socket
from contextlib import suppress
from typing import Any, Self

_STOP = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class Wakeups:
    """Takes over the signals of the main thread while it is entered.

    A process that is PID 1 ignores every signal for which it has no handler, including SIGTERM.
    """

    def __init__(self) -> None:
        self.stops = 0
        """How often a stop was requested."""
        self._read, self._write = socket.socketpair()
        self._former: dict[int, Any] = {}
        self._former_fd = -1

    def __enter__(self) -> Self:
        self._read.setblocking(False)
        self._write.setblocking(False)
        self._former_fd = signal.set_wakeup_fd(self._write.fileno(), warn_on_full_buffer=False)
        for number in _STOP:
            self._former[number] = signal.signal(number, self._stop)
        self._former[signal.SIGCHLD] = signal.signal(signal.SIGCHLD, _woken)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._former.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._former_fd)
        self._read.close()
        self._write.close()

    def wait(self, seconds: float) -> None:
        """Wait for that long, or until a signal comes; one that came since the last wait ends it at once."""
        select.select([self._read], [], [], seconds)
        with suppress(BlockingIOError):
            while self._read.recv(512):
                pass

    def _stop(self, *_: object) -> None:
        self.stops += 1


def _woken(*_: object) -> None:
    """The wait is over; the waiting code checks what has happened."""
