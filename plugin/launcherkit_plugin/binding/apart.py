"""Reads and writes single files in processes of their own.

A driver that is busy keeps whoever unbinds it in the kernel, where no signal reaches it, sometimes for ever; and
whoever then only looks at the device's ``driver_override`` waits behind it. A process of its own can be left there.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Sequence

_CODE = """\
import os, sys
kind, path, text = sys.argv[1:]
try:
    file = os.open(path, os.O_RDONLY if kind == "read" else os.O_WRONLY)
    answer = os.read(file, 4096) if kind == "read" else b"" * os.write(file, text.encode())
    error = 0
except OSError as problem:
    error, answer = problem.errno, b""
os.write(1, b"%d\\n" % error + answer)
"""


class Late(Exception):
    """It has not come back in time. ``pid`` is the process that is left waiting."""

    def __init__(self, pid: int) -> None:
        super().__init__(pid)
        self.pid = pid


def read_apart(path: str, seconds: float, keep: Sequence[int] = ()) -> bytes:
    """The first 4096 bytes of a file.

    Args:
        path: a file.
        seconds: the longest to wait.
        keep: open files that the process keeps open as long as it lives, whatever becomes of this one.

    Raises:
        OSError: as the system says.
        Late: no answer in time.
    """
    return _run("read", path, "", seconds, keep)


def write_apart(path: str, text: str, seconds: float, keep: Sequence[int] = ()) -> None:
    """Write to a file that is there, in one write; see `read_apart`."""
    _run("write", path, text, seconds, keep)


def _run(kind: str, path: str, text: str, seconds: float, keep: Sequence[int]) -> bytes:
    process = subprocess.Popen(  # noqa: S603  # this interpreter, with nothing from outside but arguments
        [sys.executable, "-I", "-S", "-c", _CODE, kind, path, text],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        pass_fds=tuple(keep),
        start_new_session=True,  # a key pressed in our terminal must not end it in the middle
    )
    try:
        answer, _ = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        _leave(process)
        raise Late(process.pid) from None
    except BaseException:
        _leave(process)
        raise
    number, newline, content = answer.partition(b"\n")
    if not newline:
        raise OSError(f"the process that should {kind} it ended with exit code {process.returncode}")
    if number != b"0":
        raise OSError(int(number), os.strerror(int(number)), path)
    return content


def _leave(process: subprocess.Popen[bytes]) -> None:
    """End it if it can be ended, and bury it when it has."""
    process.kill()
    assert process.stdout is not None
    process.stdout.close()
    threading.Thread(target=process.wait, name=f"waits for {process.pid}", daemon=True).start()
