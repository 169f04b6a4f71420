"""Files are written whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from launcherkit.atomic import write_atomically
from launcherkit.errors import UnwritableFile


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
    with pytest.raises(UnwritableFile):
        write_atomically(name, b"x")
    assert os.listdir(tmp_path) == []


def test_a_device_is_written_to_as_it_is() -> None:
    write_atomically("/dev/null", b"x")
    assert not os.path.isfile("/dev/null")
