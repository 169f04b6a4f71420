"""A process that reads and writes single files of sysfs, and can be abandoned: some writes never return.

The daemon does such work in threads (`launcherkit_plugin.host.work_queue`). There are two cases in which a thread isn't
enough. A command has to end, but a process with a thread that hangs in the kernel doesn't end, not even by SIGKILL. And
the locks for a step of binding must be held until the step has ended, even if this process is killed meanwhile.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import closing
from typing import Protocol

from launcherkit_plugin.host.files import DiskFiles

PATIENCE_SECONDS = 15.0
"""How long a write may take. A driver that needs longer is stuck, often forever."""

_CODE = """\
import os, sys
kept = [int(file) for file in sys.argv[1:]]
while question := os.read(0, 65536):
    kind, path, text = question.decode().split(",")
    error, answer = 0, b""
    try:
        if kind == "keep":
            with socket.socket(fileno=os.dup(0)) as files:
                kept = socket.recv_fds(files, 1, 253)[1]
        elif kind == "drop":
            while kept:
                os.close(kept.pop())
        else:
            file = os.open(bytes.fromhex(path), os.O_RDONLY if kind == "read" else os.O_WRONLY)
            try:
                if kind == "read":
                    answer = os.read(file, 4096)
                else:
                    os.write(file, bytes.fromhex(text))
            finally:
                os.close(file)
    except OSError as problem:
        error = problem.errno
    os.write(0, b"%d,%s" % (error, answer.hex().encode()))
    if kind == "drop":
        import socket  # while nobody waits
"""

_END_SECONDS = 5.0
_ANSWER_BYTES = 16384


class Late(Exception):
    """A step has not returned in time. ``pid`` is the process that was abandoned."""

    def __init__(self, pid: int) -> None:
        super().__init__(pid)
        self.pid = pid


class Worker(Protocol):
    """Accesses files that may make it hang."""

    def read(self, path: str, seconds: float) -> bytes:
        """The first 4096 bytes of a file.

        Raises:
            OSError: from the system call.
            Late: no answer within ``seconds``.
        """
        ...

    def write(self, path: str, text: str, seconds: float) -> None:
        """Write to an existing file, with one system call; raises the same as `read`."""
        ...

    def close(self) -> None:
        """Release the worker."""
        ...


class ProcessWorker:
    """A `Worker` with a process, which is started when it is first needed, and again after one was abandoned.

    Args:
        keep: file descriptors that the process keeps open until `close`, even if the calling process ends.
        spare: where to take an idle process from, and where to return it.
    """

    def __init__(self, keep: Sequence[int] = (), spare: SpareProcess | None = None) -> None:
        self._keep = tuple(keep)
        self._spare = spare
        self._process: _Process | None = None

    def read(self, path: str, seconds: float) -> bytes:
        """See `Worker.read`."""
        return self._ask("read", path, "", seconds)

    def write(self, path: str, text: str, seconds: float) -> None:
        """See `Worker.write`."""
        self._ask("write", path, text, seconds)

    def close(self) -> None:
        """End the process, or return it for reuse. It closes the file descriptors that it kept."""
        process, self._process = self._process, None
        if process is not None and not (self._spare is not None and self._spare.take_back(process)):
            process.end()

    def _ask(self, kind: str, path: str, text: str, seconds: float) -> bytes:
        standing_by = None if self._process or self._spare is None else self._spare.lend(self._keep)
        process = self._process = self._process or standing_by or _Process(self._keep)
        try:
            return process.ask(kind, path, text, seconds)
        except (_Gone, Late):
            self._process = None
            process.leave()
            raise


class SpareProcess:
    """Keeps one idle process for reuse: starting one takes longer than most steps. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._idle: _Process | None = None

    def worker(self, keep: Sequence[int] = ()) -> Worker:
        """A `Worker` that uses the idle process if there is one."""
        return ProcessWorker(keep, self)

    def lend(self, keep: Sequence[int]) -> _Process | None:
        """The idle process, which then keeps these file descriptors open; None if there is none."""
        process = self._change(None)
        if process is None:
            return None
        try:
            process.keep(keep)
        except (OSError, Late):  # it was killed, or there are more descriptors than a message can hold
            process.leave()
            return None
        return process

    def take_back(self, process: _Process) -> bool:
        """Keep a process for reuse; False if it doesn't answer."""
        try:
            process.ask("drop", "", "", _END_SECONDS)
        except (OSError, Late):
            return False
        other = self._change(process)
        if other is not None:
            other.end()
        return True

    def close(self) -> None:
        """End the idle process."""
        process = self._change(None)
        if process is not None:
            process.end()

    def _change(self, process: _Process | None) -> _Process | None:
        with self._lock:
            before, self._idle = self._idle, process
        return before


class _Gone(OSError):
    """The process has ended."""


class _Process:
    """One process, which executes one request at a time."""

    def __init__(self, keep: Sequence[int]) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self.process = subprocess.Popen(  # noqa: S603  # this interpreter, with a program of ours
                [sys.executable, "-I", "-S", "-c", _CODE, *map(str, keep)],
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=keep,
                start_new_session=True,  # Ctrl-C in the terminal must not interrupt it in the middle of a step
            )

    def keep(self, files: Sequence[int]) -> None:
        """Pass it file descriptors to keep open; raises the same as `ask`."""
        self._socket.send(b"keep,,")
        socket.send_fds(self._socket, [b"-"], files)
        self._answer(_END_SECONDS)

    def ask(self, kind: str, path: str, text: str, seconds: float) -> bytes:
        """Send a request and return the answer.

        Raises:
            OSError: from the system call in the process.
            _Gone: it has ended.
            Late: no answer within ``seconds``.
        """
        try:
            self._socket.send(f"{kind},{os.fsencode(path).hex()},{text.encode().hex()}".encode())
        except OSError as problem:
            raise _Gone(problem.errno, problem.strerror) from problem
        return self._answer(seconds, path)

    def _answer(self, seconds: float, path: str = "") -> bytes:
        self._socket.settimeout(seconds)
        try:
            answer = self._socket.recv(_ANSWER_BYTES)
        except TimeoutError as late:
            raise Late(self.process.pid) from late
        except ConnectionError as problem:
            raise _Gone(problem.errno, problem.strerror) from problem
        if not answer:
            raise _Gone("the process that should do it has ended")
        number, _, content = answer.partition(b",")
        if number != b"0":
            raise OSError(int(number), os.strerror(int(number)), path)
        return bytes.fromhex(content.decode())

    def end(self) -> None:
        """Close the socket, which ends the process; if it doesn't end in time, kill and abandon it."""
        self._socket.close()
        try:
            self.process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            self.leave()

    def leave(self) -> None:
        """Kill the process without waiting for it; a thread reaps it."""
        self._socket.close()
        self.process.kill()
        threading.Thread(target=self.process.wait, name=f"waits for {self.process.pid}", daemon=True).start()


class TimedFiles(DiskFiles):
    """`DiskFiles` for a command, whose user must not wait forever: a late write is abandoned."""

    def __init__(self, root: str, patience: float = PATIENCE_SECONDS) -> None:
        super().__init__(root)
        self._patience = patience

    def write(self, path: str, text: str) -> None:
        with closing(ProcessWorker()) as worker:
            try:
                worker.write(os.path.join(self._root, path), text, self._patience)
            except Late as late:
                raise TimeoutError(f"no answer for {self._patience:g} s") from late
