"""The drivers of PCI functions: the steps of binding, each of which reads or writes one file of sysfs.

Some of them never return. The daemon does other such work in threads (`launcherkit_plugin.host.work_queue`), but for a
step of binding a thread isn't enough. A command has to end, and a process with a thread that hangs in the kernel
doesn't, not even by SIGKILL. And the locks for a step must be held until it has ended, even if this process is killed
meanwhile. So the steps are executed by a process of their own, which can be abandoned.
"""

from __future__ import annotations

import errno
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from typing import NamedTuple, Protocol, TypeVar

from launcherkit.host.functions import text
from launcherkit.model.address import PciAddress
from launcherkit_plugin.model.errors import STEP_FAILED, STEP_HANGS

T = TypeVar("T")

STEP_SECONDS = 30.0
"""How long one step may take. The driver of a large GPU takes about ten seconds to shut it down."""


class Power(NamedTuple):
    """The power management of a function. None: there is no such file, or any value will do."""

    d3cold: str | None
    """``d3cold_allowed``: ``1`` or ``0``."""
    control: str | None
    """``power/control``: ``auto`` or ``on``."""


AWAKE = Power("0", "on")
"""For functions that are passed through: some don't wake up from D3cold."""
_POWER_FILES = ("d3cold_allowed", "power/control")


class Sysfs:
    """PCI devices and drivers below ``<root>/sys``. What this class itself reads doesn't block.

    Args:
        root: the directory that contains ``sys``.
        seconds: how long one step may take.
        make_worker: returns a worker that performs steps and keeps the given file descriptors open.
    """

    def __init__(
        self,
        root: str = "/",
        seconds: float = STEP_SECONDS,
        *,
        make_worker: Callable[[Sequence[int]], Worker] | None = None,
    ) -> None:
        self.root = root
        self._bus = os.path.join(root, "sys/bus/pci")
        self._seconds = seconds
        self._make_worker = make_worker or ProcessWorker

    @contextmanager
    def holding(self, locks: Sequence[int]) -> Iterator[SysfsSteps]:
        """The steps of one change, by a worker that keeps these file descriptors open until the block has ended: so an
        abandoned step still holds the locks.
        """
        with closing(self._make_worker(locks)) as worker:
            yield SysfsSteps(self.root, self._seconds, worker)

    def exists(self, address: PciAddress) -> bool:
        """Whether the function exists."""
        return os.path.exists(f"{self._bus}/devices/{address}")

    def driver(self, address: PciAddress) -> str | None:
        """The driver of the function; None if it has none. Doesn't block: it is a symbolic link.

        Raises:
            StepFailed: it can't be read (T2).
        """
        path = f"{self._bus}/devices/{address}/driver"
        try:
            return os.path.basename(os.readlink(path))
        except FileNotFoundError:
            return None
        except OSError as problem:
            raise STEP_FAILED(
                f"reading {path}: {problem.strerror}", _remedy(problem), device=str(address), file=path
            ) from problem

    def has_driver(self, name: str) -> bool:
        """Whether a driver is loaded."""
        return os.path.isdir(f"{self._bus}/drivers/{name}")

    def driver_of_module(self, module: str) -> str | None:
        """The loaded driver of a module: it has the module's name, where a dash is an underscore; None if it isn't."""
        with suppress(OSError):
            return next((name for name in os.listdir(f"{self._bus}/drivers") if name.replace("-", "_") == module), None)
        return None

    def modalias(self, address: PciAddress) -> str:
        """The function's modalias; empty if it has none."""
        with suppress(OSError), open(f"{self._bus}/devices/{address}/modalias", encoding="ascii") as file:
            return file.read(256).strip()
        return ""

    def can_reset(self, address: PciAddress) -> bool:
        """Whether the kernel knows a way to reset the function: of itself alone, or with its bus."""
        return os.path.exists(f"{self._bus}/devices/{address}/reset")

    def vfs(self, address: PciAddress) -> tuple[PciAddress, ...]:
        """The virtual functions of a function, in order. Doesn't block: they are symbolic links."""
        vfs: list[PciAddress] = []
        with suppress(FileNotFoundError):
            while True:
                link = os.readlink(f"{self._bus}/devices/{address}/virtfn{len(vfs)}")
                vfs.append(PciAddress.parse(os.path.basename(link)))
        return tuple(vfs)

    def may_write(self) -> bool:
        """Whether this process may bind functions at all."""
        return os.access(f"{self._bus}/drivers_probe", os.W_OK)


class SysfsSteps(Sysfs):
    """The steps of one change. They may block, and raise `StepFailed` if the kernel refuses, and `STEP_HANGS` if it
    doesn't return in time.
    """

    def __init__(self, root: str, seconds: float, worker: Worker) -> None:
        super().__init__(root, seconds)
        self._worker = worker

    def override(self, address: PciAddress) -> str | None:
        """The only driver that may bind the function; None: any. Reading it takes the device's lock."""
        path = f"{self._bus}/devices/{address}/driver_override"
        return text(self._read(path))

    def set_override(self, address: PciAddress, name: str | None) -> None:
        """Let only this driver bind the function; None: any that supports it."""
        self._put(f"devices/{address}/driver_override", name or "\n")

    def power(self, address: PciAddress) -> Power:
        """The function's power management."""
        values = []
        for name in _POWER_FILES:
            path = f"{self._bus}/devices/{address}/{name}"
            values.append(text(self._read(path)) if os.path.exists(path) else None)
        return Power(*values)

    def set_power(self, address: PciAddress, power: Power) -> None:
        """Set the function's power management where it differs. This may wake the device up."""
        for name, value, present in zip(_POWER_FILES, power, self.power(address), strict=True):
            if value is not None and present not in (None, value):
                self._put(f"devices/{address}/{name}", value)

    def unbind(self, address: PciAddress, name: str) -> None:
        """Unbind the function from its driver."""
        self._put(f"drivers/{name}/unbind", str(address))

    def bind(self, address: PciAddress, name: str) -> None:
        """Bind the function, which has no driver, to this one."""
        self._put(f"drivers/{name}/bind", str(address))

    def probe(self, address: PciAddress) -> None:
        """Let the kernel find a driver for the function."""
        self._put("drivers_probe", str(address))

    def reset(self, address: PciAddress) -> None:
        """Reset the function, by the first of the kernel's methods for it that works (``reset_method``)."""
        self._put(f"devices/{address}/reset", "1")

    def numvfs(self, address: PciAddress) -> int:
        """How many virtual functions a function has. Reading it takes the device's lock."""
        return int(text(self._read(f"{self._bus}/devices/{address}/sriov_numvfs")) or 0)

    def set_numvfs(self, address: PciAddress, number: int, of: int) -> None:
        """Make so many virtual functions, or with 0 take all ``of`` them away. Each may take a second."""
        self._put(f"devices/{address}/sriov_numvfs", str(number), more=of)

    def autoprobe(self, address: PciAddress) -> bool | None:
        """Whether the kernel offers a function's virtual functions to drivers; None: there is no such setting."""
        path = f"{self._bus}/devices/{address}/sriov_drivers_autoprobe"
        return text(self._read(path)) != "0" if os.path.exists(path) else None

    def set_autoprobe(self, address: PciAddress, value: bool) -> None:
        """Set it, unless it is so."""
        if self.autoprobe(address) not in (None, value):
            self._put(f"devices/{address}/sriov_drivers_autoprobe", str(int(value)))

    def _read(self, path: str) -> bytes | None:
        return self._step(path, f"reading {path}", lambda worker: worker.read(path, self._seconds))

    def _put(self, name: str, content: str, more: float = 0.0) -> None:
        path = f"{self._bus}/{name}"
        step = f"writing {content.strip() or 'an empty line'} to {path}"
        self._step(path, step, lambda worker: worker.write(path, content, self._seconds + more), more)

    def _step(self, path: str, step: str, do: Callable[[Worker], T], more: float = 0.0) -> T:
        try:
            return do(self._worker)
        except OSError as problem:
            raise STEP_FAILED(f"{step}: {problem.strerror or problem}", _remedy(problem), file=path) from problem
        except Late as late:
            seconds = self._seconds + more
            raise STEP_HANGS(
                f"{step} has not returned within {seconds:g} s; process {late.pid} still waits for the driver",
                "End what uses the device (for NVIDIA: nvidia-persistenced, dcgm, X, CUDA processes; `fuser -v "
                "/dev/nvidia*`); the step then goes through, and the next `bind` or `unbind` of the device cleans up. "
                "If nothing uses it, the kernel's log says more.",
                file=path,
            ) from late


def _remedy(problem: OSError) -> str:
    if problem.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return "Binding needs root and a writable /sys: in a container, a privileged one."
    return "The kernel's log (dmesg) says more."


class Late(Exception):
    """A step has not returned in time. ``pid`` is the process that was abandoned."""

    def __init__(self, pid: int) -> None:
        super().__init__(pid)
        self.pid = pid


class Worker(Protocol):
    """Accesses files that may make it hang: `ProcessWorker`, and in tests a kernel that binds drivers in memory."""

    def read(self, path: str, seconds: float) -> bytes:
        """The first 4096 bytes of a file.

        Raises:
            OSError: from the system call.
            Late: no answer within ``seconds``.
        """
        ...

    def write(self, path: str, text: str, seconds: float) -> None:
        """Write to an existing file, with one system call; raises the same as `read`."""
        ...

    def close(self) -> None:
        """Release the worker."""
        ...


_CODE = """\
import os, sys
kept = [int(file) for file in sys.argv[1:]]
while question := os.read(0, 65536):
    kind, path, text = question.decode().split(",")
    error, answer = 0, b""
    try:
        if kind == "keep":
            with socket.socket(fileno=os.dup(0)) as files:
                kept = socket.recv_fds(files, 1, 253)[1]
        elif kind == "drop":
            while kept:
                os.close(kept.pop())
        else:
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
    os.write(0, b"%d,%s" % (error, answer.hex().encode()))
    if kind == "drop":
        import socket  # while nobody waits
"""

_END_SECONDS = 5.0
_ANSWER_BYTES = 16384


class ProcessWorker:
    """A `Worker` with a process, which is started when it is first needed, and again after one was abandoned.

    Args:
        keep: file descriptors that the process keeps open until `close`, even if the calling process ends.
        spare: where to take an idle process from, and where to return it.
    """

    def __init__(self, keep: Sequence[int] = (), spare: SpareProcess | None = None) -> None:
        self._keep = tuple(keep)
        self._spare = spare
        self._process: _Process | None = None

    def read(self, path: str, seconds: float) -> bytes:
        """See `Worker.read`."""
        return self._ask("read", path, "", seconds)

    def write(self, path: str, text: str, seconds: float) -> None:
        """See `Worker.write`."""
        self._ask("write", path, text, seconds)

    def close(self) -> None:
        """End the process, or return it for reuse. It closes the file descriptors that it kept."""
        process, self._process = self._process, None
        if process is not None and not (self._spare is not None and self._spare.put_back(process)):
            process.end()

    def _ask(self, kind: str, path: str, text: str, seconds: float) -> bytes:
        standing_by = None if self._process or self._spare is None else self._spare.lend(self._keep)
        process = self._process = self._process or standing_by or _Process(self._keep)
        try:
            return process.ask(kind, path, text, seconds)
        except (_Gone, Late):
            self._process = None
            process.leave()
            raise


class SpareProcess:
    """Keeps one idle process for reuse: starting one takes longer than most steps. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._idle: _Process | None = None

    def worker(self, keep: Sequence[int] = ()) -> Worker:
        """A `Worker` that uses the idle process if there is one."""
        return ProcessWorker(keep, self)

    def lend(self, keep: Sequence[int]) -> _Process | None:
        """The idle process, which then keeps these file descriptors open; None if there is none."""
        process = self._change(None)
        if process is None:
            return None
        try:
            process.keep(keep)
        except (OSError, Late):  # it was killed, or there are more descriptors than a message can hold
            process.leave()
            return None
        return process

    def put_back(self, process: _Process) -> bool:
        """Keep a process for reuse; False if it doesn't answer."""
        try:
            process.ask("drop", "", "", _END_SECONDS)
        except (OSError, Late):
            return False
        other = self._change(process)
        if other is not None:
            other.end()
        return True

    def close(self) -> None:
        """End the idle process."""
        process = self._change(None)
        if process is not None:
            process.end()

    def _change(self, process: _Process | None) -> _Process | None:
        with self._lock:
            before, self._idle = self._idle, process
        return before


class _Gone(OSError):
    """The process has ended."""


class _Process:
    """One process, which executes one request at a time."""

    def __init__(self, keep: Sequence[int]) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self.process = subprocess.Popen(  # noqa: S603  # this interpreter, with a program of ours
                [sys.executable, "-I", "-S", "-c", _CODE, *map(str, keep)],
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=keep,
                start_new_session=True,  # Ctrl-C in the terminal must not interrupt it in the middle of a step
            )

    def keep(self, files: Sequence[int]) -> None:
        """Pass it file descriptors to keep open; raises the same as `ask`."""
        self._socket.send(b"keep,,")
        socket.send_fds(self._socket, [b"-"], files)
        self._answer(_END_SECONDS)

    def ask(self, kind: str, path: str, text: str, seconds: float) -> bytes:
        """Send a request and return the answer.

        Raises:
            OSError: from the system call in the process.
            _Gone: it has ended.
            Late: no answer within ``seconds``.
        """
        try:
            self._socket.send(f"{kind},{os.fsencode(path).hex()},{text.encode().hex()}".encode())
        except OSError as problem:
            raise _Gone(problem.errno, problem.strerror) from problem
        return self._answer(seconds, path)

    def _answer(self, seconds: float, path: str = "") -> bytes:
        self._socket.settimeout(seconds)
        try:
            answer = self._socket.recv(_ANSWER_BYTES)
        except TimeoutError as late:
            raise Late(self.process.pid) from late
        except ConnectionError as problem:
            raise _Gone(problem.errno, problem.strerror) from problem
        if not answer:
            raise _Gone("the process that should do it has ended")
        number, _, content = answer.partition(b",")
        if number != b"0":
            raise OSError(int(number), os.strerror(int(number)), path)
        return bytes.fromhex(content.decode())

    def end(self) -> None:
        """Close the socket, which ends the process; if it doesn't end in time, kill and abandon it."""
        self._socket.close()
        try:
            self.process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            self.leave()

    def leave(self) -> None:
        """Kill the process without waiting for it; a thread reaps it."""
        self._socket.close()
        abandon(self.process)


def abandon(process: subprocess.Popen[bytes]) -> None:
    """Kill a process without waiting for it, for it may hang in the kernel; a thread reaps it."""
    process.kill()
    threading.Thread(target=process.wait, name=f"waits for {process.pid}", daemon=True).start()
