"""`python ends_with_parent.py PID COMMAND...` becomes a command that ends when its parent PID does, however that ends.

The kernel sends the signal (prctl(2), ``PR_SET_PDEATHSIG``). A process can ask for it only for itself, and exec keeps
it, so this stands where a preexec_fn would, which isn't safe in a process with threads. Run as a file with ``-I -S``,
it imports nothing of launcherkit.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1
_CANNOT_RUN = 126


def main(arguments: list[str]) -> int:
    """Ask for the signal and become the command; returns only if that fails."""
    parent, command = int(arguments[0]), arguments[1:]
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0):
        sys.stderr.write(f"{command[0]} won't end with its parent: {os.strerror(ctypes.get_errno())}\n")
    if os.getppid() != parent:  # it ended before this process asked
        return 0
    try:
        os.execv(command[0], command)  # noqa: S606  # what `Children.start` was given
    except OSError as problem:
        sys.stderr.write(f"{command[0]} can't be started: {problem.strerror}\n")
    return _CANNOT_RUN


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
