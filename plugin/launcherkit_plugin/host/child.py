"""Runs work that takes much memory or may hang in a short-lived process, which answers one question.

The question is passed on its standard input, and the answer on its standard output.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from launcherkit.process.parent import end_with

if TYPE_CHECKING:
    from asyncio.subprocess import Process

END_SECONDS = 1.0
"""How long to wait for a killed process to end: one that hangs in the kernel doesn't."""


class NoAnswer(Exception):
    """There is no answer; the message says why."""

    def __init__(self, reason: str, hanging: Process | None = None) -> None:
        super().__init__(reason)
        self.hanging = hanging
        """The process, if it was killed and has not ended, because it hangs in the kernel."""


def command_of(module: str) -> tuple[str, ...]:
    """The command line of a process that runs a module, which must call `answer_with`."""
    return (sys.executable, "-P", "-m", module)


async def ask(command: Sequence[str], question: bytes, patience: float, keep: Sequence[int] = ()) -> bytes:
    """Start a process, pass it a question and return its answer. It ends after that, or when this process ends.

    Args:
        command: its command line; the ID of this process is added as the last argument.
        question: for its standard input.
        patience: how many seconds it may take.
        keep: file descriptors, such as of locks, that it keeps open as long as it lives.

    Raises:
        NoAnswer: it can't be started, fails, or takes longer; then it is killed.
    """
    import asyncio  # not above: the started process imports this module too, doesn't need it, and must start fast

    pipe = asyncio.subprocess.PIPE
    try:
        process = await asyncio.create_subprocess_exec(
            *command, str(os.getpid()), stdin=pipe, stdout=pipe, stderr=pipe, pass_fds=keep
        )
    except OSError as problem:
        raise NoAnswer(problem.strerror or str(problem)) from problem
    try:
        answer, complaint = await asyncio.wait_for(process.communicate(question), patience)
    except TimeoutError as problem:
        await end_process(process)
        raise NoAnswer(f"no answer within {patience:g} s", None if process.returncode else process) from problem
    except asyncio.CancelledError:
        await end_process(process)
        raise
    if process.returncode != 0:
        last = complaint.decode("utf-8", "replace").strip().rpartition("\n")[2]
        code = process.returncode or 0
        how = f"it was killed by signal {-code}" if code < 0 else f"it ended with exit code {code}"
        raise NoAnswer(how + (f": {last}" if last else ""))
    return answer


async def end_process(process: Process) -> None:
    """Kill a process. One that hangs in the kernel may end later."""
    import asyncio
    from contextlib import suppress

    with suppress(ProcessLookupError):
        process.kill()
    with suppress(TimeoutError):
        await asyncio.wait_for(process.wait(), END_SECONDS)


def answer_with(make: Callable[[bytes], bytes]) -> None:
    """The main function of the started process: answers one question."""
    end_with(int(sys.argv[1]))
    gc.disable()  # it would take a tenth of the process's short life, most of which is imports
    sys.stdout.buffer.write(make(sys.stdin.buffer.read()))
