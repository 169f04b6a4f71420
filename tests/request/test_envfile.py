"""An environment out of a file."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import pytest

from launcherkit.errors import BAD_ENV_FILE, UNREADABLE_FILE, SeveralErrors
from launcherkit.request.envfile import EnvFile, read_env_file
from tests.support.errors import raises_code


def read_file(tmp_path: Path, content: str | bytes, *prefixes: str) -> EnvFile:
    path = tmp_path / "env"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return read_env_file(str(path), prefixes)


def read(tmp_path: Path, content: str | bytes) -> Mapping[str, str]:
    """Of a file about which there is nothing to say."""
    found = read_file(tmp_path, content)
    assert found.notes == ()
    return found.variables


def test_lines_are_names_and_values_and_names_may_hold_dashes(tmp_path: Path) -> None:
    content = "# allocated on node 1\n\nPCI_RESOURCE_A-B=0000:e1:00.0,\n  B = x y \nEMPTY=\nQ=a=b"
    assert read(tmp_path, content) == {"PCI_RESOURCE_A-B": "0000:e1:00.0,", "B": " x y ", "EMPTY": "", "Q": "a=b"}


def test_assignments_may_be_those_of_a_shell(tmp_path: Path) -> None:
    content = "export A='0000:e1:00.0'\n  export\tB=\"x y\"\nexport=1\nC='it's'\nD='\nE=\"\nF=''\nG='x\"\nH= 'x' \n"
    assert read(tmp_path, content) == {
        "A": "0000:e1:00.0",
        "B": "x y",
        "export": "1",
        "C": "it's",
        "D": "'",
        "E": '"',
        "F": "",
        "G": "'x\"",
        "H": "x",
    }


def test_values_of_several_lines_that_are_not_of_devices_are_passed_over_with_a_note(tmp_path: Path) -> None:
    """What ``env`` prints, and ``export -p`` too."""
    content = (
        "BASH_FUNC_which%%=() {  ( alias;\n"
        ' eval ${which_declare} ) | /usr/bin/which --tty-only "$@"\n'
        "}\n"
        "PCI_RESOURCE_A=0000:e1:00.0\n"
        "CERT=-----BEGIN CERTIFICATE-----\n"
        "\n"
        "MIIB+/x\n"
        "A=1\n"
        "A=2\n"
    )
    found = read_file(tmp_path, content)
    assert found.variables["PCI_RESOURCE_A"] == "0000:e1:00.0"
    assert [(note.topic, note.text) for note in found.notes] == [
        (
            "env-file",
            "--env-file: 3 lines, from 2 to 7, are not NAME=VALUE; taken for parts of longer values, and passed over",
        )
    ]


def test_no_line_of_a_private_key_is_shown(tmp_path: Path) -> None:
    """T1: a line of one may look like an assignment, and the next like a part of its value."""
    found = read_file(tmp_path, "KEY=-----BEGIN PRIVATE KEY-----\nMIIEvQ==\n-----END PRIVATE KEY-----\n")
    (note,) = found.notes
    assert "line 3 is not NAME=VALUE" in note.text
    assert "MIIEvQ" not in note.text
    with raises_code(BAD_ENV_FILE) as raised:
        read_file(tmp_path, "PCI_RESOURCE_A=0000:e1:00.0\nMIIEvQ")
    assert "MIIEvQ" not in raised.value.message


@pytest.mark.parametrize(
    ("content", "line"),
    [
        ("PCI_RESOURCE_A=0000:e1:00.0,\n0000:e2:00.0", "line 2: not NAME=VALUE"),
        ("HOME=/root\nMDEV_PCI_RESOURCE_A: x", "line 2: not NAME=VALUE"),
        ("HOME=/root\nexport USB_RESOURCE_A", "line 2: not NAME=VALUE"),
        ("PCIDEVICE_A=0000:e1:00.0\n{", "line 2: not NAME=VALUE"),
        ("PCIDEVICE_A=\nPCIDEVICE_A=", "line 2: PCIDEVICE_A is already set on line 1"),
        ("nonsense\nA=1", "line 1: not NAME=VALUE"),
    ],
)
def test_a_line_near_a_variable_of_devices_must_be_an_assignment(tmp_path: Path, content: str, line: str) -> None:
    with raises_code(BAD_ENV_FILE, match=re.escape(line)):
        read_file(tmp_path, content, "PCIDEVICE")


def test_windows_line_ends_are_no_part_of_values(tmp_path: Path) -> None:
    assert read(tmp_path, "A=1\r\nB=2\r\n") == {"A": "1", "B": "2"}


def test_what_proc_environ_holds_is_read_with_its_line_breaks(tmp_path: Path) -> None:
    assert read(tmp_path, "A=1\n2\0#B=3\0") == {"A": "1\n2", "#B": "3"}


def test_an_empty_file_is_an_empty_environment(tmp_path: Path) -> None:
    assert read(tmp_path, "") == {}


def test_bytes_that_are_no_text_do_no_harm(tmp_path: Path) -> None:
    assert read(tmp_path, b"A=\xff\xfe\nB=1") == {"A": "\udcff\udcfe", "B": "1"}


def test_all_that_is_wrong_is_reported_with_its_line(tmp_path: Path) -> None:
    with pytest.raises(SeveralErrors) as raised:
        read(tmp_path, "PCI_RESOURCE_A=1\nnonsense\n=x\nPCI_RESOURCE_A=2")
    lines = [leaf.message.rpartition("/env, ")[2].partition(":")[0] for leaf in raised.value.leaves()]
    assert lines == ["line 2", "line 3", "line 4"]
    assert all(leaf.code == BAD_ENV_FILE.code for leaf in raised.value.leaves())


@pytest.mark.parametrize("path", ["/no/such/file", "/", "a\0b", ""])
def test_a_file_that_is_not_there_is_named(path: str) -> None:
    with raises_code(UNREADABLE_FILE):
        read_env_file(path)
