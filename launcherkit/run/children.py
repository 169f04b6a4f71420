"""The child processes of `launcherkit run`: its own and, as PID 1, orphaned ones."""

from __future__ import annotations

import errno
import os
import select
import signal
import socket
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from enum import IntEnum
from typing import Any, Self

from launcherkit.process import parent
from launcherkit.run.connection import GuestState

_IGNORED_BY_PYTHON = [signal.SIGPIPE, signal.SIGXFSZ]
_PAUSE = 0.2
_ENDS_WITH_PARENT = parent.__file__


class Children:
    """Starts processes and reaps all that end, at once and whatever the main thread waits for.

    libvirt considers a QEMU alive until it is reaped, and PID 1 reaps it: a main thread that waits for libvirt to stop
    a guest can't do both. Nothing else in this process may wait for a child.
    """

    def __init__(self) -> None:
        self._running: dict[int, str] = {}
        self._ended: list[str] = []
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._reap, name="children", daemon=True)
        self._thread.start()

    def start(self, command: Sequence[str]) -> int:
        """Start a program that must outlive a signal to our process group; its output goes to standard error.

        When the thread that calls this ends, with its process or before, the program gets SIGTERM.

        Raises:
            OSError: it can't be started.
        """
        if not os.access(command[0], os.X_OK):
            number = errno.EACCES if os.path.exists(command[0]) else errno.ENOENT
            raise OSError(number, os.strerror(number), command[0])
        tied = [sys.executable, "-I", "-S", _ENDS_WITH_PARENT, str(os.getpid()), *command]
        actions = [(os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0), (os.POSIX_SPAWN_DUP2, 2, 1)]
        with self._lock:
            pid = os.posix_spawn(
                tied[0], tied, os.environ, file_actions=actions, setsid=True, setsigdef=_IGNORED_BY_PYTHON
            )
            self._running[pid] = command[0]
        return pid

    def ended(self) -> list[str]:
        """The started processes that have ended since the last call, each with its status."""
        with self._lock:
            ended, self._ended = self._ended, []
        return ended

    def is_running(self, pid: int) -> bool:
        """Whether a started process is still running."""
        with self._lock:
            return pid in self._running

    def signal(self, pid: int, number: int) -> None:
        """Send a signal to a started process; one that has ended is left alone."""
        with self._lock:
            if pid in self._running:
                with suppress(ProcessLookupError):
                    os.kill(pid, number)

    def close(self) -> None:
        """Stop reaping."""
        self._closed.set()
        self._thread.join()

    def _reap(self) -> None:
        while not self._closed.wait(_PAUSE):
            with suppress(ChildProcessError):
                while self._reap_one():
                    pass

    def _reap_one(self) -> bool:
        with self._lock:
            pid, status = os.waitpid(-1, os.WNOHANG)
            program = self._running.pop(pid, None)
            if program is not None:
                code = os.waitstatus_to_exitcode(status)
                how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
                self._ended.append(f"{program} {how}")
        return pid != 0


# How a guest ended, according to libvirt.


_SHUTOFF, _CRASHED = 5, 6  # virDomainState


class Ending(IntEnum):
    """How a guest ended; the value is the exit code."""

    SHUT_DOWN = 0
    CRASHED = 10
    DESTROYED = 11
    FAILED = 12
    STOPPED_BY_FORCE = 13


IN_WORDS = {
    Ending.SHUT_DOWN: "the guest has shut down",
    Ending.CRASHED: "the guest or its QEMU has crashed",
    Ending.DESTROYED: "the guest was destroyed by someone else",
    Ending.FAILED: "the guest has ended, and libvirt does not know how",
    Ending.STOPPED_BY_FORCE: "the guest did not shut down in time and was destroyed",
}

_REASONS = {
    1: Ending.SHUT_DOWN,
    2: Ending.DESTROYED,
    3: Ending.CRASHED,
    4: Ending.SHUT_DOWN,  # it lives on elsewhere
    5: Ending.SHUT_DOWN,  # saved
}
"""``virDomainShutoffReason``."""


def ending_of(state: GuestState) -> Ending | None:
    """None while it runs; one that is kept after its crash (``on_crash=preserve``) has ended too."""
    if state.state == _CRASHED:
        return Ending.CRASHED
    if state.state != _SHUTOFF:
        return None
    return _REASONS.get(state.reason, Ending.FAILED)


# Waiting that a signal ends: a request to stop, or the end of a child.


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
