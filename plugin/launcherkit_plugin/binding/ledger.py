"""The records of what functions were bound to before, so that they can be given back even after a crash (K8).

There is a file for each bound group, in a folder below ``/run``, for records mean nothing after a reboot. A file is
replaced by rename, and synced to disk before the change that it describes. Beside the records are lock files, one for
each function.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Literal, NamedTuple, TypeAlias, TypeVar, get_args

from launcherkit.atomic import write_atomically
from launcherkit.errors import UnwritableFile, shown
from launcherkit.model.address import PciAddress
from launcherkit_plugin.host.drivers import Power
from launcherkit_plugin.model.errors import BadRecord, StepHangs

T = TypeVar("T")

State: TypeAlias = Literal["binding", "bound", "restoring"]
"""The state of a function when the record was written: being bound to VFIO, bound, being given back."""

By: TypeAlias = Literal["command", "configuration"]

LOCK_SECONDS = 5.0
_LOCK_PAUSE = 0.02
_RECORD_BYTES = 1 << 20
_VERSION = 1


class Entry(NamedTuple):
    """One function, and its state before the change."""

    address: PciAddress
    driver: str | None
    override: str | None
    """The content of ``driver_override``."""
    state: State
    power: Power = Power(None, None)
    """Its power management."""


class Record(NamedTuple):
    """Functions that were bound together."""

    leader: PciAddress
    """The first member of the group, after which the file is named."""
    driver: str
    """The driver that they were bound to."""
    by: By
    asked: tuple[PciAddress, ...]
    """The functions that were asked for; the others were bound because they share the group."""
    entries: tuple[Entry, ...]

    @property
    def is_settled(self) -> bool:
        """Whether no change was in progress."""
        return all(entry.state == "bound" for entry in self.entries)


class Ledger:
    """The records below a folder.

    Args:
        folder: created on the first write.
        boot: the ID of this boot; records of other boots are void.
    """

    def __init__(self, folder: str, boot: str) -> None:
        self._folder = folder
        self._boot = boot

    def records(self) -> list[Record]:
        """All records, sorted by address.

        Raises:
            BadRecord: one can't be read.
        """
        return [record for name in self._names() if (record := self._read(name)) is not None]

    def find(self, addresses: Iterable[PciAddress]) -> Record | None:
        """The record that contains one of these functions."""
        wanted = set(addresses)
        for record in self.records():
            if any(entry.address in wanted for entry in record.entries):
                return record
        return None

    def write(self, record: Record) -> None:
        """Write a record; it replaces the previous one of its leader.

        Raises:
            UnwritableFile: it can't be written.
        """
        self._make()
        write_atomically(self._path(record), _dump(record, self._boot), mode=0o600)

    def remove(self, record: Record) -> None:
        """Remove a record."""
        with suppress(FileNotFoundError):
            os.unlink(self._path(record))

    def remove_void(self) -> None:
        """Remove the records of other boots."""
        for name in self._names():
            if self._read(name) is None:
                with suppress(FileNotFoundError):
                    os.unlink(os.path.join(self._folder, name))

    @contextmanager
    def locked(self, addresses: Iterable[PciAddress], seconds: float = LOCK_SECONDS) -> Iterator[tuple[int, ...]]:
        """Lock these functions; yields the file descriptors that hold the locks.

        A process that inherits them holds the locks too, until it has ended.

        Raises:
            StepHangs: another process holds one of the locks for longer than ``seconds``.
            UnwritableFile: a lock file can't be created.
        """
        self._make()
        deadline = time.monotonic() + seconds
        files: list[int] = []
        try:
            for address in sorted(set(addresses)):  # everybody locks in this order, so there is no deadlock
                path = os.path.join(self._folder, f"{address}.lock")
                try:
                    files.append(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600))
                except OSError as problem:
                    raise _unwritable(path, problem) from problem
                while not _lock(files[-1]):
                    if time.monotonic() > deadline:
                        raise StepHangs(
                            f"{address} is being bound or given back by another process",
                            "Wait for it. A step of one that was killed may hang in the kernel: `launcherkit-plugin "
                            f"status {address}` shows what was going on, and the kernel's log says more.",
                            device=str(address),
                            file=path,
                        )
                    time.sleep(_LOCK_PAUSE)
            yield tuple(files)
        finally:
            for file in files:
                os.close(file)

    def _make(self) -> None:
        try:
            os.makedirs(self._folder, mode=0o700, exist_ok=True)
            status = os.stat(self._folder)
        except OSError as problem:
            raise _unwritable(self._folder, problem) from problem
        if status.st_mode & 0o022 or status.st_uid not in (0, os.geteuid()):
            raise BadRecord(
                f"{self._folder} can be written to by others, who could have any device bound to any driver",
                f"chown root {self._folder}; chmod 700 {self._folder}; or name another folder with --ledger.",
                file=self._folder,
            )

    def _path(self, record: Record) -> str:
        return os.path.join(self._folder, f"{record.leader}.json")

    def _names(self) -> list[str]:
        try:
            return sorted(name for name in os.listdir(self._folder) if name.endswith(".json") and name[0] != ".")
        except OSError:
            return []

    def _read(self, name: str) -> Record | None:
        """One record; None if it is of another boot or has just been removed."""
        path = os.path.join(self._folder, name)
        try:
            with open(path, "rb") as file:
                boot, record = _load(json.loads(file.read(_RECORD_BYTES)))
        except FileNotFoundError:
            return None
        except OSError as problem:
            raise _bad(path, problem.strerror or str(problem)) from problem
        except (ValueError, RecursionError) as problem:
            raise _bad(path, str(problem)) from problem
        return record if boot == self._boot else None


def _lock(file: int) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _dump(record: Record, boot: str) -> bytes:
    entries = [
        {**entry._asdict(), "address": str(entry.address), "power": list(entry.power)} for entry in record.entries
    ]
    document = {
        "version": _VERSION,
        "boot": boot,
        "leader": str(record.leader),
        "driver": record.driver,
        "by": record.by,
        "asked": [str(address) for address in record.asked],
        "entries": entries,
    }
    return json.dumps(document, indent=1).encode() + b"\n"


def _load(document: Any) -> tuple[str, Record]:
    """The boot and the record.

    Raises:
        ValueError: it isn't a valid record.
    """
    version = _in(document, "", "version")
    if version != _VERSION:
        raise ValueError(f"version {shown(version)} is not {_VERSION}")
    entries = tuple(_entry(entry, f"entries[{at}]") for at, entry in enumerate(_list(document, "entries")))
    driver = _named("driver", _driver, _in(document, "", "driver"))
    if driver is None or not entries:
        raise ValueError("it has no driver or no entries")
    asked = tuple(_named(f"asked[{at}]", _address, one) for at, one in enumerate(_list(document, "asked")))
    leader = _named("leader", _address, _in(document, "", "leader"))
    by = _named("by", lambda value: _one_of(value, get_args(By)), _in(document, "", "by"))
    return str(_in(document, "", "boot")), Record(leader, driver, by, asked, entries)


def _entry(entry: Any, where: str) -> Entry:
    return Entry(
        _named(f"{where}.address", _address, _in(entry, where, "address")),
        _named(f"{where}.driver", _driver, _in(entry, where, "driver")),
        _named(f"{where}.override", _driver, _in(entry, where, "override")),
        _named(f"{where}.state", lambda value: _one_of(value, get_args(State)), _in(entry, where, "state")),
        _named(f"{where}.power", _power, entry.get("power", [None, None])),  # it was not always recorded
    )


def _in(mapping: Any, where: str, key: str) -> Any:
    if not isinstance(mapping, dict):
        raise ValueError(f"{where or 'it'}: {shown(mapping)} is not an object")
    if key not in mapping:
        raise ValueError(f"{where or 'it'} has no {key}")
    return mapping[key]


def _list(document: Any, key: str) -> list[Any]:
    value = _in(document, "", key)
    if not isinstance(value, list):
        raise ValueError(f"{key}: {shown(value)} is not a list")
    return value


def _named(where: str, parse: Callable[[Any], T], value: Any) -> T:
    """Parse a value; an error names its place."""
    try:
        return parse(value)
    except ValueError as problem:
        raise ValueError(f"{where}: {problem}") from problem


def _address(value: Any) -> PciAddress:
    if not isinstance(value, str):
        raise ValueError(f"{shown(value)} is not an address")
    return PciAddress.parse(value)


def _driver(value: Any) -> str | None:
    """The name of a driver, or None. It must be a single path component: it is used as one."""
    if value is not None and (not isinstance(value, str) or value in ("", ".", "..") or set("/\0\n") & set(value)):
        raise ValueError(f"{shown(value)} is not the name of a driver")
    return value


def _power(value: Any) -> Power:
    if not isinstance(value, list) or len(value) != 2:
        raise ValueError(f"{shown(value)} is not a list of two")
    return Power(_one_of(value[0], ("0", "1", None)), _one_of(value[1], ("auto", "on", None)))


def _one_of(value: Any, values: Sequence[Any]) -> Any:
    if value not in values:
        raise ValueError(f"{shown(value)} is not one of {', '.join(filter(None, values))}")
    return value


def _bad(path: str, why: str) -> BadRecord:
    return BadRecord(
        f"{path} is not a valid record of what was bound: {why}",
        "See with `lspci -k` which driver each device is bound to, bind them by hand, and remove the file.",
        file=path,
    )


def _unwritable(path: str, problem: OSError) -> UnwritableFile:
    return UnwritableFile(
        f"{path}: {problem.strerror or problem}", "Binding needs root; or name another folder with --ledger.", file=path
    )
