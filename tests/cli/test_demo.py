"""``launcherkit demo`` runs the real pipeline on the bundled example, and what it says to try next works."""

from __future__ import annotations

import os
import shlex
import subprocess
from pathlib import Path

import pytest
from lxml import etree

from launcherkit import Host, translate
from launcherkit.request.envfile import read_env_file
from tests.support import forked

ROOT = Path(__file__).parents[2]
DATA = ROOT / "launcherkit" / "demo_data"


def launcherkit(*arguments: str, cwd: Path | None = None, **env: str) -> subprocess.CompletedProcess[bytes]:
    command = [forked.LAUNCHERKIT, *arguments]
    return forked.run(command, env=env, cwd=cwd, capture_output=True, check=False, stdin=subprocess.DEVNULL)


@pytest.fixture(scope="module")
def shown() -> str:
    result = launcherkit("demo")
    assert result.returncode == 0, result.stderr.decode()
    assert result.stderr == b""
    return result.stdout.decode()


def test_it_shows_the_host_the_variable_the_explanation_and_the_diff(shown: str) -> None:
    assert "0000:e1:00.0  vfio-pci, group 44  VGA compatible controller: NVIDIA Corporation GA102" in shown
    assert "0000:41:00.0  igb, group 30" in shown
    assert "0000:e1:00.0,0000:e1:00.1,0000:01:00.0,0000:01:00.1" in shown
    assert "gpus 'gpu2' asks for nvidia.com/GA102_GEFORCE_RTX_3090" in shown
    assert "+      <alias name='ua-gpu-gpu2-fn1'/>" in shown


def test_it_fits_on_a_screen_and_a_half(shown: str) -> None:
    assert len(shown.splitlines()) <= 82
    assert max(map(len, shown.splitlines())) <= 120


def test_what_it_shows_is_what_the_library_gives(shown: str) -> None:
    translation = translate(
        (DATA / "domain.xml").read_bytes(),
        env=read_env_file(str(DATA / "env.txt")).variables,
        host=Host.from_snapshot(DATA / "host.json"),
        vmi=(DATA / "vmi.json").read_bytes(),
    )
    hostdevs = etree.fromstring(translation.domain_xml).findall("devices/hostdev")
    assert len(hostdevs) == 4
    added = [line[1:] for line in shown.splitlines() if line.startswith("+ ")]
    assert added
    assert set(added) <= set(translation.domain_xml.decode().splitlines())


def test_each_gpu_keeps_its_own_audio_in_its_own_guest_slot() -> None:
    """NV#67: with GPU0,AUD0,GPU1,AUD1 the second GPU must not become the first one's audio."""
    translation = translate(
        (DATA / "domain.xml").read_bytes(),
        env=read_env_file(str(DATA / "env.txt")).variables,
        host=Host.from_snapshot(DATA / "host.json"),
        vmi=(DATA / "vmi.json").read_bytes(),
    )
    slots = [
        [(str(function.source), str(function.guest and function.guest.address)) for function in device.functions]
        for device in translation.plan.devices
    ]
    assert slots == [
        [("0000:e1:00.0", "0000:05:00.0"), ("0000:e1:00.1", "0000:05:00.1")],
        [("0000:01:00.0", "0000:06:00.0"), ("0000:01:00.1", "0000:06:00.1")],
    ]


def test_no_variable_of_the_process_has_a_say(shown: str) -> None:
    result = launcherkit("demo", LAUNCHERKIT_SIBLINGS="none", LAUNCHERKIT_HOST="none", PCI_RESOURCE_X="0000:02:00.0")
    assert result.stdout.decode() == shown


def test_the_files_are_written_and_every_command_it_names_works(tmp_path: Path) -> None:
    directory = tmp_path / "a directory"
    result = launcherkit("demo", "--dir", str(directory))
    assert result.returncode == 0, result.stderr.decode()
    assert sorted(path.name for path in directory.iterdir()) == ["domain.xml", "env.txt", "host.json", "vmi.json"]
    ran = []
    commands = [shlex.split(line) for line in result.stdout.decode().splitlines() if line.startswith("  ")]
    assert commands.pop(0) == ["cd", str(directory)]
    for command in commands:
        if command[0] == "launcherkit":
            done = launcherkit(*command[1:], cwd=directory)
        else:
            done = subprocess.run(command, cwd=directory, env=dict(os.environ), capture_output=True, check=True)
        ran.append((command[0], done.returncode, b"error[LK204]" in done.stderr))
        assert done.stdout or command[0] == "sed"
    assert ran == [
        ("launcherkit", 0, False),
        ("launcherkit", 0, False),
        ("launcherkit", 0, False),
        ("sed", 0, False),
        ("launcherkit", 65, True),
        ("launcherkit", 0, False),
    ]


def test_the_files_may_be_written_twice(tmp_path: Path) -> None:
    assert launcherkit("demo", "--dir", str(tmp_path)).returncode == 0
    assert launcherkit("demo", "--dir", str(tmp_path)).returncode == 0


def test_a_file_of_the_users_own_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "vmi.json").write_text("mine")
    result = launcherkit("demo", "--dir", str(tmp_path))
    assert result.returncode == 65
    assert b"error[LK132]" in result.stderr
    assert result.stdout == b""
    assert [path.name for path in tmp_path.iterdir()] == ["vmi.json"]
    assert (tmp_path / "vmi.json").read_text() == "mine"


def test_a_directory_that_can_not_be_made_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    result = launcherkit("demo", "--dir", str(tmp_path / "file" / "below"))
    assert result.returncode == 65
    assert b"error[LK132]" in result.stderr
