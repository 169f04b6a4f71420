"""The records of what functions were bound to before, so that they can be given back even after a crash (K8).

There is a `launcherkit_plugin.records` file for each bound group, in a folder below ``/run``, for records mean nothing
after a reboot. It is written before the change that it describes. Beside the records are lock files, one for each
function.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from time import monotonic
from typing import Any, Literal, NamedTuple, TypeAlias, TypeVar, get_args

from launcherkit.atomic import Disk, make_folders
from launcherkit.errors import UNWRITABLE_FILE, UnwritableFile
from launcherkit.model.address import PciAddress
from launcherkit.request.fields import Fields, FirstProblem, text
from launcherkit_plugin.file_lock import FileLock
from launcherkit_plugin.host.drivers import Power
from launcherkit_plugin.model.errors import BAD_RECORD, STEP_HANGS, BadRecord
from launcherkit_plugin.records import BrokenRecord, RecordFolder, Records, Stored

T = TypeVar("T")

State: TypeAlias = Literal["binding", "bound", "restoring"]
"""The state of a function when the record was written: being bound to VFIO, bound, being given back."""

By: TypeAlias = Literal["command", "configuration"]

LOCK_SECONDS = 5.0


class Entry(NamedTuple):
    """One function, and its state before the change."""

    address: PciAddress
    driver: str | None
    override: str | None
    """The content of ``driver_override``."""
    state: State
    power: Power = Power(None, None)
    """Its power management."""
    variant: str | None = None
    """The VFIO driver that it is bound to, if that isn't the record's."""


class Record(NamedTuple):
    """Functions that were bound together."""

    leader: PciAddress
    """The first member of the group, after which the file is named."""
    driver: str
    """The VFIO driver that they were bound to, but for those with a variant of their own."""
    by: By
    asked: tuple[PciAddress, ...]
    """The functions that were asked for; the others were bound because they share the group."""
    entries: tuple[Entry, ...]

    def driver_of(self, address: PciAddress) -> str:
        """The VFIO driver that a function was, or is to be, bound to."""
        return next((each.variant for each in self.entries if each.address == address and each.variant), self.driver)

    @property
    def is_settled(self) -> bool:
        """Whether no change was in progress."""
        return all(entry.state == "bound" for entry in self.entries)


class Ledger:
    """The records below a folder.

    Args:
        folder: created on the first write.
        boot: the ID of this boot; records of other boots are void.
        disk: writes and removes the files.
    """

    def __init__(self, folder: str, boot: str, disk: Disk | None = None) -> None:
        self._folder = folder
        self._boot = boot
        self._records = RecordFolder(folder, boot, _load, is_address, disk or Disk())

    def records(self) -> list[Record]:
        """All records that can be read, sorted by address.

        Raises:
            BadRecord: their folder can't be read.
        """
        return [record for boot, record in self._read().whole.values() if boot == self._boot]

    def unreadable(self) -> Mapping[PciAddress, BadRecord]:
        """The errors of the others, by the address after which each is named: the first member of its group.

        Raises:
            BadRecord: their folder can't be read.
        """
        return {PciAddress.parse(name): _bad(broken) for name, broken in self._read().broken.items()}

    def ignored(self) -> tuple[str, ...]:
        """The paths of files in the folder that are no records."""
        return self._read().foreign

    def find(self, addresses: Iterable[PciAddress]) -> Record | None:
        """The record that contains one of these functions, which are all members of one group, or those of a record.

        Raises:
            BadRecord: it can't be read.
        """
        members = set(addresses)
        for record in self.records():
            if any(entry.address in members for entry in record.entries):
                return record
        for address, problem in self.unreadable().items():
            if address in members:
                raise problem
        return None

    def write(self, record: Record) -> None:
        """Write a record; it replaces the previous one of its leader.

        Raises:
            UnwritableFile: it can't be written.
        """
        self._make()
        self._records.write(str(record.leader), _dump(record))

    def remove(self, record: Record) -> None:
        """Remove a record.

        Raises:
            UnwritableFile: it is still there.
        """
        self._records.remove(str(record.leader))

    def remove_broken(self, address: PciAddress) -> bool:
        """Remove a record that can't be read, unless a newer version wrote it; returns whether it was removed.

        Raises:
            UnwritableFile: it is still there.
        """
        broken = self._read().broken.get(str(address))
        if broken is None or broken.newer:
            return False
        self._records.remove(str(address))
        return True

    def remove_void(self) -> None:
        """Remove the records of other boots.

        Raises:
            UnwritableFile: one is still there.
        """
        self._records.remove_void()
        for name, (boot, _) in self._read().whole.items():
            if boot != self._boot:
                self._records.remove(name)

    def _read(self) -> Records[tuple[str, Record]]:
        try:
            return self._records.read()
        except OSError as problem:
            raise _bad(BrokenRecord(self._folder, problem.strerror or str(problem))) from problem

    @contextmanager
    def locked(self, addresses: Iterable[PciAddress], seconds: float = LOCK_SECONDS) -> Iterator[tuple[int, ...]]:
        """Lock these functions; yields the file descriptors that hold the locks.

        A process that inherits them holds the locks too, until it has ended.

        Raises:
            STEP_HANGS: another process holds one of the locks for longer than ``seconds``.
            UnwritableFile: a lock file can't be created.
        """
        self._make()
        deadline = monotonic() + seconds
        locks: list[FileLock] = []
        with ExitStack() as opened:
            for address in sorted(set(addresses)):  # everybody locks in this order, so there is no deadlock
                path = os.path.join(self._folder, f"{address}.lock")
                try:
                    locks.append(opened.enter_context(closing(FileLock(path))))
                except OSError as problem:
                    raise _unwritable(path, problem) from problem
                if not locks[-1].lock(deadline - monotonic()):
                    raise STEP_HANGS(
                        f"{address} is being bound or given back by another process",
                        "Wait for it. A step of one that was killed may hang in the kernel: `launcherkit-plugin "
                        f"status {address}` shows what was going on, and the kernel's log says more.",
                        device=str(address),
                        file=path,
                    )
            yield tuple(lock.file for lock in locks)

    def _make(self) -> None:
        try:
            make_folders(self._folder, 0o700)
            status = os.stat(self._folder)
        except OSError as problem:
            raise _unwritable(self._folder, problem) from problem
        if status.st_mode & 0o022 or status.st_uid not in (0, os.geteuid()):
            raise BAD_RECORD(
                f"{self._folder} can be written to by others, who could have any device bound to any driver",
                f"chown root {self._folder}; chmod 700 {self._folder}; or name another folder with --ledger.",
                file=self._folder,
            )


def is_address(name: str) -> bool:
    """Whether it is the address of a function as it is written here."""
    try:
        return str(PciAddress.parse(name)) == name
    except ValueError:
        return False


def _dump(record: Record) -> dict[str, Any]:
    entries = [
        {**entry._asdict(), "address": str(entry.address), "power": list(entry.power)} for entry in record.entries
    ]
    return {
        "leader": str(record.leader),
        "driver": record.driver,
        "by": record.by,
        "asked": [str(address) for address in record.asked],
        "entries": entries,
    }


def _load(name: str, stored: Stored) -> tuple[str, Record]:
    """The boot and the record.

    Raises:
        ValueError: it isn't a valid record.
    """
    record = Fields(stored.content, "", FirstProblem())
    entries = tuple(map(_entry, record.objects("entries")))
    if not entries:
        raise ValueError("it has no entries")
    driver = _member(record, "driver", _driver, _A_DRIVER)
    if driver is None:
        raise ValueError("it has no driver")
    asked = _addresses(record, "asked")
    leader = _member(record, "leader", _address, _AN_ADDRESS)
    if str(leader) != name:
        raise ValueError(f"leader: it is the record of {leader}")
    by = choice(record, "by", get_args(By))
    return stored.boot, Record(leader, driver, by, asked, entries)


def _entry(entry: Fields) -> Entry:
    return Entry(
        _member(entry, "address", _address, _AN_ADDRESS),
        _member(entry, "driver", _driver, _A_DRIVER),
        _member(entry, "override", _driver, _A_DRIVER),
        choice(entry, "state", get_args(State)),
        entry.needed("power", _power, "a list of two settings") if "power" in entry else Power(None, None),  # older
        _member(entry, "variant", _driver, _A_DRIVER) if "variant" in entry else None,
    )


_AN_ADDRESS, _A_DRIVER = "an address", "the name of a driver"


def _member(fields: Fields, key: str, parse: Callable[[object], T], expected: str) -> T:
    """The parsed value of a key that is always written, if only with null."""
    if key not in fields:
        raise ValueError(f"{fields.path or 'it'} has no {key}")
    return fields.needed(key, parse, expected)


def _addresses(fields: Fields, key: str) -> tuple[PciAddress, ...]:
    if key not in fields:
        raise ValueError(f"it has no {key}")
    return fields.many(key, _address, _AN_ADDRESS)


def choice(fields: Fields, key: str, choices: Sequence[Any]) -> Any:
    """The value of a key that is always written, and is one of these."""
    return _member(fields, key, partial(_one_of, choices=choices), f"one of {', '.join(choices)}")


def _one_of(value: object, choices: Sequence[Any]) -> Any:
    if value not in choices:
        raise ValueError
    return value


def _address(value: object) -> PciAddress:
    return PciAddress.parse(text(value))


def _driver(value: object) -> str | None:
    """The name of a driver, or None. It must be a single path component: it is used as one."""
    if value is not None and (not isinstance(value, str) or value in ("", ".", "..") or set("/\0\n") & set(value)):
        raise ValueError
    return value


def _power(value: object) -> Power:
    if not isinstance(value, list) or len(value) != 2:
        raise ValueError
    return Power(_one_of(value[0], ("0", "1", None)), _one_of(value[1], ("auto", "on", None)))


def _bad(record: BrokenRecord) -> BadRecord:
    return BAD_RECORD(
        f"{record.path} is not a valid record of what was bound: {record.why}",
        "Install the newer version of the plugin again, or give the group back by hand and remove the file."
        if record.newer
        else "See with `lspci -k` which driver each device of the group is bound to, bind them by hand, and remove the "
        "file. Other groups are not affected.",
        file=record.path,
    )


def _unwritable(path: str, problem: OSError) -> UnwritableFile:
    return UNWRITABLE_FILE(
        f"{path}: {problem.strerror or problem}", "Binding needs root; or name another folder with --ledger.", file=path
    )
