"""What a disk may have after a power cut: a model of what POSIX promises, fed with the calls that a program made.

Data of a file is on the disk once the file was synced; before that any part of it may be, from the beginning on. What
was done to the names of a folder is on the disk once the folder was synced; before that each change may be or not,
whatever became of earlier ones. Real file systems lose less: what survives here survives there.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from itertools import combinations, product
from pathlib import Path
from typing import Any, NamedTuple

import pytest

State = dict[str, bytes | None]
"""The content of each file by its path, None for a folder."""


class Change(NamedTuple):
    """One call that changes something: write, sync, rename, unlink, mkdir, rmdir; or the creation of a file.

    ``elsewhere`` is a change of something that no power cut keeps: it has its place among the others, and no more.
    """

    what: str
    path: str
    to: str = ""
    data: bytes = b""


class RecordingOs:
    """Stands for the module ``os``: does what it is told and remembers it.

    Args:
        root: only what is below is remembered.
    """

    def __init__(self, root: Path) -> None:
        self._root = f"{root}/"
        self.changes: list[Change] = []
        self.before = snapshot(root)

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def _note(self, what: str, path: str, to: str = "", data: bytes = b"") -> None:
        path = os.path.join(os.path.realpath(os.path.dirname(path)), os.path.basename(path))
        if f"{path}/".startswith(self._root):
            self.changes.append(Change(what, self._name(path), to and self._name(to), data))

    def _name(self, path: str) -> str:
        return os.path.relpath(path, self._root)

    @staticmethod
    def _path(file: int) -> str:
        return os.readlink(f"/proc/self/fd/{file}")

    def write(self, file: int, data: Any) -> int:
        done = os.write(file, data)
        self._note("write", self._path(file), data=bytes(data[:done]))
        return done

    def fsync(self, file: int) -> None:
        os.fsync(file)
        self._note("sync", self._path(file))

    def rename(self, path: str, to: str) -> None:
        os.rename(path, to)
        self._note("rename", path, to)

    def unlink(self, path: str) -> None:
        os.unlink(path)
        self._note("unlink", path)

    def mkdir(self, path: str, mode: int = 0o777) -> None:
        os.mkdir(path, mode)
        self._note("mkdir", path)

    def rmdir(self, path: str) -> None:
        os.rmdir(path)
        self._note("rmdir", path)


def recording(monkeypatch: pytest.MonkeyPatch, root: Path) -> RecordingOs:
    """From now on what `launcherkit.atomic` does below a folder is recorded."""
    recorder = RecordingOs(root)
    monkeypatch.setattr("launcherkit.atomic.os", recorder)
    return recorder


def snapshot(root: Path) -> State:
    """What is below a folder."""
    return {
        str(path.relative_to(root)): None if path.is_dir() else path.read_bytes() for path in sorted(root.rglob("*"))
    }


def restore(root: Path, state: State) -> None:
    """Let a folder have this and nothing else."""
    for path in root.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()
    for name, data in state.items():
        path = root / name
        if data is None:
            path.mkdir(parents=True, exist_ok=True)
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)


class _Model:
    def __init__(self, before: State) -> None:
        self.files: dict[int, tuple[bytes, bool]] = {}
        """By number: what was written, and whether all of it was synced."""
        self.names: dict[str, int | None] = {}
        """What the program sees: the number of a file, None for a folder."""
        self.kept: dict[str, int | None] = {}
        """The names that are on the disk for sure."""
        self.pending: list[tuple[str, Change, int | None]] = []
        """Changes of names since their folder was synced, each with the folder and what it is about."""
        for name, data in before.items():
            self.names[name] = None if data is None else self._new(data, synced=True)
        self.kept = dict(self.names)

    def _new(self, data: bytes, *, synced: bool) -> int:
        self.files[len(self.files)] = data, synced
        return len(self.files) - 1

    def do(self, change: Change) -> None:
        what, path, to, data = change
        if what == "elsewhere":
            return
        folder = os.path.dirname(path)
        if what in ("write", "sync") and path not in self.names and path != ".":
            self.names[path] = self._new(b"", synced=True)  # created by mkstemp
            self.pending.append((folder, Change("create", path), self.names[path]))
        number = self.names.get(path)
        if what == "write":
            assert number is not None
            self.files[number] = self.files[number][0] + data, False
        elif what == "sync" and number is not None:
            self.files[number] = self.files[number][0], True
        elif what == "sync":
            own = "" if path == "." else path
            for where, pending, about in self.pending:
                if where == own:
                    _apply(self.kept, pending, about)
            self.pending = [each for each in self.pending if each[0] != own]
        else:
            if what == "rename":
                assert os.path.dirname(to) == folder, "only within a folder"
            self.pending.append((folder, change, number))
            _apply(self.names, change, number)

    def seen(self) -> State:
        """What a process sees that starts after this one was killed."""
        return {path: None if number is None else self.files[number][0] for path, number in self.names.items()}

    def states(self) -> Iterator[State]:
        """What may be on the disk if the power fails now."""
        for count in range(len(self.pending) + 1):
            for done in combinations(self.pending, count):
                names = dict(self.kept)
                for _, change, about in done:
                    _apply(names, change, about)
                reachable = {path: number for path, number in names.items() if _has_folders(path, names)}
                choices = [
                    [(path, data)] if synced else [(path, data[:length]) for length in (0, len(data) // 2, len(data))]
                    for path, number in reachable.items()
                    if number is not None
                    for data, synced in (self.files[number],)
                ]
                folders: State = {path: None for path, number in reachable.items() if number is None}
                for files in product(*choices):
                    yield {**folders, **dict(files)}


def _apply(names: dict[str, int | None], change: Change, about: int | None) -> None:
    if change.what in ("create", "mkdir"):
        names[change.path] = about
    elif change.what == "rename":
        names.pop(change.path, None)
        names[change.to] = about
    else:
        names.pop(change.path, None)


def _has_folders(path: str, names: dict[str, int | None]) -> bool:
    folder = os.path.dirname(path)
    return not folder or (folder in names and names[folder] is None and _has_folders(folder, names))


def power_cuts(before: State, changes: Sequence[Change]) -> Iterator[tuple[int, State]]:
    """Every state in which the disk may be after a power cut: how many changes had been made, and the state. Each is
    given once for the greatest number."""
    model = _Model(before)
    found: list[tuple[int, State]] = [(0, state) for state in model.states()]
    for number, change in enumerate(changes, 1):
        model.do(change)
        found += [(number, state) for state in model.states()]
    last = {repr(sorted(state.items())): (number, state) for number, state in found}
    yield from last.values()


def kills(before: State, changes: Sequence[Change]) -> Iterator[tuple[int, State]]:
    """What the next process finds if this one is killed after so many changes."""
    model = _Model(before)
    yield 0, model.seen()
    for number, change in enumerate(changes, 1):
        model.do(change)
        yield number, model.seen()
