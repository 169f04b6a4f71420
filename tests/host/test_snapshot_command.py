"""``launcherkit snapshot``."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest

from launcherkit.cli.snapshot import add_arguments, run
from launcherkit.errors import UNWRITABLE_FILE, LauncherkitError
from launcherkit.host.source import Host
from tests.support.errors import raises_code
from tests.support.hosttree import HostTree

SERVER = Path(__file__).parent.parent / "data" / "rack-server.umockdev"


def snapshot(*arguments: str) -> int:
    parser = argparse.ArgumentParser()
    add_arguments(parser, {})
    return run(parser.parse_args(arguments), {})


@pytest.fixture
def root(tmp_path: Path) -> Path:
    tree = HostTree(tmp_path / "root")
    tree.card("0000:e1:00", group=44)
    (tree.path("0000:e1:00.0") / "serial_number").write_text("48-b0-2d-ff-ff-00-00-01\n")
    (tree.root / "proc/sys/kernel").mkdir(parents=True)
    (tree.root / "proc/sys/kernel/hostname").write_text("node-7\n")
    (tree.root / "sys/class/dmi/id").mkdir(parents=True)
    (tree.root / "sys/class/dmi/id/product_serial").write_text("SECRET\n")
    return tree.root


def test_stdout_holds_the_snapshot_and_nothing_else(
    root: Path, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert snapshot("--root", str(root)) == 0
    out = capfd.readouterr()
    assert not out.err
    assert snapshot("--root", str(root), "-o", str(tmp_path / "host.json")) == 0
    assert (tmp_path / "host.json").read_text() == out.out
    assert Host.from_snapshot(tmp_path / "host.json") == Host.from_sysfs(root)


def test_who_the_machine_is_stands_in_it_only_when_asked(
    root: Path, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    snapshot("--root", str(root))
    text = capfd.readouterr().out
    assert "node-7" not in text
    assert "SECRET" not in text
    assert "48-b0" not in text
    snapshot("--root", str(root), "--all", "-o", str(tmp_path / "host.json"))
    machine = json.loads((tmp_path / "host.json").read_text())["machine"]
    assert machine == {
        "hostname": "node-7",
        "serial_number": "SECRET",
        "pci_serial_numbers": {"0000:e1:00.0": "48-b0-2d-ff-ff-00-00-01"},
    }
    assert Host.from_snapshot(tmp_path / "host.json") == Host.from_sysfs(root)


def test_a_recording_can_be_made_a_snapshot(tmp_path: Path) -> None:
    snapshot("--root", str(SERVER), "--all", "-o", str(tmp_path / "host.json"))
    assert Host.from_snapshot(tmp_path / "host.json") == Host.from_umockdev(SERVER)


def test_a_failure_leaves_stdout_empty_and_the_old_file_alone(
    root: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "host.json"
    file.write_text("old")
    with pytest.raises(LauncherkitError):
        snapshot("--root", str(tmp_path / "none"), "-o", str(file))
    with raises_code(UNWRITABLE_FILE):
        snapshot("--root", str(root), "-o", str(tmp_path / "no/such/host.json"))
    assert file.read_text() == "old"
    assert not capfd.readouterr().out


def test_no_link_of_the_root_makes_files_of_this_machine_part_of_a_snapshot(
    root: Path, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "private").write_text("PRIVATE\n")
    for path in (
        root / "sys/class/dmi/id/product_serial",
        root / "sys/bus/pci/devices/0000:e1:00.0/serial_number",
        root / "sys/bus/pci/devices/0000:e1:00.0/power_state",
        root / "proc/sys/kernel/hostname",
    ):
        path.unlink(missing_ok=True)
        path.symlink_to(tmp_path / "private")
    assert snapshot("--root", str(root), "--all") == 0
    text = capfd.readouterr().out
    assert "0000:e1:00.0" in text
    assert "PRIVATE" not in text


def test_a_root_whose_sys_is_another_machines_is_no_root(tmp_path: Path) -> None:
    outside = HostTree(tmp_path / "outside")
    outside.card("0000:e1:00", group=44)
    (tmp_path / "root").mkdir()
    (tmp_path / "root" / "sys").symlink_to(outside.root / "sys")
    with pytest.raises(LauncherkitError) as caught:
        snapshot("--root", str(tmp_path / "root"))
    assert caught.value.code == "LK501"
