"""The child processes of `launcherkit run`: its own and, as PID 1, orphaned ones."""

from __future__ import annotations

import errno
import os
import signal
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress

from launcherkit.process import parent

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
