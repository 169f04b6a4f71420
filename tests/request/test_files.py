"""Files that people name: regular ones, and never a wait for what isn't one."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from launcherkit import Host
from launcherkit.cli.main import PROGRAM
from launcherkit.errors import BAD_CLAIM, UNREADABLE_FILE, LauncherkitError
from launcherkit.host.source import open_host
from launcherkit.model.request import DraClaim, Request
from launcherkit.process.program import run_program
from launcherkit.request.dra import DraFiles
from launcherkit.request.envfile import read_env_file
from launcherkit.request.fields import read_file
from launcherkit.request.policy import read_policy_file
from launcherkit.request.template import find_template
from tests.support.errors import raises_code


def make_fifo(path: Path) -> str:
    os.mkfifo(path)
    return "a FIFO or pipe"


def make_socket(path: Path) -> str:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
    return "No such device or address"  # a socket can't even be opened


def link_to_device(path: Path) -> str:
    path.symlink_to("/dev/null")
    return "a device"


def make_directory(path: Path) -> str:
    path.mkdir()
    return "Is a directory"


KINDS = [make_fifo, make_socket, link_to_device, make_directory]
every_kind = pytest.mark.parametrize("make", KINDS, ids=lambda make: make.__name__)
READERS: list[Callable[[str], object]] = [read_file, read_env_file, read_policy_file, Host.from_snapshot]
READERS += [Host.from_umockdev, find_template]


@every_kind
@pytest.mark.parametrize("read", READERS, ids=lambda read: read.__name__)
def test_what_is_no_regular_file_is_an_error_that_says_what_it_is(
    tmp_path: Path, make: Callable[[Path], str], read: Callable[[str], object]
) -> None:
    path = tmp_path / "x"
    reported = make(path)
    before = {*os.listdir("/proc/self/fd")}
    with raises_code(UNREADABLE_FILE, match=reported) as raised:
        read(str(path))
    assert raised.value.message.startswith(str(path))
    assert {*os.listdir("/proc/self/fd")} <= before  # others may be closed meanwhile, with what had them open


@every_kind
@pytest.mark.parametrize("flag", ["--domain", "--vmi", "--env-file", "--policy", "--host"])
def test_so_it_is_with_every_input_of_a_command(tmp_path: Path, make: Callable[[Path], str], flag: str) -> None:
    (tmp_path / "domain.xml").write_text("<domain><devices/></domain>")
    path = tmp_path / "x"
    reported = make(path)
    inputs = {"--domain": str(tmp_path / "domain.xml"), flag: str(path)}
    arguments = [part for item in inputs.items() for part in item]
    with pytest.raises(LauncherkitError) as raised:
        run_program(
            PROGRAM, ["translate", *arguments], {"PCI_RESOURCE_X": "0000:e1:00.0", "LAUNCHERKIT_HOST": str(tmp_path)}
        )
    assert str(path) in raised.value.message
    assert reported in raised.value.message or (flag == "--host" and raised.value.code == "LK501")


@pytest.mark.parametrize("make", [make_fifo, link_to_device], ids=lambda make: make.__name__)
def test_so_it_is_with_metadata_of_claims(tmp_path: Path, make: Callable[[Path], str]) -> None:
    (tmp_path / "resourceclaims/c/r").mkdir(parents=True)
    reported = make(tmp_path / "resourceclaims/c/r/x-metadata.json")
    with raises_code(BAD_CLAIM, match=reported):
        DraFiles(str(tmp_path)).read(Request("gpus", 0, "gpu1", None, None, DraClaim("claim", "c", "r")))


def test_a_host_that_is_a_fifo_is_named(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "host.json")
    with raises_code(UNREADABLE_FILE, match="a FIFO or pipe"):
        open_host(str(tmp_path / "host.json")).facts([])


def test_standard_input_may_be_a_pipe() -> None:
    code = "import sys; from launcherkit.request.fields import read_file; sys.stdout.buffer.write(read_file('-'))"
    done = subprocess.run([sys.executable, "-c", code], input=b"<domain/>", capture_output=True, check=True)
    assert done.stdout == b"<domain/>"


def test_what_proc_makes_up_is_a_file() -> None:
    assert b"\0" in read_file("/proc/self/cmdline")
