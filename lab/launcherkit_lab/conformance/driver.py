"""The driver that is tested: a command of its owner's, which is started, killed and ended like a container's."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path


class CannotStartDriver(Exception):
    """Its command can't be run; the text says why."""


class Driver:
    """A command that serves until it is ended.

    Args:
        log: the file that gets all it says, of every start, after what is there.
    """

    def __init__(self, command: Sequence[str], log: Path) -> None:
        self.command = list(command)
        self.log = log
        self._process: subprocess.Popen[bytes] | None = None
        log.touch()

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Start it, unless it runs.

        Raises:
            CannotStartDriver: there is no such program.
        """
        if self.running:
            return
        with open(self.log, "ab") as file:
            try:
                self._process = subprocess.Popen(
                    self.command, stdin=subprocess.DEVNULL, stdout=file, stderr=file, start_new_session=True
                )
            except OSError as error:
                raise CannotStartDriver(f"{self.command[0]}: {error.strerror}") from error

    def kill(self) -> None:
        """End it and all of its processes at once, as when its container is killed."""
        if self._process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def end(self, seconds: float) -> int | None:
        """SIGTERM; its exit code, or None: it was killed, as it hadn't ended within these seconds."""
        assert self._process is not None
        self._ask_to_end()
        code: int | None = None
        with suppress(subprocess.TimeoutExpired):
            code = self._process.wait(seconds)
        self.kill()  # what it has left running
        return code

    def _ask_to_end(self) -> None:
        assert self._process is not None
        self._process.terminate()

    def position(self) -> int:
        """How much it has said, in bytes."""
        return self.log.stat().st_size

    def said_since(self, position: int, lines: int) -> str:
        """The last lines that it has said since then."""
        with open(self.log, "rb") as file:
            file.seek(position)
            return "\n".join(file.read().decode(errors="replace").splitlines()[-lines:])
