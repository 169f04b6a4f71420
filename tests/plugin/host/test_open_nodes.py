"""Open VFIO nodes: found by name in any mount namespace, and never taken for closed where one can't look."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from launcherkit_plugin.host.open_nodes import HolderProcess, read_open_nodes
from tests.support.faults import failing


class Proc:
    """A proc file system below a folder."""

    def __init__(self, root: Path, *, namespace: str = "pid:[4026531836]") -> None:
        self.root = root
        self.process(1, "systemd")
        (root / "1/ns").mkdir()
        (root / "1/ns/pid").symlink_to(namespace)
        (root / "uptime").touch()

    def process(self, pid: int, name: str, *targets: str) -> None:
        """Add one that has files open."""
        (self.root / f"{pid}/fd").mkdir(parents=True)
        (self.root / f"{pid}/comm").write_text(name + "\n")
        for number, target in enumerate(("/dev/null", "socket:[71]", *targets)):
            (self.root / f"{pid}/fd/{number}").symlink_to(target)


@pytest.mark.parametrize("target", ["/dev/vfio/44", "/vfio/44", "/run/k3s/root/dev/vfio/44", "/dev/vfio/44 (deleted)"])
def test_a_group_that_is_open_is_found_whatever_its_namespace_calls_it(tmp_path: Path, target: str) -> None:
    Proc(tmp_path).process(812, "qemu-system-x86", "/dev/vfio/vfio", "anon_inode:[vfio-device]", target)
    nodes = read_open_nodes(str(tmp_path))
    assert nodes.holders == {"/dev/vfio/44": (HolderProcess(812, "qemu-system-x86"),)}
    assert nodes.is_open(["/dev/vfio/44", "/dev/vfio/45"]) is True
    assert nodes.is_open(["/dev/vfio/45"]) is False


def test_a_character_device_of_vfio_that_is_open_is_found(tmp_path: Path) -> None:
    Proc(tmp_path).process(812, "qemu", "/dev/iommu", "/dev/vfio/devices/vfio3")
    assert set(read_open_nodes(str(tmp_path)).holders) == {"/dev/vfio/devices/vfio3"}


def test_files_that_only_look_alike_are_none(tmp_path: Path) -> None:
    Proc(tmp_path).process(5, "vi", "/srv/vfio/44.txt", "/dev/shm/novfio/44", "/dev/vfio/vfio", "/dev/vfio/x1")
    assert read_open_nodes(str(tmp_path)).holders == {}


def test_from_inside_a_container_nothing_can_be_told_to_be_closed(tmp_path: Path) -> None:
    Proc(tmp_path, namespace="pid:[4026532840]").process(7, "qemu", "/dev/vfio/44")
    nodes = read_open_nodes(str(tmp_path))
    assert nodes.is_open(["/dev/vfio/44"]) is True
    assert nodes.is_open(["/dev/vfio/45"]) is None


def test_a_process_that_can_not_be_looked_into_may_hold_anything(tmp_path: Path) -> None:
    proc = Proc(tmp_path)
    proc.process(7, "qemu")
    (tmp_path / "7/fd").rename(tmp_path / "7/x")
    (tmp_path / "7/fd").touch()  # a folder that can't be listed, for root too
    nodes = read_open_nodes(str(tmp_path))
    assert nodes.is_open(["/dev/vfio/44"]) is None
    assert nodes.unseen == "qemu (PID 7) can't be looked into"


def test_a_process_that_ended_meanwhile_holds_nothing(tmp_path: Path) -> None:
    Proc(tmp_path)
    (tmp_path / "99").mkdir()
    assert read_open_nodes(str(tmp_path)).is_open(["/dev/vfio/44"]) is False


def test_without_proc_nothing_is_known(tmp_path: Path) -> None:
    assert read_open_nodes(str(tmp_path / "none")).is_open(["/dev/vfio/44"]) is None


def test_a_live_process_is_found_by_what_it_has_open(tmp_path: Path) -> None:
    node = tmp_path / "dev/vfio/44"
    node.parent.mkdir(parents=True)
    node.touch()
    code = "import sys; file = open(sys.argv[1]); print(flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", code, str(node)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert process.pid in {each.pid for each in read_open_nodes().holders["/dev/vfio/44"]}
        process.communicate()
    assert os.path.exists(node)


def test_processes_that_can_not_be_listed_may_have_anything_open(tmp_path: Path) -> None:
    (tmp_path / "1/ns").mkdir(parents=True)
    (tmp_path / "1/ns/pid").symlink_to("pid:[4026531836]")
    for number in (errno.EMFILE, errno.EACCES, errno.EIO):
        with failing(tmp_path, number, "launcherkit_plugin.host.open_nodes"):
            nodes = read_open_nodes(str(tmp_path))
        assert not nodes.complete
        assert nodes.is_open(["/dev/vfio/44"]) is None
