"""Runs a program as people do: on a terminal."""

from __future__ import annotations

import os
import pty
import subprocess
import termios
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.support.forked import LAUNCHERKIT, PLUGIN, Process


def run_on_terminal(
    command: Sequence[str],
    env: Mapping[str, str],
    *,
    errors: bool = False,
    folder: Path | None = None,
    columns: int = 0,
) -> bytes:
    """What a program writes to a terminal.

    Args:
        command: the program, or the entry point, and its arguments.
        env: all its variables.
        errors: take what it writes to standard error, too, instead of leaving that out.
        folder: in which it runs; None: this process's own.
        columns: of the terminal; 0: it doesn't say.
    """
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (24, columns))
    stderr = theirs if errors else subprocess.DEVNULL
    start = Process if command[0] in (LAUNCHERKIT, PLUGIN) else subprocess.Popen
    process = start(command, env=dict(env), stdin=theirs, stdout=theirs, stderr=stderr, cwd=folder)
    os.close(theirs)
    seen = b""
    while True:
        try:
            chunk = os.read(ours, 65536)
        except OSError:  # how Linux says that the other side has closed
            break
        if not chunk:
            break
        seen += chunk
    os.close(ours)
    process.wait()
    return seen.replace(b"\r\n", b"\n")
