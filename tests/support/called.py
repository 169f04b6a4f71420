"""The project's commands called in this process: what is left of a test of one without the process.

Its streams are files, as a shell's redirections make them. What a process itself is about, as signals, closed streams
and how it ends, is tested with `tests.support.forked`.
"""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout
from typing import IO, TextIO

from launcherkit.process.edge import guarded

Run = Callable[[Sequence[str], Mapping[str, str]], int]


def call(run: Run, arguments: Sequence[str], env: Mapping[str, str]) -> subprocess.CompletedProcess[bytes]:
    """The outcome of ``launcherkit.cli.main.run``, or another such, as `subprocess.run` gives it.

    Args:
        run: takes arguments and environment, and returns the exit code.
        arguments: without the program's name.
        env: all of it.
    """
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        with _text(out) as out_text, _text(err) as err_text, redirect_stdout(out_text), redirect_stderr(err_text):
            code = _exit_code(run, arguments, env)
        out.seek(0)
        err.seek(0)
        return subprocess.CompletedProcess(arguments, code, out.read(), err.read())


def _exit_code(run: Run, arguments: Sequence[str], env: Mapping[str, str]) -> int:
    try:
        return guarded(lambda: run(arguments, env), env)
    except SystemExit as usage:  # argparse's
        return int(usage.code or 0)


def _text(file: IO[bytes]) -> TextIO:
    """A stream like a process's own, on a file that outlives it."""
    return open(file.fileno(), "w", encoding="utf-8", errors="surrogateescape", closefd=False)


def call_text(run: Run, arguments: Sequence[str], env: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """The same with text in its streams."""
    done = call(run, arguments, env)
    return subprocess.CompletedProcess(done.args, done.returncode, done.stdout.decode(), done.stderr.decode())
