"""Runs a program of the operator's, within a time, and ends it with everything that it has started.

A process of its own watches the program. It keeps files open, such as locks, until nothing of the program is left, and
ends the program when this process ends, however that ends. Run as a file with ``-I -S``, it imports nothing of ours.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import NoReturn

OUTPUT_BYTES = 4096
"""How much of the end of the output is kept."""
LINE_CHARACTERS = 200
_END_SECONDS = 5.0
"""How long to wait for killed processes: one that hangs in the kernel doesn't end."""
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36


class ProgramFailed(Exception):
    """A program failed; the message says how, with the last line of its output."""


def run_program(command: Sequence[str], env: Mapping[str, str], seconds: float, keep: Sequence[int] = ()) -> None:
    """Run a program to its end; blocks.

    Args:
        command: its path and arguments. There is no shell.
        env: all of its environment.
        seconds: how long it may take. Then it is killed, as is whatever it leaves behind when it ends by itself.
        keep: file descriptors that stay open until nothing of it is left.

    Raises:
        ProgramFailed: it can't be started, takes longer, or ends with another exit code than 0.
    """
    process = subprocess.Popen(  # noqa: S603  # this interpreter, with this file
        [sys.executable, "-I", "-S", __file__, f"{seconds:g}", *command],
        env=dict(env),
        stdin=subprocess.PIPE,  # it is closed when this process ends
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        pass_fds=keep,
        start_new_session=True,  # Ctrl-C in the terminal is for this process
    )
    assert process.stdin is not None
    assert process.stdout is not None
    with process.stdin, process.stdout:
        answer = process.stdout.read().decode(errors="replace")
    threading.Thread(target=process.wait, name=f"waits for {process.pid}", daemon=True).start()
    how, end, line = answer.partition("\n")
    if not end:
        raise ProgramFailed("the process that watches it has ended")
    if how:
        raise ProgramFailed(f"{how}: {line}" if line else how)


def main(seconds: float, command: Sequence[str]) -> None:
    """Be the process that watches a program: answers, and ends once nothing of the program is left."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)  # what the program leaves behind becomes a child of this process
    ended, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    output, theirs = os.pipe()
    program = os.fork()
    if program == 0:
        _become(command, theirs)
    os.close(theirs)
    how, said = _watch(program, output, ended, seconds)
    if not _end_all(_END_SECONDS):
        how = f"{how or 'it has ended'}, and a process of it hangs in the kernel"
    lines = said.decode(errors="replace").split("\n")
    last = next((line.strip() for line in reversed(lines) if line.strip()), "")
    shown = "".join(letter if letter.isprintable() else "?" for letter in last[:LINE_CHARACTERS])
    with suppress(OSError), open(1, "wb", buffering=0) as answer:
        answer.write(f"{how}\n{shown}".encode())
    while not _end_all(3600):
        pass


def _become(command: Sequence[str], output: int) -> NoReturn:
    try:
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        os.setsid()
        os.chdir("/")
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        for standard in (1, 2):
            os.dup2(output, standard)
        os.execve(command[0], list(command), dict(os.environ))  # noqa: S606  # what the configuration names
    except OSError as problem:
        os.write(output, f"{command[0]}: {problem.strerror}".encode())
    finally:
        os._exit(127)


def _watch(program: int, output: int, ended: int, seconds: float) -> tuple[str, bytes]:
    """How a program has failed, or empty, and the end of its output."""
    deadline, said = time.monotonic() + seconds, b""
    events = select.poll()
    for file in (0, output, ended):
        events.register(file, select.POLLIN)
    os.set_blocking(output, False)
    while (left := deadline - time.monotonic()) > 0:
        for file, _ in events.poll(left * 1000):
            if file == 0:
                return "the process that started it has ended", said
            with suppress(BlockingIOError):
                data = os.read(file, 1 << 16)
                if file == output:
                    said = (said + data)[-OUTPUT_BYTES:]
                    if not data:
                        events.unregister(output)
            if file == ended and (status := os.waitpid(program, os.WNOHANG))[0]:
                return _how(os.waitstatus_to_exitcode(status[1])), said + _rest(output)
    return f"it has not ended within {seconds:g} s", said


def _rest(output: int) -> bytes:
    with suppress(BlockingIOError):
        return os.read(output, 1 << 16)
    return b""


def _how(code: int) -> str:
    return "" if code == 0 else f"it was killed by signal {-code}" if code < 0 else f"it ended with exit code {code}"


def _end_all(seconds: float) -> bool:
    """Kill all descendants, and wait for them; returns whether there is none any more."""
    deadline = time.monotonic() + seconds
    while True:
        with open(f"/proc/self/task/{os.getpid()}/children") as children:
            for child in children.read().split():
                os.kill(int(child), signal.SIGKILL)
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return True
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)


def _prctl(option: int, value: int) -> None:
    ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


if __name__ == "__main__":
    main(float(sys.argv[1]), sys.argv[2:])
