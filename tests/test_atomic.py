"""Files are written whole or not at all."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from launcherkit.atomic import Disk, write_all_atomically, write_atomically
from launcherkit.errors import UNWRITABLE_FILE
from tests.support.errors import raises_code


def test_a_file_is_replaced_and_nothing_stays_beside_it(tmp_path: Path) -> None:
    file = tmp_path / "out"
    file.write_text("old")
    write_atomically(str(file), b"new")
    assert file.read_bytes() == b"new"
    assert file.stat().st_mode & 0o777 == 0o644
    assert os.listdir(tmp_path) == ["out"]


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("real")
    write_atomically(str(tmp_path / "link"), b"x")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_bytes() == b"x"


def test_a_relative_path_is_of_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_atomically("out", b"x", mode=0o600)
    assert (tmp_path / "out").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("name", ["no/such/dir", ".", "", "a\0b", "x" * 300])
def test_what_can_not_be_written_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.chdir(tmp_path)
    with raises_code(UNWRITABLE_FILE):
        write_atomically(name, b"x")
    assert os.listdir(tmp_path) == []


def test_a_device_is_written_to_as_it_is() -> None:
    write_atomically("/dev/null", b"x")
    assert not os.path.isfile("/dev/null")


def test_of_several_files_none_is_replaced_if_one_can_not_be_written(tmp_path: Path) -> None:
    for broken in ("no/such/dir/b", "x" * 300, "/dev/full"):
        with raises_code(UNWRITABLE_FILE, match=broken.rpartition("/")[2]):
            write_all_atomically({str(tmp_path / "a"): b"1", os.path.join(tmp_path, broken): b"2"})
        assert os.listdir(tmp_path) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_a_device_in_a_folder_of_somebody_else_is_written_to() -> None:
    child = os.fork()
    if child == 0:
        os.setuid(65534)
        try:
            write_all_atomically({"/dev/null": b"x"})
        except BaseException:
            os._exit(1)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0


def test_a_file_that_an_earlier_call_removed_and_could_not_sync_is_removed_for_good(tmp_path: Path) -> None:
    """That call failed, so its caller tries again."""
    synced: list[str] = []

    class FailingOs:
        """Fails at the first sync."""

        def __getattr__(self, name: str) -> object:
            return getattr(os, name)

        def fsync(self, file: int) -> None:
            synced.append(os.readlink(f"/proc/self/fd/{file}"))
            if len(synced) == 1:
                raise OSError(errno.EIO, os.strerror(errno.EIO))

    path = tmp_path / "a"
    path.write_bytes(b"")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("launcherkit.atomic.os", FailingOs())
        with raises_code(UNWRITABLE_FILE):
            Disk().remove(str(path))
        assert not path.exists()
        Disk().remove(str(path))
    assert synced == [str(tmp_path)] * 2


def test_folders_that_are_made_for_a_file_can_be_entered_by_all_and_written_by_their_owner(tmp_path: Path) -> None:
    Disk().replace(str(tmp_path / "new" / "file"), b"x")
    assert (tmp_path / "new").stat().st_mode & 0o777 == 0o755
    assert (tmp_path / "new" / "file").stat().st_mode & 0o777 == 0o644
