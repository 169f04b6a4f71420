"""Records: the files from which the next process learns what this one has done (T5).

A record has the version of its format, the boot in which it was written, and a checksum. It is replaced as a whole and
synced, so a killed process or a power cut breaks none. One that is broken all the same concerns only its own subject,
which its name tells; once the machine has booted again it is void.
"""

from __future__ import annotations

import errno
import json
import os
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from typing import Any, Generic, NamedTuple, TypeVar
from zlib import crc32

from launcherkit.atomic import Disk
from launcherkit.errors import UNREADABLE_FILE, UnwritableFile
from launcherkit.request.fields import Fields, FirstProblem, strict_json, string
from launcherkit_plugin.file_lock import FileLock

T = TypeVar("T")

VERSION = 2
"""Records of version 1 had their content beside version and boot, and no checksum. They are still read."""
SUFFIX = ".json"
_MARK = "boot"
"""The record in a folder of the boot in which the folder was last written to."""
_MAX_BYTES = 1 << 20
_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NOCTTY | os.O_NOFOLLOW | os.O_NONBLOCK
"""Opening a FIFO must not wait, and a link leads to what nobody recorded."""


class Stored(NamedTuple):
    """A record as it was written."""

    boot: str
    """The ID of the boot in which it was written; empty if that was unknown."""
    content: Any


class BrokenRecord(NamedTuple):
    """A record that can't be read."""

    path: str
    why: str
    newer: bool = False
    """It seems to be whole, and written by a newer version of this program."""


class NewerRecord(ValueError):
    """A record is of a newer version. Its boot is known."""

    def __init__(self, version: int, boot: str) -> None:
        super().__init__(f"its version is {version}, and this program knows {VERSION}")
        self.boot = boot


def write_record(disk: Disk, path: str, stored: Stored, mode: int = 0o600) -> None:
    """Write a record, and create its folder.

    Raises:
        UnwritableFile: it can't be written; the previous one is unchanged.
    """
    disk.replace(*_file(path, stored, mode))


def read_record(path: str) -> Stored:
    """Read a record.

    Raises:
        FileNotFoundError: there is none.
        OSError: it can't be read.
        ValueError: it isn't a record, or not as it was written.
    """
    return _stored(strict_json(read_regular(path)))


def read_regular(path: str) -> bytes:
    """The content of a file of our own: a regular one, which only we may write, of a size that we write.

    Raises:
        OSError: it can't be read.
        ValueError: it isn't such a file.
    """
    try:
        file = os.open(path, _FLAGS)
    except OSError as problem:
        if problem.errno == errno.ELOOP:
            raise ValueError("it is a link") from None
        raise
    try:
        status = os.fstat(file)
        if not stat.S_ISREG(status.st_mode):
            raise ValueError("it is no regular file")
        if status.st_uid not in (0, os.geteuid()):
            raise ValueError(f"its owner is the user {status.st_uid}")
        if status.st_mode & 0o022:
            raise ValueError(f"others may write to it: its mode is {status.st_mode & 0o777:o}")
        with open(file, "rb", closefd=False) as reader:
            data = reader.read(_MAX_BYTES + 1)
    finally:
        os.close(file)
    if not data:
        raise ValueError("it is empty")
    if len(data) > _MAX_BYTES:
        raise ValueError(f"it has more than {_MAX_BYTES} bytes")
    return data


def identity(path: str) -> tuple[int, ...] | None:
    """What differs if a file was written to or replaced meanwhile; None if it doesn't exist or can't be looked at."""
    try:
        status = os.lstat(path)
    except OSError:
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def _file(path: str, stored: Stored, mode: int) -> tuple[str, bytes, int, int]:
    whole = {"version": VERSION, "crc32": _checksum(VERSION, stored), **stored._asdict()}
    return path, (json.dumps(whole) + "\n").encode(), mode, 0o700 if mode == 0o600 else 0o755


def _stored(document: Any) -> Stored:
    record = Fields(document, "", FirstProblem())
    version = record.optional("version", _version, "the number of a version") or 1
    if version > VERSION:
        boot = record.pop("boot")
        raise NewerRecord(version, boot if isinstance(boot, str) else "")
    boot = record.needed("boot", string, "the ID of a boot")
    if version == 1:
        return Stored(boot, document)
    stored = Stored(boot, record.pop("content"))
    if record.pop("crc32") != _checksum(version, stored):
        raise ValueError("its checksum is another")
    return stored


def _version(value: object) -> int:
    if type(value) is not int or value < 1:
        raise ValueError
    return value


def _checksum(version: int, stored: Stored) -> str:
    return f"{crc32(json.dumps([version, *stored], sort_keys=True).encode()):08x}"


class Records(NamedTuple, Generic[T]):
    """What is in a folder, by the names of the records."""

    whole: Mapping[str, T]
    broken: Mapping[str, BrokenRecord]
    """What they recorded is unknown (T2)."""
    void: Mapping[str, BrokenRecord] = {}
    """Broken ones of an earlier boot: whatever they recorded has ended with it."""
    foreign: tuple[str, ...] = ()
    """The paths of files whose names are no names of records."""


class RecordFolder(Generic[T]):
    """The records in a folder. Other processes may write there, too.

    Args:
        folder: created when the first record is written.
        boot: the ID of this boot; empty if unknown.
        parse: returns the value of a record, given its name; raises ValueError if it isn't a valid one.
        is_name: whether a name is one of a record.
        disk: writes and removes the files.
        mode: of the files.
    """

    def __init__(
        self,
        folder: str,
        boot: str,
        parse: Callable[[str, Stored], T],
        is_name: Callable[[str], bool],
        disk: Disk,
        mode: int = 0o600,
    ) -> None:
        self.folder = folder
        self._boot = boot
        self._parse = parse
        self._is_name = is_name
        self._disk = disk
        self._mode = mode
        self._marked = False
        self._seen: dict[str, tuple[tuple[int, ...] | None, T | BrokenRecord | NewerRecord]] = {}

    def path(self, name: str) -> str:
        """The path of a record."""
        return f"{self.folder}/{name}{SUFFIX}"

    def read(self) -> Records[T]:
        """All records. Only files that have changed are read.

        Raises:
            OSError: the folder exists, and can't be listed.
        """
        seen: dict[str, tuple[tuple[int, ...] | None, T | BrokenRecord | NewerRecord]] = {}
        foreign: list[str] = []
        for name in self._names():
            if not self._is_name(name):
                foreign.append(self.path(name))
                continue
            try:
                now, before = identity(self.path(name)), self._seen.get(name)
                seen[name] = before if before and before[0] == now is not None else (now, self._read(name))
            except FileNotFoundError:
                continue  # it has just been removed
        self._seen = seen
        whole: dict[str, T] = {}
        broken: dict[str, BrokenRecord] = {}
        void: dict[str, BrokenRecord] = {}
        for name, (_, content) in seen.items():
            if isinstance(content, NewerRecord):
                ended = content.boot and self._boot and content.boot != self._boot
                (void if ended else broken)[name] = BrokenRecord(self.path(name), str(content), newer=True)
            elif isinstance(content, BrokenRecord):
                (void if self._is_new_boot() else broken)[name] = content
            else:
                whole[name] = content
        return Records(whole, broken, void, tuple(foreign))

    def load(self) -> Records[T]:
        """As `read`, with an error for people.

        Raises:
            UnreadableFile: the folder can't be read.
        """
        try:
            return self.read()
        except OSError as problem:
            raise UNREADABLE_FILE(
                f"{self.folder}: {problem.strerror}", "Run it as root.", file=self.folder
            ) from problem

    def write(self, name: str, content: Any) -> None:
        """Write a record.

        Raises:
            UnwritableFile: it can't be written; the previous one is unchanged.
        """
        self._mark_boot()
        write_record(self._disk, self.path(name), Stored(self._boot, content), self._mode)

    @contextmanager
    def prepared(self, name: str, content: Any) -> Iterator[tuple[str, str]]:
        """A record for another process to rename: its path, and the one that it gets; after an error it is removed.

        Raises:
            UnwritableFile: it can't be written.
        """
        self._mark_boot()
        beside = self._disk.prepare(*_file(self.path(name), Stored(self._boot, content), self._mode))
        try:
            yield beside, self.path(name)
        except BaseException:
            with suppress(OSError):
                os.unlink(beside)
            raise

    def remove(self, name: str) -> None:
        """Remove a record, if there is one.

        Raises:
            UnwritableFile: it is still there.
        """
        self._disk.remove(self.path(name))

    def remove_void(self) -> None:
        """Remove the broken records of earlier boots."""
        for name in self.read().void:
            with suppress(UnwritableFile):  # such as a folder with files in it; it concerns nobody else
                self.remove(name)

    def _names(self) -> list[str]:
        try:
            names = sorted(os.listdir(self.folder))
        except (FileNotFoundError, NotADirectoryError):
            return []  # nothing was ever recorded
        return [name.removesuffix(SUFFIX) for name in names if name.endswith(SUFFIX) and name[0] != "."]

    def _read(self, name: str) -> T | BrokenRecord | NewerRecord:
        path = self.path(name)
        try:
            return self._parse(name, read_record(path))
        except FileNotFoundError:
            raise
        except NewerRecord as newer:
            return newer
        except OSError as problem:
            return BrokenRecord(path, problem.strerror or str(problem))
        except ValueError as problem:
            return BrokenRecord(path, str(problem))

    def _is_new_boot(self) -> bool:
        """Whether nothing was written here since the machine booted. What is broken then is of an earlier boot."""
        if self._marked or not self._boot:
            return False
        try:
            return read_record(f"{self.folder}/{_MARK}").boot != self._boot
        except (OSError, ValueError):
            return False  # of an earlier version, or of another program's making

    def _mark_boot(self) -> None:
        """Before the first record of a boot is written, remove what is void: it can't be told apart afterwards."""
        if self._marked or not self._boot:
            return
        with _alone_in(self.folder):  # or what another thread or process has just written could be taken for void
            if not self._marked:
                self.remove_void()
                write_record(self._disk, f"{self.folder}/{_MARK}", Stored(self._boot, None), self._mode)
                self._marked = True


@contextmanager
def _alone_in(folder: str) -> Iterator[None]:
    """Let other threads and processes that do the same wait."""
    try:
        lock = FileLock(folder, folder=True)
    except OSError:
        yield  # it isn't there yet, with nothing in it; or the write says what is wrong with it
        return
    with closing(lock):
        lock.lock()
        yield
