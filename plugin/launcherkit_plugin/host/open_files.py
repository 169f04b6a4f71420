"""A helper process that reads which processes have device nodes open, so that the daemon needs no right to.

Reading other users' open files takes two capabilities with which a process can read every file of the node, and change
every process of root. The helper keeps these two and nothing else; the daemon, which talks to others, gives them up for
good (docs/decisions/0017-a-helper-reads-open-files.md). Each question is answered by a process of its own, which ends
with its answer: one that hangs delays no other (K9).
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import socket
import struct
from collections.abc import Mapping

from launcherkit_plugin.host.processes import HolderProcess, OpenNodes, read_open_nodes

CAPABILITIES = 1 << 19 | 1 << 2
"""``SYS_PTRACE`` and ``DAC_READ_SEARCH``, as in capabilities(7)."""
PATIENCE_SECONDS = 30.0
"""How long an answer may take. It usually takes milliseconds, on a node with thousands of processes a second."""

_CAPABILITY_VERSION = 0x20080522
_PR_SET_NO_NEW_PRIVS = 38
_QUESTION_BYTES = 1 << 16
_ANSWER_BYTES = 1 << 24


def capabilities() -> int:
    """The permitted capabilities of this process, a bit each."""
    with open("/proc/self/status", "rb") as file:
        line = next(line for line in file if line.startswith(b"CapPrm:"))
    return int(line.split()[1], 16)


def keep_capabilities(kept: int) -> None:
    """Give up all other capabilities, for good: no program that is started can bring one back.

    Only the calling thread and those that it starts later give them up.

    Raises:
        OSError: the kernel refuses.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    kept &= capabilities()
    low, high = kept & 0xFFFFFFFF, kept >> 32
    header, sets = struct.pack("=Ii", _CAPABILITY_VERSION, 0), struct.pack("=6I", low, low, 0, high, high, 0)
    # Of root, exec gives all that is in the bounding set, unless there are no new privileges.
    if libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) or libc.capset(header, sets):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


class OpenFilesHelper:
    """The helper. It ends when this process ends.

    It is forked, so it must be started before any thread is.

    Args:
        proc: where the host's proc file system is mounted.
    """

    def __init__(self, proc: str) -> None:
        self._questions, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.pid = os.fork()
        if self.pid == 0:
            try:
                _serve(proc, theirs)
            finally:
                os._exit(0)  # a forked process never returns to its caller
        theirs.close()

    def __call__(self, devices: Mapping[str, tuple[int, int]] = {}) -> OpenNodes:
        """See `launcherkit_plugin.host.processes.read_open_nodes`. Without an answer, everything is unknown (T2)."""
        ours, theirs = socket.socketpair()
        with ours, theirs:
            ours.settimeout(PATIENCE_SECONDS)
            try:
                socket.send_fds(self._questions, [json.dumps(devices).encode()], [theirs.fileno()])
                theirs.close()
                with ours.makefile("rb") as answers:
                    holders, unseen = json.loads(answers.read(_ANSWER_BYTES))
            except (OSError, ValueError) as problem:
                within = f" within {PATIENCE_SECONDS:g} s" if isinstance(problem, TimeoutError) else ""
                return OpenNodes({}, f"the process that reads open files (PID {self.pid}) gave no answer{within}")
        by_node = {node: tuple(HolderProcess(*process) for process in processes) for node, processes in holders.items()}
        return OpenNodes(by_node, unseen)

    def fileno(self) -> int:
        """A file descriptor that becomes readable when the helper has ended."""
        return self._questions.fileno()


def start_helper(proc: str) -> OpenFilesHelper | None:
    """Start the helper and give up its capabilities; None, and nothing changes, if this process hasn't both."""
    if capabilities() & CAPABILITIES != CAPABILITIES:
        return None
    helper = OpenFilesHelper(proc)
    keep_capabilities(~CAPABILITIES)
    return helper


def _serve(proc: str, questions: socket.socket) -> None:
    """Answer questions until the daemon has ended.

    Raises:
        OSError: what isn't needed can't be given up.
    """
    os.setsid()  # Ctrl-C in the terminal is for the daemon
    _close_files_but(questions.fileno())
    os.chdir("/")
    keep_capabilities(CAPABILITIES)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps the processes that answer
    while (received := socket.recv_fds(questions, _QUESTION_BYTES, 1))[0]:
        question, (answers,), _, _ = received
        try:
            child = os.fork()
        except OSError:  # there may be a process again for the next question; this one gets no answer
            child = -1
        if child == 0:
            signal.alarm(int(PATIENCE_SECONDS))  # nobody waits for longer
            questions.close()  # if it hangs, it must not hide that the helper has ended
            devices = {node: (major, minor) for node, (major, minor) in json.loads(question).items()}
            with open(answers, "w") as file:
                json.dump(read_open_nodes(proc, devices), file)
            return
        os.close(answers)


def _close_files_but(kept: int) -> None:
    null = os.open(os.devnull, os.O_RDWR)
    for standard in range(3):
        os.dup2(null, standard)
    os.closerange(3, kept)
    os.closerange(kept + 1, os.sysconf("SC_OPEN_MAX"))
