"""Processes that are killed as they make a change to files: the first one, the second, and so on.

Before each system call that changes something below certain folders, whichever process or thread of a program makes it,
the kernel stops that thread (seccomp and ptrace, see their man pages). One such call is the last thing that the
program wants to do: it is killed, and the call isn't made. Linux on x86-64 alone.
"""

from __future__ import annotations

import ctypes
import json
import multiprocessing
import os
import signal
import socket
import struct
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import count
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Literal, NamedTuple, NoReturn, TypeAlias

MACHINE = "x86_64"
"""The only one whose system calls are known here."""

Whom: TypeAlias = Literal["all", "first", "caller"]
"""Who is killed: all; only the first process, so that another still makes the call; or only who makes the call."""

_WRITES = {1: "write", 18: "pwrite64"}
_AT_FOLDERS = {257: "openat", 258: "mkdirat", 263: "unlinkat", 264: "renameat", 316: "renameat2"}
_PATHS = {82: "rename", 83: "mkdir", 84: "rmdir", 87: "unlink"}
_BIND, _OPENAT = 49, 257
_CALLS = {_BIND: "bind", **_WRITES, **_AT_FOLDERS, **_PATHS}
"""By their numbers: arch/x86/entry/syscalls/syscall_64.tbl. A file that is opened counts where it may be created."""

# linux/ptrace.h
_CONT, _SEIZE, _GET_SYSCALL_INFO = 7, 0x4206, 0x420E
_OPTIONS = 0x02 | 0x04 | 0x08 | 0x10 | 0x80 | 1 << 20  # fork, vfork, clone, exec, seccomp; all end with the tracer
_EVENT_SECCOMP = 7
_INFO = struct.Struct("=BxxxIQQQ6QI4x")
"""Its ``seccomp`` variant: operation, architecture, instruction and stack pointer, number, arguments, data."""
_AT_FDCWD = -100
_WALL = 0x40000000

_libc = ctypes.CDLL(None, use_errno=True)
_libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
_libc.ptrace.restype = ctypes.c_long


class Change(NamedTuple):
    """A system call that changes something."""

    call: str
    path: str


class Life(NamedTuple):
    """How a program has come to its end."""

    changes: int
    """How many it has made."""
    last: Change | None
    """The one at which it was killed, which it hasn't made; None: it has ended by itself."""
    code: int
    """The exit code of the first process, or the negative number of its signal."""


def live(
    work: Callable[..., object],
    *arguments: object,
    below: Sequence[str | Path],
    die_at: int = 0,
    whom: Whom = "all",
    imported: Sequence[str] = (),
) -> Life:
    """Let a process do some work, with all that it starts, to the end of all of them.

    Args:
        work, arguments: what the process does; they can be pickled.
        below: the folders whose changes count.
        die_at: the number of the change that isn't made any more, from 1; 0: all are made.
        whom: who is killed then.
        imported: modules that it needs not import.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__, *imported])
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_tell, args=(theirs, partial(work, *arguments), below, die_at, whom))
    process.start()
    theirs.close()
    with ours:
        found: Life = ours.recv()
    process.join()
    return found


def _tell(theirs: Connection, work: Callable[[], object], *how: Any) -> None:
    theirs.send(_live(work, *how))


def _live(work: Callable[[], object], below: Sequence[str | Path], die_at: int, whom: Whom = "all") -> Life:
    """As `live`, by a process that has no other children and a single thread."""
    ready, begin = os.pipe()
    first = os.fork()
    if not first:
        os.close(begin)
        _work(work, ready)
    os.close(ready)
    _ptrace(_SEIZE, first, 0, _OPTIONS)
    os.close(begin)
    signal.signal(signal.SIGTERM, lambda *_: os.kill(first, signal.SIGTERM))
    return _trace(first, tuple(f"{os.path.realpath(folder)}/" for folder in below), die_at, whom)


def _work(work: Callable[[], object], ready: int) -> NoReturn:
    code = 1
    try:
        os.read(ready, 1)
        os.close(ready)
        _filter()
        work()
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    finally:
        os._exit(code)


def _filter() -> None:
    """Have this process and all that it starts stopped before the calls: a program for the kernel's filter."""
    load, equal, any_of, answer = 0x20, 0x15, 0x45, 0x06
    numbers = [number for number in _CALLS if number != _OPENAT]
    lines = [(load, 0, 0, 0), (equal, 0, 2, _OPENAT), (load, 0, 0, 16 + 8 * 2)]  # whose third argument is its flags
    lines += [(any_of, len(numbers) + 1, len(numbers), os.O_CREAT)]
    lines += [(equal, len(numbers) - at, 0, number) for at, number in enumerate(numbers)]
    lines += [(answer, 0, 0, 0x7FFF0000), (answer, 0, 0, 0x7FF00000)]  # allow, trace
    program = b"".join(struct.pack("=HBBI", *line) for line in lines)
    buffer = ctypes.create_string_buffer(program, len(program))
    described = struct.pack("HxxxxxxP", len(lines), ctypes.addressof(buffer))
    for arguments in ((38, 1, 0, 0, 0), (22, 2, described, 0, 0)):  # PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP
        if _libc.prctl(*arguments):
            raise OSError(ctypes.get_errno(), "prctl")


def _trace(first: int, below: tuple[str, ...], die_at: int, whom: Whom) -> Life:
    made, last, code = 0, None, 0
    for thread, status in _waited():
        if os.WIFEXITED(status) or os.WIFSIGNALED(status):
            code = os.waitstatus_to_exitcode(status) if thread == first else code
            continue
        event, number = status >> 16, os.WSTOPSIG(status)
        if event == _EVENT_SECCOMP and last is None:
            with suppress(ProcessLookupError, FileNotFoundError):  # it was killed in the meantime
                if (change := _change(thread)) is not None and change.path.startswith(below):
                    made += 1
                    if made == die_at:
                        last = change
                        for process in _victims(first, thread, whom):
                            os.kill(process, signal.SIGKILL)
        with suppress(ProcessLookupError):
            _ptrace(_CONT, thread, 0, 0 if event else number)
    return Life(made - (last is not None), last, code)


def _waited() -> Iterator[tuple[int, int]]:
    """What becomes of all threads, until there is none."""
    with suppress(ChildProcessError):
        while True:
            yield os.waitpid(-1, _WALL)


def _victims(first: int, thread: int, whom: Whom) -> list[int]:
    caller = _process(thread)
    if whom == "caller":
        return [caller]
    return [first] if whom == "first" else [*_below(first), first]


def _below(process: int) -> Iterator[int]:
    for thread in os.listdir(f"/proc/{process}/task"):
        for child in map(int, Path(f"/proc/{process}/task/{thread}/children").read_text().split()):
            yield from _below(child)
            yield child


def _process(thread: int) -> int:
    lines = Path(f"/proc/{thread}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("Tgid:")).split()[1])


def _change(thread: int) -> Change | None:
    """What a thread that was stopped is about to change; None: nothing that has a path."""
    buffer = ctypes.create_string_buffer(_INFO.size)
    _ptrace(_GET_SYSCALL_INFO, thread, _INFO.size, ctypes.addressof(buffer))
    number, *arguments = _INFO.unpack(buffer.raw)[4:11]
    call = _CALLS[number]
    if number in _WRITES:
        return Change(call, os.readlink(f"/proc/{thread}/fd/{arguments[0]}"))
    if number in _PATHS:
        return Change(call, _resolved(thread, _AT_FDCWD, _text(thread, arguments[0])))
    if number in _AT_FOLDERS:
        folder = ctypes.c_int(arguments[0]).value
        return Change(call, _resolved(thread, folder, _text(thread, arguments[1])))
    family, path = struct.unpack("=H108s", _memory(thread, arguments[1], 110))
    if family != socket.AF_UNIX or not path[0]:
        return None
    return Change(call, _resolved(thread, _AT_FDCWD, os.fsdecode(path.split(b"\0")[0])))


def _text(thread: int, address: int) -> str:
    return os.fsdecode(_memory(thread, address, 4096).split(b"\0")[0])


def _memory(thread: int, address: int, size: int) -> bytes:
    """So much of it, or what there is up to the end of a mapping."""
    with open(f"/proc/{thread}/mem", "rb", buffering=0) as memory:
        memory.seek(address)
        there = memory.read(min(size, 4096 - address % 4096))
        if len(there) < size and b"\0" not in there:
            there += memory.read(size - len(there))
        return there.ljust(size, b"\0")


def _resolved(thread: int, folder: int, path: str) -> str:
    """The path of a name, as it is outside of the process. The name itself may be a link that is replaced."""
    base = os.readlink(f"/proc/{thread}/cwd" if folder == _AT_FDCWD else f"/proc/{thread}/fd/{folder}")
    parent, name = os.path.split(os.path.join(base, path))
    return os.path.join(os.path.realpath(parent), name)


def _ptrace(request: int, thread: int, address: int, data: int) -> None:
    if _libc.ptrace(request, thread, address, data) == -1:
        problem = ctypes.get_errno()
        raise OSError(problem, os.strerror(problem))


def rounds(kills: int, enough: Callable[[], bool]) -> Iterator[int]:
    """Number so many kills at random places, and more until enough of them were where it matters, which is chance.

    Raises:
        AssertionError: they weren't among ten times as many.
    """
    for number in count():
        if number >= kills and enough():
            return
        assert number < 10 * kills, f"hardly any of {number} kills was where it matters"
        yield number


def command(words: Sequence[str | Path], below: Sequence[str | Path], die_at: int, report: Path) -> list[str]:
    """The command line of a program that is killed, with all that it has started, at a change; see `live`.

    Args:
        words: the program's own command line.
        report: the file that says then how it came to its end; read it with `life`.
    """
    own = [sys.executable, "-m", __name__, str(report), str(die_at), *map(str, below)]
    return [*own, "--", *map(str, words)]


def life(report: Path) -> Life:
    """How a program of `command` came to its end, once it has."""
    changes, last, code = json.loads(report.read_text())
    return Life(changes, Change(*last) if last else None, code)


def main(arguments: Sequence[str]) -> None:
    """Be a program of `command`."""
    own, words = arguments[: arguments.index("--")], arguments[arguments.index("--") + 1 :]
    report, die_at, *below = own
    found = _live(lambda: os.execv(words[0], list(words)), below, int(die_at))
    Path(report).write_text(json.dumps(found))
    os.kill(os.getpid(), signal.SIGKILL) if found.code < 0 else sys.exit(found.code)


if __name__ == "__main__":
    main(sys.argv[1:])
