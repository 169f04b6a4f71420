"""Reads and writes single files of sysfs. A write is an order to a driver, and some never come back.

The daemon does such work in threads (`launcherkit_plugin.host.guarded`). Here are the two cases in which a thread won't
do. A command has to end: a process that has a thread in the kernel doesn't, not even by SIGKILL. And the locks of a
step of binding must be held until the step has ended, even if this process is killed meanwhile. Both are served by a
process of its own, which can be left behind.
"""

from __future__ import annotations

import os
import select
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import closing, suppress
from time import monotonic
from typing import TYPE_CHECKING, Protocol

from launcherkit.sources.host import Host, open_host
from launcherkit.sources.tree import DiskTree

if TYPE_CHECKING:
    from launcherkit.sources.tree import Tree


PATIENCE_SECONDS = 15.0
"""How long a write may take. A driver that needs longer is stuck, often for ever."""


_IOMMUFD_NODE, _IOMMUFD_CLASS = "dev/iommu", "sys/class/misc/iommu"


class NodeTree(DiskTree):
    """The files of the node, as the pod of the device plugin has them.

    A file that only some nodes have can't be mounted into the pods of all, so ``/dev/iommu`` isn't in this one. iommufd
    registers the device in sysfs, which is in every pod.
    """

    __slots__ = ()

    def exists(self, path: str) -> bool:
        return super().exists(path) or (path == _IOMMUFD_NODE and super().exists(_IOMMUFD_CLASS))


def node_host(root: str) -> Host:
    """The node with this root; in the place of a root the text may name a snapshot or a recording.

    Raises:
        LauncherkitError: as `open_host`.
    """
    return open_host(root).followed(NodeTree)


class KernelFiles(Protocol):
    """What changes a host. Paths are relative to its root: ``sys/bus/mdev/devices``."""

    def tree(self) -> Tree:
        """To read from, and to be closed."""
        ...

    def write(self, path: str, text: str) -> None:
        """Write to a file that is there.

        Raises:
            TimeoutError: it is still being written; it may come to pass later.
            OSError: as the kernel refuses it.
        """
        ...


class DiskFiles:
    """The files below a directory. A write blocks for as long as the driver takes."""

    def __init__(self, root: str) -> None:
        self._root = root

    def tree(self) -> Tree:
        return NodeTree(self._root)

    def write(self, path: str, text: str) -> None:
        # Neither made nor cut: what isn't there is an error, and a file of sysfs has no length.
        handle = os.open(os.path.join(self._root, path), os.O_WRONLY | os.O_CLOEXEC | os.O_NOCTTY)
        try:
            os.write(handle, text.encode())
        finally:
            os.close(handle)


_CODE = """\
import os, sys
for line in sys.stdin:
    kind, path, text = line.rstrip("\\n").split(",")
    error, answer = 0, b""
    try:
        file = os.open(bytes.fromhex(path), os.O_RDONLY if kind == "read" else os.O_WRONLY)
        try:
            if kind == "read":
                answer = os.read(file, 4096)
            else:
                os.write(file, bytes.fromhex(text))
        finally:
            os.close(file)
    except OSError as problem:
        error = problem.errno
    os.write(1, b"%d,%s\\n" % (error, answer.hex().encode()))
"""

_END_SECONDS = 5.0
_ANSWER_BYTES = 16384


class Late(Exception):
    """It has not come back in time. ``pid`` is the process that is left waiting."""

    def __init__(self, pid: int) -> None:
        super().__init__(pid)
        self.pid = pid


class Worker(Protocol):
    """Does what may hang."""

    def read(self, path: str, seconds: float) -> bytes:
        """The first 4096 bytes of a file.

        Raises:
            OSError: as the system says.
            Late: no answer within ``seconds``.
        """
        ...

    def write(self, path: str, text: str, seconds: float) -> None:
        """Write to a file that is there, in one write; raises as `read`."""
        ...

    def close(self) -> None:
        """It isn't needed any more."""
        ...


class ProcessWorker:
    """A `Worker` that is a process, started when it is first needed, and again after one was left behind.

    Args:
        keep: open files that the process keeps open as long as it lives, whatever becomes of this one.
    """

    def __init__(self, keep: Sequence[int] = ()) -> None:
        self._keep = tuple(keep)
        self._process: subprocess.Popen[bytes] | None = None

    def read(self, path: str, seconds: float) -> bytes:
        """See `Worker.read`."""
        return self._ask("read", path, "", seconds)

    def write(self, path: str, text: str, seconds: float) -> None:
        """See `Worker.write`."""
        self._ask("write", path, text, seconds)

    def close(self) -> None:
        """End the process, which keeps what it was to keep no longer."""
        process, self._process = self._process, None
        if process is not None:
            _close(process)
            try:
                process.wait(_END_SECONDS)
            except subprocess.TimeoutExpired:
                _leave(process)

    def _ask(self, kind: str, path: str, text: str, seconds: float) -> bytes:
        process = self._process = self._process or self._start()
        try:
            answer = _answer(process, f"{kind},{os.fsencode(path).hex()},{text.encode().hex()}\n".encode(), seconds)
        except BaseException:
            self._process = None
            _close(process)
            _leave(process)
            raise
        number, _, content = answer.partition(b",")
        if number != b"0":
            raise OSError(int(number), os.strerror(int(number)), path)
        return bytes.fromhex(content.decode())

    def _start(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(  # noqa: S603  # this interpreter, with a program of ours
            [sys.executable, "-I", "-S", "-c", _CODE],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            bufsize=0,
            pass_fds=self._keep,
            start_new_session=True,  # a key pressed in our terminal must not end it in the middle
        )


def _answer(process: subprocess.Popen[bytes], question: bytes, seconds: float) -> bytes:
    """One line for one line.

    Raises:
        Late: none in time.
        OSError: the process has ended.
    """
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(question)
    deadline = monotonic() + seconds
    answer = b""
    while not answer.endswith(b"\n"):
        ready, _, _ = select.select([process.stdout], [], [], max(0.0, deadline - monotonic()))
        if not ready:
            raise Late(process.pid)
        part = process.stdout.read(_ANSWER_BYTES)
        if not part:
            raise OSError("the process that should do it has ended")
        answer += part
    return answer.rstrip(b"\n")


def _close(process: subprocess.Popen[bytes]) -> None:
    for pipe in (process.stdin, process.stdout):
        assert pipe is not None
        with suppress(OSError):
            pipe.close()


def _leave(process: subprocess.Popen[bytes]) -> None:
    """End it if it can be ended, and reap it when it has ended."""
    process.kill()
    threading.Thread(target=process.wait, name=f"waits for {process.pid}", daemon=True).start()


class TimedFiles(DiskFiles):
    """The same for a command, whose user must not wait for ever: a write that is late is left behind."""

    def __init__(self, root: str, patience: float = PATIENCE_SECONDS) -> None:
        super().__init__(root)
        self._patience = patience

    def write(self, path: str, text: str) -> None:
        with closing(ProcessWorker()) as worker:
            try:
                worker.write(os.path.join(self._root, path), text, self._patience)
            except Late as late:
                raise TimeoutError(f"no answer for {self._patience:g} s") from late
