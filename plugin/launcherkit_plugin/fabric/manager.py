"""NVIDIA's Fabric Manager, asked by way of a process that has its library (`launcherkit_plugin.fabric.library`)."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from functools import lru_cache
from typing import Any, NamedTuple, Protocol

from launcherkit.atomic import make_folders
from launcherkit.model.address import PciAddress
from launcherkit_plugin.fabric.partitions import Board, BoardCard, Partition, matched
from launcherkit_plugin.file_lock import FileLock
from launcherkit_plugin.host.drivers import abandon
from launcherkit_plugin.model.config import FabricConfig
from launcherkit_plugin.model.errors import FABRIC_UNREACHABLE, PARTITION_NOT_CHANGED, PARTITION_OF_OTHERS

CALL_SECONDS = 45.0
"""How long a call may take: activating retrains the NVLinks of an A100, for which Fabric Manager allows itself 40 s."""
_END_SECONDS = 5.0
LOCK_SECONDS = 2.0
"""The process of a daemon that was killed ends a moment later, unless it is in a call."""

CODES: Mapping[int, str] = {
    -1: "FM_ST_BADPARAM",
    -2: "FM_ST_GENERIC_ERROR",
    -3: "FM_ST_NOT_SUPPORTED",
    -4: "FM_ST_UNINITIALIZED",
    -5: "FM_ST_TIMEOUT",
    -6: "FM_ST_VERSION_MISMATCH",
    -7: "FM_ST_IN_USE",
    -8: "FM_ST_NOT_CONFIGURED",
    -9: "FM_ST_CONNECTION_NOT_VALID",
    -10: "FM_ST_NVLINK_ERROR",
    -11: "FM_ST_RESOURCE_BAD",
    -12: "FM_ST_RESOURCE_IN_USE",
    -15: "FM_ST_RESOURCE_NOT_READY",
    -17: "FM_ST_PARTITION_ID_IN_USE",
    -18: "FM_ST_PARTITION_ID_NOT_IN_USE",
    -22: "FM_ST_NOT_READY",
    -24: "FM_ST_RESOURCE_USED_IN_ANOTHER_PARTITION",
}
"""``fmReturn_t`` of ``nv_fm_types.h``, as far as these calls can return it."""

_IN_USE = (-7, -12, -17, -24)
"""It is active already, or one that overlaps it is."""
_REMEDIES: Mapping[int, str] = {
    -3: "Run Fabric Manager with FABRIC_MODE=1, or FABRIC_MODE=2 for vGPUs, on a board with NVSwitches.",
    -6: "Its library is of another version than Fabric Manager: install both of one driver.",
    -8: "It is starting; or, with FABRIC_MODE_RESTART=1, it waits to be told which partitions are active "
    "(fmSetActivatedFabricPartitions; `fmpm --set-activated-list` of NVIDIA's Fabric-Manager-Client).",
    -9: "See whether it runs (systemctl status nvidia-fabricmanager), and whether `fabric` names its socket "
    "(FM_CMD_UNIX_SOCKET_PATH) or address (FM_CMD_BIND_INTERFACE and FM_CMD_PORT_NUMBER).",
    -10: "See /var/log/fabricmanager.log: NVLinks could not be trained. Reset the cards, or reboot.",
}
_REMEDY = "See /var/log/fabricmanager.log on the node."

Condition = tuple[Board, tuple[str, str]]


class NotBegun(Exception):
    """Nothing was changed: the board is another one than was seen, or the record can't be renamed."""


class FabricManager(Protocol):
    """Reads, activates and deactivates partitions; methods block, and return the board as it is then."""

    def board(self) -> Board:
        """The partitions that the board supports, with their present state.

        Raises:
            FABRIC_UNREACHABLE: they can't be read.
        """
        ...

    def activate(self, number: int, vfs: Sequence[PciAddress] = (), first: Condition | None = None) -> Board:
        """Activate a partition, which isn't active, nor one that overlaps it.

        Args:
            number: its ID.
            vfs: one of each of its cards, in their order, if guests get VFs.
            first: the board that it has to be still, and the paths of a record: the first is renamed to the second.

        Raises:
            NotBegun: it is another board, or they can't be renamed.
            PARTITION_OF_OTHERS: it is active, or one that overlaps it is.
            PARTITION_NOT_CHANGED: Fabric Manager refuses; or it can't be asked, and the state is unknown.
            FABRIC_UNREACHABLE: it was activated, but the board can't be read then.
        """
        ...

    def deactivate(self, number: int) -> Board:
        """Deactivate a partition; raises the same as `activate`."""
        ...

    def close(self) -> None:
        """Let go of it, without waiting. A later call begins anew, and lets go again."""
        ...


class Caller(Protocol):
    """Makes calls of the library: a process, and in tests a double of it."""

    def ask(self, questions: Sequence[Mapping[str, Any]], seconds: float) -> list[bytes]:
        """Send questions and return the answer to each, a line: see `launcherkit_plugin.fabric.library`.

        Raises:
            OSError: it has ended, or there is nothing for so many seconds.
        """
        ...

    def leave(self, problem: Exception) -> str:
        """Kill it without waiting for it, after a problem; returns what was wrong."""
        ...

    def end(self) -> None:
        """Let it end."""
        ...


class _Answer(NamedTuple):
    """An answer of the library."""

    code: int = 0
    function: str = ""
    """What returned it."""
    error: str = ""
    """Why it can't be loaded."""
    board: Board = Board()


class ProcessManager:
    """A `FabricManager` whose process is started with the first call, and again after it has crashed or was late.

    Args:
        config: its library, and where Fabric Manager listens.
        lock: a file that the process has locked as long as it lives, so that no other one begins a change while a call
            of an abandoned one, or of a killed daemon, may still be under way; None: partitions are only read.
        seconds: how long a call may take.
        start: starts something else than the process; raises OSError.
    """

    def __init__(
        self,
        config: FabricConfig,
        lock: str | None = None,
        seconds: float = CALL_SECONDS,
        start: Callable[[], Caller] | None = None,
    ) -> None:
        self.config = config
        kind = "socket" if config.address is None else "address"
        self.where = config.address or config.socket
        file = os.path.join(os.path.dirname(__file__), "library.py")
        command = [sys.executable, "-I", "-S", file, config.library, kind, self.where]
        self._start = start or (lambda: _Process(command, lock))
        self._seconds = seconds
        self._process: Caller | None = None
        self._is_closed = False
        self._lock = threading.Lock()
        modules = {module: PciAddress.parse(address) for module, address in config.modules.items()}
        self._parsed = lru_cache(maxsize=16)(lambda line: _parsed(line, modules))
        """The answer of a line: few states of a board come again and again."""

    def board(self) -> Board:
        """See `FabricManager.board`."""
        return self._ask([_READ])

    def activate(self, number: int, vfs: Sequence[PciAddress] = (), first: Condition | None = None) -> Board:
        """See `FabricManager.activate`."""
        addresses = [(each.domain, each.bus, each.device, each.function) for each in vfs]
        condition = {"seen": first[0].answer, "rename": first[1]} if first else {}
        return self._ask([{"call": "activate", "id": number, "vfs": addresses, **condition}, _READ])

    def deactivate(self, number: int) -> Board:
        """See `FabricManager.deactivate`."""
        return self._ask([{"call": "deactivate", "id": number}, _READ])

    def close(self) -> None:
        """See `FabricManager.close`: a call that is under way isn't waited for, and its process ends after it."""
        self._is_closed = True
        if self._lock.acquire(blocking=False):
            try:
                process, self._process = self._process, None
            finally:
                self._lock.release()
            if process is not None:
                process.end()

    def _ask(self, questions: Sequence[Mapping[str, Any]]) -> Board:
        try:
            return self._ask_process(questions)
        finally:
            if self._is_closed:
                self.close()  # which couldn't end the process while this call had it

    def _ask_process(self, questions: Sequence[Mapping[str, Any]]) -> Board:
        """Ask the process for one or two calls, the last of which reads the board.

        They are sent together: waking the process takes longer than a call that only reads.

        Raises:
            NotBegun: a condition isn't met.
            FABRIC_UNREACHABLE: Fabric Manager can't be asked about its partitions.
            PARTITION_NOT_CHANGED: the same for a change, or it is refused.
        """
        number = questions[0].get("id")
        with self._lock:
            try:
                self._process = self._process or self._start()
                answers = [self._parsed(line) for line in self._process.ask(questions, self._seconds)]
            except (OSError, ValueError) as problem:
                process, self._process = self._process, None
                text = str(problem) if process is None else process.leave(problem)
                raise _failure(self.where, number, f"{questions[0]['call']}: {text}", _REMEDY) from problem
        for question, answer in zip(questions, answers, strict=True):
            self._check(question, answer)
        return answers[-1].board

    def _check(self, question: Mapping[str, Any], answer: _Answer) -> None:
        number = question.get("id")
        if answer.error:
            remedy = "Install it, with the version of the driver, and name it with `fabric.library`."
            raise _failure(self.where, number, answer.error, remedy)
        if answer.code != 0:
            text = f"{answer.function} returned {CODES.get(answer.code, answer.code)}"
            if number is not None and question["call"] == "activate" and answer.code in _IN_USE:
                message = f"fabric partition {number}: {text}: its cards are in use"
                raise PARTITION_OF_OTHERS(message, _REMEDY, file=self.where)
            raise _failure(self.where, number, text, _REMEDIES.get(answer.code, _REMEDY))


def _failure(where: str, number: int | None, text: str, remedy: str) -> Exception:
    if number is None:
        return FABRIC_UNREACHABLE(f"Fabric Manager at {where} can't be asked: {text}", remedy, file=where)
    message = f"fabric partition {number} can't be changed by Fabric Manager at {where}: {text}"
    return PARTITION_NOT_CHANGED(message, remedy, file=where)


_READ: Mapping[str, Any] = {"call": "partitions"}


def _parsed(line: bytes, modules: Mapping[int, PciAddress]) -> _Answer:
    """The answer of a line, with the cards of the modules; raises ValueError if it is none, or NotBegun."""
    answer = json.loads(line)
    if "error" in answer:
        return _Answer(error=str(answer["error"]))
    if "begun" in answer:
        raise NotBegun
    board = matched(tuple(map(_partition, answer.get("partitions", ()))), modules)
    return _Answer(answer["code"], answer["from"], board=board._replace(answer=line.decode()))


def _partition(read: Mapping[str, Any]) -> Partition:
    gpus = tuple(BoardCard(gpu["module"], gpu["uuid"], read_address(gpu["address"])) for gpu in read["gpus"])
    return Partition(read["id"], gpus, active=read["active"])


def read_address(text: str) -> PciAddress | None:
    """``00000000:1B:00.0`` as Fabric Manager writes it; None if it says nothing, as on H100 boards and later ones."""
    domain, colon, rest = text.strip().partition(":")
    try:
        return PciAddress.parse(f"{int(domain, 16):04x}:{rest.lower()}" if colon else text)
    except ValueError:
        return None


class _Process:
    """A `Caller`: one process, which makes one call at a time.

    Raises:
        OSError: it can't be started, or an earlier one has not ended.
    """

    def __init__(self, command: Sequence[str], lock: str | None) -> None:
        with ExitStack() as opened:
            kept = () if lock is None else (_locked(lock, opened),)
            self._socket, theirs = socket.socketpair()
            opened.enter_context(theirs)
            self._process = subprocess.Popen(  # noqa: S603  # this interpreter, with a file of ours
                command,
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=kept,
                start_new_session=True,  # Ctrl-C in the terminal must not interrupt a call
            )

    def ask(self, questions: Sequence[Mapping[str, Any]], seconds: float) -> list[bytes]:
        """See `Caller.ask`."""
        self._socket.settimeout(seconds)
        self._socket.sendall(json.dumps(questions).encode() + b"\n")
        data = b""
        while data.count(b"\n") < len(questions):
            part = self._socket.recv(1 << 16)
            if not part:
                raise ConnectionResetError
            data += part
        return data.splitlines()

    def leave(self, problem: Exception) -> str:
        """See `Caller.leave`."""
        self._socket.close()
        if isinstance(problem, TimeoutError):
            abandon(self._process)
            return "libnvfm has not returned in time, and its process was killed"
        try:
            code = self._process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            abandon(self._process)
            return f"its process gave no answer: {problem}"
        return f"the process with libnvfm was killed by signal {-code}" if code < 0 else f"it ended with code {code}"

    def end(self) -> None:
        """See `Caller.end`: it ends with its socket."""
        self._socket.close()
        try:
            self._process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            abandon(self._process)


def _locked(path: str, opened: ExitStack) -> int:
    """The file descriptor of a lock that this process has until ``opened`` is closed, and who inherits it longer.

    Raises:
        OSError: another process has it.
    """
    make_folders(os.path.dirname(path), 0o700)
    lock = opened.enter_context(closing(FileLock(path)))
    if not lock.lock(LOCK_SECONDS):
        raise OSError(f"{path}: another process has it: its call of libnvfm has not returned, or a second daemon runs")
    return lock.file


ManagerOf = Callable[[FabricConfig], FabricManager]
"""Makes a `FabricManager` of the configuration."""
