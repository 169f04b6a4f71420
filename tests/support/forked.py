"""The project's programs as real processes without their start: forked from one that has imported all they need.

A process has arguments, environment, folder and standard streams of its own, and can be waited for and sent signals
like any other, though it is no child of the test's process; only Python's start and the imports, most of what such a
test costs, happen once. So is a process that one of them asks with `launcherkit_plugin.host.child`. A test about start,
imports, memory, or Python's own flags starts a Python itself.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import gc
import importlib
import marshal
import os
import pkgutil
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from tests.support.imports import ROOT

LAUNCHERKIT = "launcherkit.cli.main:main"
PLUGIN = "launcherkit_plugin.__main__:main"
LAB = "launcherkit_lab.__main__:main"
_LIBRARIES = ("lxml.etree", "pydantic", "yaml", "jinja2", "grpclib.server", "grpclib.client", "prometheus_client")
_PACKAGES = ("launcherkit", "launcherkit_plugin", "launcherkit_lab")
_NOT_BEFORE = ("exec_hook", "__main__", "pytest_cases")
"""Modules that do something when they are imported."""
_LONGEST = 64
"""The bytes of a number, which is all that is answered: a process's PID, and in the end its exit code."""


class Process(subprocess.Popen[Any]):
    """`subprocess.Popen` of an entry point of pyproject.toml with its arguments: ``[LAUNCHERKIT, "explain", "LK204"]``.

    Of what else Popen takes it knows streams, ``env`` and ``cwd``.
    """

    def _execute_child(self, args: Sequence[str | os.PathLike[str]], *more: Any) -> None:
        _, preexec, _, pass_fds, cwd, env, _, _, _, *ends = more
        assert not preexec
        assert not pass_fds
        streams = [end if end != -1 else own for own, end in enumerate((ends[0], ends[3], ends[5]))]
        entry, *words = [os.fspath(word) for word in args]
        given = os.environ if env is None else env
        variables = {os.fsencode(name): os.fsencode(value) for name, value in given.items()}
        said = (entry, words, variables, os.getcwd() if cwd is None else str(cwd))
        self._told, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with its:
            socket.send_fds(start(), [marshal.dumps(said)], [*streams, its.fileno()])
        self.pid = int(self._told.recv(_LONGEST))
        self._child_created = True
        self._close_pipe_fds(*ends[:6])  # type: ignore[attr-defined]  # as Popen's own does

    # Popen's own ask the kernel, which tells only a parent.

    def _internal_poll(self, _deadstate: int | None = None, *_: object) -> int | None:
        if self._waitpid_lock.acquire(blocking=False):  # type: ignore[attr-defined]
            try:
                self._hear(0)
            finally:
                self._waitpid_lock.release()  # type: ignore[attr-defined]
        return self.returncode

    def _wait(self, timeout: float | None) -> int:
        with self._waitpid_lock:  # type: ignore[attr-defined]
            self._hear(timeout)
        if self.returncode is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0)
        return self.returncode

    def _hear(self, timeout: float | None) -> None:
        """Wait for the exit code; only who has the lock may."""
        if self.returncode is None:
            ready = select.poll()
            ready.register(self._told, select.POLLIN)
            if ready.poll(None if timeout is None else 1000 * max(timeout, 0)):
                self.returncode = int(self._told.recv(_LONGEST))
                self._told.close()


def run(
    args: Sequence[str | os.PathLike[str]], *, capture_output: bool = False, check: bool = False, **popen: Any
) -> subprocess.CompletedProcess[Any]:
    """`subprocess.run` of an entry point, as `Process` has it."""
    if capture_output:
        popen |= {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with Process(args, **popen) as process:
        out, err = process.communicate()
    done = subprocess.CompletedProcess(args, process.returncode, out, err)
    if check:
        done.check_returncode()
    return done


def start() -> socket.socket:
    """The process that programs are forked from, by the socket on which it is asked.

    It is there for all processes that are forked from the one that has called this first.
    """
    return _parent()[0]


@functools.cache
def _parent() -> tuple[socket.socket, subprocess.Popen[bytes]]:
    """That socket, and the process, which must be kept: Python warns of one that is forgotten while it runs."""
    ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    path = os.pathsep.join(map(str, (ROOT, ROOT / "plugin", ROOT / "lab")))
    with its:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.forked", str(its.fileno())],
            pass_fds=[its.fileno()],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": path},
        )

    def end() -> None:
        ours.shutdown(socket.SHUT_RDWR)  # whoever else has it
        ours.close()
        process.wait()

    atexit.register(end)
    return ours, process


def write_program(path: Path, entry: str, instead: str) -> int:
    """Write a program for a shell's PATH that has its work done by a forked process, or by another program if it can't.

    Returns:
        The descriptor that the shell must have, under this number.
    """
    asked = start().fileno()
    path.write_text(_PROGRAM.format(python=sys.executable, asked=asked, entry=entry, instead=instead))
    path.chmod(0o755)
    return asked


_PROGRAM = """#!/bin/sh
'''exec' "{python}" -IS "$0" "$@"
' '''
import marshal, posix, sys, _socket
ours, its = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
said = ({entry!r}, sys.argv[1:], posix.environ, posix.getcwd())
streams = b"".join(stream.to_bytes(4, sys.byteorder) for stream in (0, 1, 2, its.fileno()))
try:
    asked = _socket.socket(fileno={asked})
    asked.sendmsg([marshal.dumps(said)], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, streams)])
except OSError:
    posix.execv({instead!r}, [{instead!r}, *sys.argv[1:]])
its.close()
ours.recv(64)
code = int(ours.recv(64))
if code < 0:
    posix.kill(posix.getpid(), -code)
posix._exit(code)
"""
"""With only what Python has imported anyhow, for that is what a process costs. The kernel's `#!` would end the path of
an interpreter at a space, so a shell reads the second line; to Python it is text."""


def _serve(asked: socket.socket) -> Callable[[], object]:
    """Fork for each request, and tell how each process has ended; returns what to call, in a forked process alone."""
    running: dict[int, tuple[int, socket.socket]] = {}  # by the descriptor that can be read when it has ended
    ready = select.poll()
    ready.register(asked, select.POLLIN)
    while True:
        for each, _ in ready.poll():
            if each in running:
                pid, told = running.pop(each)
                ready.unregister(each)
                os.close(each)
                with told, contextlib.suppress(OSError):  # nobody waits for it any more
                    told.send(str(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])).encode())
                continue
            data, streams, _, _ = socket.recv_fds(asked, 1 << 20, 4)
            if not data:
                os._exit(0)
            _import_all()
            entry, words, env, cwd = marshal.loads(data)
            told = socket.socket(fileno=streams.pop())
            if pid := os.fork():
                for stream in streams:
                    os.close(stream)
                with contextlib.suppress(OSError):  # who has asked is gone
                    told.send(str(pid).encode())
                end = os.pidfd_open(pid)
                running[end] = pid, told
                ready.register(end, select.POLLIN)
                continue
            for own in (asked, told, *(of for _, of in running.values())):
                own.close()
            for other in running:
                os.close(other)
            _become([entry.partition(".")[0], *words], streams)
            os.environb.clear()
            os.environb.update(env)
            os.chdir(cwd)
            subprocess.Popen = _Asked  # type: ignore[misc]
            module, _, function = entry.partition(":")
            called: Callable[[], object] = getattr(importlib.import_module(module), function)
            return called


@functools.cache
def _import_all() -> None:
    for library in _LIBRARIES:
        importlib.import_module(library)
    for package in _PACKAGES:
        for module in pkgutil.walk_packages(importlib.import_module(package).__path__, f"{package}."):
            if not module.name.endswith(_NOT_BEFORE):
                importlib.import_module(module.name)
    gc.freeze()


class _Asked(subprocess.Popen[Any]):
    """What a forked process starts: a Python with a module of ours is a fork of that process."""

    def _execute_child(self, args: Sequence[str | os.PathLike[str]], *more: Any) -> None:
        python, *words = [os.fspath(word) for word in args]
        if python != sys.executable or words[:2] != ["-P", "-m"]:
            super()._execute_child(args, *more)  # type: ignore[misc]
            return
        ends = more[9:15]
        with warnings.catch_warnings(action="ignore", category=DeprecationWarning):
            self.pid = os.fork()  # beside threads, which Python warns of
        if self.pid == 0:
            _run_module(words[2:], [end if end != -1 else own for own, end in enumerate((ends[0], ends[3], ends[5]))])
        self._child_created = True
        self._close_pipe_fds(*ends)  # type: ignore[attr-defined]


def _run_module(words: list[str], streams: Sequence[int]) -> NoReturn:
    """Do as a Python that has started with a module's name and its arguments, and end."""
    code = 1
    try:
        for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
            if callable(signal.getsignal(number)):
                signal.signal(number, signal.SIG_DFL)
        _become(words, [os.dup(stream) for stream in streams])
        os.closerange(3, os.sysconf("SC_OPEN_MAX"))
        sys.modules.pop(words[0])
        runpy.run_module(words[0], run_name="__main__")
        sys.stdout.flush()
        code = 0
    except Exception:  # as Python itself does
        traceback.print_exc()
    finally:
        os._exit(code)


def _become(words: list[str], streams: Sequence[int]) -> None:
    """Take streams and arguments."""
    for target, stream in enumerate(streams):
        os.dup2(stream, target)
        os.close(stream)
    sys.stdin = open(0, encoding="utf-8", errors="surrogateescape", closefd=False)  # noqa: SIM115
    sys.stdout = open(1, "w", encoding="utf-8", errors="surrogateescape", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", 1, encoding="utf-8", errors="backslashreplace", closefd=False)  # noqa: SIM115
    sys.argv = words


def _end(called: Callable[[], object]) -> None:
    """Call, and end as Python does, but without taking apart all that is imported: that costs more than most commands.

    What goes wrong is left to Python itself.
    """
    try:
        code = called()
    except SystemExit as end:
        code = end.code
    threading._shutdown()  # type: ignore[attr-defined]  # waits for the others, and there is no other way to
    sys.stdout.flush()
    if not isinstance(code, int | None):
        raise SystemExit(code)
    atexit._run_exitfuncs()
    sys.stderr.flush()
    os._exit(code or 0)


if __name__ == "__main__":
    _end(_serve(socket.socket(fileno=int(sys.argv[1]))))
