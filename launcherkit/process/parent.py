"""Ends a process when its parent does, however that ends: the kernel sends a signal (prctl(2), ``PR_SET_PDEATHSIG``).

A process can ask for it only for itself, and exec keeps it. So `python parent.py PID COMMAND...` becomes a command that
ends with its parent PID. It stands where a preexec_fn would, which isn't safe in a process with threads. Run as a file
with ``-I -S``, it imports nothing of launcherkit.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1
_CANNOT_RUN = 126


def end_with(parent: int, by: signal.Signals = signal.SIGKILL) -> str | None:
    """Let the kernel end this process when its parent ends, which may have happened already: then it exits at once.

    Args:
        parent: the PID of the parent.
        by: the signal.

    Returns:
        Why the kernel refuses; None if it doesn't.
    """
    refused = ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, by, 0, 0, 0)
    problem = os.strerror(ctypes.get_errno()) if refused else None
    if os.getppid() != parent:  # it ended before this process asked
        sys.exit(1)
    return problem


def main(arguments: list[str]) -> int:
    """Ask for the signal and become the command; returns only if that fails."""
    command = arguments[1:]
    problem = end_with(int(arguments[0]), signal.SIGTERM)
    if problem is not None:
        sys.stderr.write(f"{command[0]} won't end with its parent: {problem}\n")
    try:
        os.execv(command[0], command)  # noqa: S606  # what `Children.start` was given
    except OSError as failure:
        sys.stderr.write(f"{command[0]} can't be started: {failure.strerror}\n")
    return _CANNOT_RUN


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
