"""Open VFIO nodes are found by name in any mount namespace; where one can't look, nothing counts as closed or ended."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from launcherkit_plugin.host.processes import HolderProcess, pod_states, read_open_nodes
from tests.support.faults import failing


class Proc:
    """A proc file system below a folder."""

    def __init__(self, root: Path, *, second: str = "kthreadd") -> None:
        self.root = root
        self.process(1, "systemd")
        self.process(2, second)
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


def test_the_node_of_a_driver_is_found_by_its_number(tmp_path: Path) -> None:
    Proc(tmp_path).process(812, "Xorg", "/dev/zero", "/no/such/null")
    nodes = read_open_nodes(str(tmp_path), {"/dev/null": (1, 3), "/dev/dri/zero": (226, 1)})
    assert {node: [str(each) for each in holders] for node, holders in nodes.holders.items()} == {
        "/dev/null": ["systemd (PID 1)", "kthreadd (PID 2)", "Xorg (PID 812)"]
    }


def test_files_that_only_look_alike_are_none(tmp_path: Path) -> None:
    Proc(tmp_path).process(5, "vi", "/srv/vfio/44.txt", "/dev/shm/novfio/44", "/dev/vfio/vfio", "/dev/vfio/x1")
    assert read_open_nodes(str(tmp_path)).holders == {}


def test_from_inside_a_container_nothing_counts_as_closed(tmp_path: Path) -> None:
    Proc(tmp_path, second="sh").process(7, "qemu", "/dev/vfio/44")
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
    assert nodes.unseen == "qemu (PID 7) can't be inspected"


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
    Proc(tmp_path)
    for number in (errno.EMFILE, errno.EACCES, errno.EIO):
        with failing(tmp_path, number, "launcherkit_plugin.host.processes"):
            nodes = read_open_nodes(str(tmp_path))
        assert not nodes.complete
        assert nodes.is_open(["/dev/vfio/44"]) is None


ONE, TWO = "4d6f1a0e-8f1e-4f50-8e0b-6a4a2d1c9b77", "9d1f2b3c-0a1b-4c5d-9e8f-001122334455"


class Node:
    def __init__(self, root: Path) -> None:
        self.kubelet, self.proc = root / "kubelet", root / "proc"

    def folders(self, *uids: str) -> None:
        (self.kubelet / "pods").mkdir(parents=True)
        for uid in uids:
            (self.kubelet / "pods" / uid).mkdir()

    def processes(self, *cgroups: str, whole: bool = True) -> None:
        for pid, name in ((1, "systemd"), (2, "kthreadd" if whole else "sh")):
            (self.proc / f"{pid}").mkdir(parents=True)
            (self.proc / f"{pid}/comm").write_text(name + "\n")
        (self.proc / "1/cgroup").write_text("0::/init.scope\n")
        for pid, cgroup in enumerate(cgroups, 100):
            (self.proc / str(pid)).mkdir()
            (self.proc / str(pid) / "cgroup").write_text(cgroup)

    def states(self) -> dict[str, bool]:
        return pod_states([ONE, TWO], str(self.kubelet), str(self.proc))


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


@pytest.mark.parametrize(
    "cgroup",
    [
        f"0::/kubepods.slice/kubepods-burstable-pod{ONE.replace('-', '_')}.slice/cri-containerd-7.scope\n",
        f"0::/kubepods.slice/kubepods-pod{ONE.replace('-', '_')}.slice\n",
        f"0::/kubepods/besteffort/pod{ONE}/7d9a\n",
        f"0::/../../pod{ONE}/7d9a\n",
        f"12:devices:/system.slice/x\n3:cpu,cpuacct:/kubepods/pod{ONE}/7d9a\n",
    ],
)
def test_a_pod_with_a_process_is_there_and_one_without_has_ended(node: Node, cgroup: str) -> None:
    node.folders(ONE, TWO)
    node.processes(cgroup)
    assert node.states() == {ONE: True, TWO: False}


def test_a_pod_without_a_folder_has_ended(node: Node) -> None:
    node.folders(TWO)
    node.processes(f"0::/kubepods/pod{TWO}/1\n")
    assert node.states() == {ONE: False, TWO: True}


def test_where_not_all_processes_can_be_seen_the_folder_counts(node: Node) -> None:
    node.folders(ONE)
    node.processes(whole=False)
    assert node.states() == {ONE: True, TWO: False}


def test_processes_are_enough(node: Node) -> None:
    node.processes(f"0::/kubepods/pod{ONE}/1\n")
    assert node.states() == {ONE: True, TWO: False}


def test_with_neither_nothing_is_said(node: Node) -> None:
    node.processes(f"0::/kubepods/pod{ONE}/1\n", whole=False)
    assert node.states() == {}


def test_a_process_that_can_not_be_looked_into_may_be_the_pods(node: Node) -> None:
    node.processes("0::/\n")
    (node.proc / "100/cgroup").unlink()
    (node.proc / "100/cgroup").mkdir()  # reading a directory fails
    assert node.states() == {}
