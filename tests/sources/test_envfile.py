"""An environment out of a file."""

from __future__ import annotations

from pathlib import Path

import pytest

from launcherkit.errors import BadEnvFile, SeveralErrors, UnreadableFile
from launcherkit.sources.envfile import read_env_file


def read(tmp_path: Path, content: str | bytes) -> dict[str, str]:
    path = tmp_path / "env"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return read_env_file(str(path))


def test_lines_are_names_and_values_and_names_may_hold_dashes(tmp_path: Path) -> None:
    content = "# allocated on node 1\n\nPCI_RESOURCE_A-B=0000:e1:00.0,\n  B = x y \nEMPTY=\nQ='a=b'"
    assert read(tmp_path, content) == {"PCI_RESOURCE_A-B": "0000:e1:00.0,", "B": " x y ", "EMPTY": "", "Q": "'a=b'"}


def test_windows_line_ends_are_no_part_of_values(tmp_path: Path) -> None:
    assert read(tmp_path, "A=1\r\nB=2\r\n") == {"A": "1", "B": "2"}


def test_what_proc_environ_holds_is_read_with_its_line_breaks(tmp_path: Path) -> None:
    assert read(tmp_path, "A=1\n2\0#B=3\0") == {"A": "1\n2", "#B": "3"}


def test_an_empty_file_is_an_empty_environment(tmp_path: Path) -> None:
    assert read(tmp_path, "") == {}


def test_bytes_that_are_no_text_do_no_harm(tmp_path: Path) -> None:
    assert read(tmp_path, b"A=\xff\xfe\nB=1") == {"A": "\udcff\udcfe", "B": "1"}


def test_all_that_is_wrong_is_told_with_its_line(tmp_path: Path) -> None:
    with pytest.raises(SeveralErrors) as raised:
        read(tmp_path, "A=1\nnonsense\n=x\nA=2")
    lines = [leaf.message.rpartition("/env, ")[2].partition(":")[0] for leaf in raised.value.leaves()]
    assert lines == ["line 2", "line 3", "line 4"]
    assert all(isinstance(leaf, BadEnvFile) for leaf in raised.value.leaves())


@pytest.mark.parametrize("path", ["/no/such/file", "/", "a\0b", ""])
def test_a_file_that_is_not_there_is_named(path: str) -> None:
    with pytest.raises(UnreadableFile):
        read_env_file(path)
