"""Can a DRA driver work on this node? What it lacks fails where there is one, and is told where there is none."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from launcherkit.doctor.facts import KubeletNode
from launcherkit.doctor.finding import CHECKS
from launcherkit.doctor.gather import ask_version, read_node
from launcherkit.doctor.nodes import DRIVER
from launcherkit.host.tree import DiskTree
from launcherkit_plugin.model.config import DRA_DRIVER
from tests.doctor.known import finding, findings, gathered, healthy_host, host_facts, vm_facts
from tests.test_deploy_plugin import COMPONENTS, pod

NODE = KubeletNode((1, 36, 2), (2, 1, 0), None, True, frozenset({DRIVER}), 1, True)


def status(check: str, **changes: Any) -> str:
    return finding(host_facts(healthy_host(), node=replace(NODE, **changes)), check).status


def test_a_node_that_has_all_is_well() -> None:
    of = host_facts(healthy_host(), node=NODE)
    assert [finding(of, check).status for check in CHECKS if check.startswith("dra-")] == ["ok", "ok", "ok"]


@pytest.mark.parametrize(
    ("check", "lacking"),
    [
        ("dra-kubelet", {"kubelet": (1, 33, 9)}),
        ("dra-kubelet", {"registry": False}),
        ("dra-cdi", {"cdi_writable": False}),
        ("dra-cdi", {"containerd": (1, 6, 20)}),
        ("dra-cdi", {"containerd": (1, 7, 24)}),
        ("dra-cdi", {"cdi_enabled": False}),
    ],
)
def test_what_is_lacking_fails_where_there_is_a_driver_and_is_told_elsewhere(
    check: str, lacking: dict[str, Any]
) -> None:
    assert status(check, **lacking) == "fail"
    assert status(check, drivers=frozenset({"gpu.nvidia.com"}), **lacking) == "skipped"


@pytest.mark.parametrize(
    ("check", "enough"),
    [
        ("dra-kubelet", {"kubelet": None}),
        ("dra-kubelet", {"kubelet": (1, 34, 0)}),
        ("dra-cdi", {"containerd": None}),
        ("dra-cdi", {"containerd": (1, 7, 24), "cdi_enabled": True}),
    ],
)
def test_what_is_enough_is_well(check: str, enough: dict[str, Any]) -> None:
    assert status(check, **enough) == "ok"


def test_a_driver_that_nobody_speaks_to_the_cluster_for_is_warned_of() -> None:
    assert status("dra-driver", cluster_sockets=0) == "warn"
    assert status("dra-driver", drivers=frozenset()) == "skipped"


def test_without_a_kubelet_and_for_a_vm_there_is_nothing_to_say() -> None:
    assert finding(host_facts(healthy_host()), "dra-driver").status == "skipped"
    assert findings(vm_facts(gathered=gathered(node=NODE)), "dra-driver") == []


def test_the_driver_is_the_one_that_the_configuration_has_by_default() -> None:
    assert DRIVER == DRA_DRIVER


def test_a_nodes_files_are_read(tmp_path: Path) -> None:
    with DiskTree(str(tmp_path)) as tree:
        assert read_node(tree, str(tmp_path), None) is None
    kubelet = tmp_path / "var" / "lib" / "kubelet"
    registry = kubelet / "plugins_registry"
    registry.mkdir(parents=True)
    for name in (f"{DRIVER}-6f0f-d2-reg.sock", "gpu.nvidia.com-reg.sock", "csi.sock"):
        (registry / name).touch()
    (volume,) = [each for each in pod(COMPONENTS["cluster"] / "daemonset.yaml")["volumes"] if "emptyDir" in each]
    folder = kubelet / "pods" / "1f" / "volumes" / "kubernetes.io~empty-dir" / volume["name"]
    folder.mkdir(parents=True)
    (folder / "daemon.sock").touch()
    config = tmp_path / "etc" / "containerd" / "config.toml"
    config.parent.mkdir(parents=True)
    config.write_text('[plugins."io.containerd.grpc.v1.cri"]\n  enable_cdi = true\n')
    with DiskTree(str(tmp_path)) as tree:
        found = read_node(tree, str(tmp_path), None)
    drivers = frozenset({f"{DRIVER}-6f0f-d2", "gpu.nvidia.com"})
    assert found == KubeletNode(None, None, True, True, drivers, 1, True)
    assert found.has_driver(DRIVER)


@pytest.mark.parametrize(
    ("program", "says", "version"),
    [
        ("kubelet", "Kubernetes v1.36.2", (1, 36, 2)),
        ("containerd", "containerd github.com/containerd/containerd 1.7.24~ds1 1.7.24~ds1-6+deb13u1", (1, 7, 24)),
        ("containerd", "containerd github.com/containerd/containerd/v2 v2.1.4 75cb2b71", (2, 1, 4)),
        ("containerd", "containerd containerd.io 1.7.22 7f7fdf5fed64eb6a7caf99b3e12efcf9d60e311c", (1, 7, 22)),
    ],
)
def test_a_version_is_understood(tmp_path: Path, program: str, says: str, version: tuple[int, ...]) -> None:
    path = tmp_path / program
    path.write_text(f"#!/bin/sh\necho '{says}'\n")
    path.chmod(0o755)
    assert ask_version((program,), {"PATH": str(tmp_path)}) == version
