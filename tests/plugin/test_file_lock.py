"""The lock of a file, between open files as between processes."""

from __future__ import annotations

import os
from contextlib import closing
from pathlib import Path

import pytest

from launcherkit_plugin.file_lock import FileLock


def test_one_at_a_time_has_it(tmp_path: Path) -> None:
    path = str(tmp_path / "lock")
    with closing(FileLock(path)) as one, closing(FileLock(path)) as other:
        assert one.try_lock()
        assert not other.try_lock()
        assert not other.lock(seconds=0)
        one.unlock()
        assert other.lock(seconds=0)


def test_closing_releases_it(tmp_path: Path) -> None:
    path = str(tmp_path / "lock")
    one = FileLock(path)
    assert one.try_lock()
    one.close()
    with closing(FileLock(path)) as other:
        assert other.try_lock()


def test_who_inherits_the_descriptor_has_it_too(tmp_path: Path) -> None:
    path = str(tmp_path / "lock")
    one = FileLock(path)
    assert one.lock()
    inherited = os.dup(one.file)
    one.close()
    with closing(FileLock(path)) as other:
        assert not other.try_lock()
        os.close(inherited)
        assert other.try_lock()


def test_a_folder_can_be_locked_and_must_exist(tmp_path: Path) -> None:
    with closing(FileLock(str(tmp_path), folder=True)) as one:
        assert one.lock()
    with pytest.raises(FileNotFoundError):
        FileLock(str(tmp_path / "none"), folder=True)


def test_a_symbolic_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "lock").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="symbolic links"):
        FileLock(str(tmp_path / "lock"))
    assert not (tmp_path / "elsewhere").exists()
