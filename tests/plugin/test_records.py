"""The folder of records when several write to it at once (T5)."""

from __future__ import annotations

import errno
import fcntl
import os
import threading
from pathlib import Path

import pytest

from launcherkit.atomic import Disk
from launcherkit_plugin.records import RecordFolder, Stored


class PausingDisk(Disk):
    """Waits before it removes a file."""

    def __init__(self) -> None:
        self.comes, self.goes_on = threading.Event(), threading.Event()

    def remove(self, path: str) -> None:
        self.comes.set()
        self.goes_on.wait()
        super().remove(path)


def _folder(path: Path, disk: Disk) -> RecordFolder[object]:
    return RecordFolder(str(path), "boot-2", _content, str.isalnum, disk)


def test_a_record_that_is_written_anew_after_a_boot_is_not_taken_for_the_broken_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two claims, in threads or processes of their own; both find that the record of the first is void."""
    RecordFolder(str(tmp_path), "boot-1", _content, str.isalnum, Disk()).write("x", 1)
    (tmp_path / "x.json").write_bytes(b"")
    waits = threading.Event()
    flock = fcntl.flock

    def lock(handle: int, how: int) -> None:
        if slow.comes.is_set():
            waits.set()
        flock(handle, how)

    monkeypatch.setattr("fcntl.flock", lock)
    slow = PausingDisk()
    second = threading.Thread(target=_folder(tmp_path, slow).write, args=("y", 2))
    second.start()
    slow.comes.wait()

    def write() -> None:
        _folder(tmp_path, Disk()).write("x", 1)
        waits.set()

    first = threading.Thread(target=write)
    first.start()
    waits.wait()
    slow.goes_on.set()
    first.join()
    second.join()
    assert _folder(tmp_path, Disk()).read().whole == {"x": 1, "y": 2}


def test_what_is_no_record_in_the_folder_is_left_alone(tmp_path: Path) -> None:
    """What an editor or a write that was cut short has left behind."""
    folder = _folder(tmp_path, Disk())
    folder.write("x", 1)
    for name in ("README", ".x.json", "y.json~", ".z"):
        (tmp_path / name).write_text("no record")
    found = folder.read()
    assert (found.whole, found.broken, found.foreign) == ({"x": 1}, {}, ())


def test_records_are_for_their_owner_alone(tmp_path: Path) -> None:
    _folder(tmp_path, Disk()).write("x", 1)
    assert (tmp_path / "x.json").stat().st_mode & 0o777 == 0o600


def test_one_that_can_not_be_read_is_broken_and_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = _folder(tmp_path, Disk())
    folder.write("x", 1)

    def fails(path: str) -> Stored:
        raise OSError(errno.EIO, os.strerror(errno.EIO), path)

    monkeypatch.setattr("launcherkit_plugin.records.read_record", fails)
    found = _folder(tmp_path, Disk()).read()
    assert found.whole == {}
    assert {name: broken.why for name, broken in found.broken.items()} == {"x": "Input/output error"}


def test_one_that_is_removed_while_the_folder_is_read_keeps_no_other_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = _folder(tmp_path, Disk())
    folder.write("x", 1)
    monkeypatch.setattr("launcherkit_plugin.records.os.listdir", lambda _: ["a.json", "x.json"])
    assert folder.read().whole == {"x": 1}


def _content(_: str, stored: Stored) -> object:
    return stored.content
