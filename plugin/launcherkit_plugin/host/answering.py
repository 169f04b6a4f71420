"""A question to a short-lived process, and its answer: what takes much memory, or may hang, is done there.

The question comes on its standard input, the answer goes to its standard output.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from asyncio.subprocess import Process

_PR_SET_PDEATHSIG = 1
_END_SECONDS = 1.0
"""For the end of a process that was killed: one that hangs in the kernel has none."""


class NoAnswer(Exception):
    """Why there is none."""

    def __init__(self, why: str, hanging: Process | None = None) -> None:
        super().__init__(why)
        self.hanging = hanging
        """The process, where it was killed and has not ended: it waits in the kernel."""


def command_of(module: str) -> tuple[str, ...]:
    """The process that runs a module, which calls `answer_with`."""
    return (sys.executable, "-P", "-m", module)


async def ask(command: Sequence[str], question: bytes, patience: float) -> bytes:
    """The answer of a process that ends when it has given it, and together with this one.

    Args:
        command: the process; its last argument is this process's ID.
        question: for its standard input.
        patience: seconds that it may take.

    Raises:
        NoAnswer: it can't be started, failed, or takes longer. It is killed then, and not waited for.
    """
    import asyncio  # not above: the other process doesn't need it, and must start fast

    pipe = asyncio.subprocess.PIPE
    try:
        process = await asyncio.create_subprocess_exec(*command, str(os.getpid()), stdin=pipe, stdout=pipe, stderr=pipe)
    except OSError as problem:
        raise NoAnswer(problem.strerror or str(problem)) from problem
    try:
        answer, complaint = await asyncio.wait_for(process.communicate(question), patience)
    except TimeoutError as problem:
        await _end(process)
        raise NoAnswer(f"no answer within {patience:g} s", None if process.returncode else process) from problem
    except asyncio.CancelledError:
        await _end(process)
        raise
    if process.returncode != 0:
        last = complaint.decode("utf-8", "replace").strip().rpartition("\n")[2]
        raise NoAnswer(f"it ended with {process.returncode}" + (f": {last}" if last else ""))
    return answer


async def _end(process: Process) -> None:
    import asyncio
    from contextlib import suppress

    process.kill()
    with suppress(TimeoutError):
        await asyncio.wait_for(process.wait(), _END_SECONDS)


def answer_with(make: Callable[[bytes], bytes]) -> None:
    """What the other process does: it answers the one question."""
    import gc

    end_with(int(sys.argv[1]))
    gc.disable()  # a tenth of its short life otherwise, most of which is imports
    sys.stdout.buffer.write(make(sys.stdin.buffer.read()))


def end_with(parent: int) -> None:
    """End this process when that one ends, however it does; at once if it has ended already."""
    import ctypes

    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it died before the line above
        sys.exit(1)
