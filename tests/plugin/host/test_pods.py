"""Which pods are still there, by the kubelet's folder and by the cgroups of processes."""

from __future__ import annotations

from pathlib import Path

import pytest

from launcherkit_plugin.host.pods import pod_states

ONE, TWO = "4d6f1a0e-8f1e-4f50-8e0b-6a4a2d1c9b77", "9d1f2b3c-0a1b-4c5d-9e8f-001122334455"


class Node:
    def __init__(self, root: Path) -> None:
        self.kubelet, self.proc = root / "kubelet", root / "proc"

    def folders(self, *uids: str) -> None:
        (self.kubelet / "pods").mkdir(parents=True)
        for uid in uids:
            (self.kubelet / "pods" / uid).mkdir()

    def processes(self, *cgroups: str, whole: bool = True) -> None:
        namespace = self.proc / "1/ns"
        namespace.mkdir(parents=True)
        (namespace / "pid").symlink_to("pid:[4026531836]" if whole else "pid:[4026532000]")
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
