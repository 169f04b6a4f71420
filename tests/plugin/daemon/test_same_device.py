"""The device that a VM had: `launcherkit-plugin serve` and its process for the cluster, between two doubles."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from launcherkit_lab.kubelet import Kubelet, NotAdmitted
from tests.plugin.daemon.test_serve import BOTH, GPU, Node, kubelet, node
from tests.support.apiserver import PODS, ApiServer
from tests.support.clusterprocess import ClusterProcess

__all__ = ["kubelet", "node"]

FIRST, SECOND = sorted(BOTH)
RULE: dict[str, Any] = {"name": GPU, "select": [{"vendors": ["10de"], "classes": ["03"]}], "sameDevice": "required"}


_ATTEMPTS = 20


class Cluster:
    """Pods at the API server and on the kubelet, in the order in which a cluster has them."""

    def __init__(self, kubelet: Kubelet, server: ApiServer) -> None:
        self._kubelet = kubelet
        self.server = server

    def create(self, name: str, vm: str, wish: str = "") -> None:
        self._put(name, vm, wish, {})

    def bind(self, name: str, vm: str, wish: str = "") -> str:
        """Bind it to the node; gives the device that it gets there.

        On a busy machine the kubelet may have asked for a preference before the API server's news was here. Then its
        choice is refused, and the pod is made again, as its controller does.

        Raises:
            NotAdmitted: the kubelet has turned it away.
        """
        for attempt in range(_ATTEMPTS):
            self._put(name, vm, wish, {"nodeName": "node-1"})
            try:
                (holding,) = self._kubelet.admit(name, [("compute", GPU, 1)])
            except NotAdmitted as refusal:
                self._put(name, vm, wish, {"nodeName": "node-1"}, "Failed")
                if " is required again, and the kubelet chose " in str(refusal) and attempt + 1 < _ATTEMPTS:
                    continue
                raise
            (device,) = holding.ids
            return device
        raise AssertionError(_ATTEMPTS)

    def end(self, name: str) -> None:
        """Let it end, once the plugin has seen that it runs."""
        asked = self._kubelet.asked_for_pods
        self._kubelet.wait(lambda: self._kubelet.asked_for_pods > asked + 1, "the plugin to have seen the pod")
        self._kubelet.delete(name)
        self.server.remove(PODS, name)

    def _put(self, name: str, vm: str, wish: str, spec: dict[str, Any], phase: str = "Pending") -> None:
        container = {
            "name": "compute",
            "resources": {"limits": {GPU: "1", "cpu": "500m", "devices.kubevirt.io/kvm": 1}},
        }
        metadata = {
            "name": name,
            "namespace": "default",
            "labels": {"launcherkit.io/same-device": wish} if wish else {},
            "ownerReferences": [{"kind": "VirtualMachineInstance", "name": vm, "uid": f"of {name}"}],
        }
        pod = {"metadata": metadata, "spec": {"containers": [container], **spec}, "status": {"phase": phase}}
        self.server.put(PODS, pod)


@pytest.fixture
def server() -> ApiServer:
    return ApiServer()


@contextmanager
def serving(node: Node, kubelet: Kubelet, server: ApiServer, **rule: object) -> Iterator[Cluster]:
    """The daemon and its process for the cluster, once they know what there is."""
    node.configure({"resources": [{**RULE, **rule}], "rescanSeconds": 1})
    socket, watches = node.folder / "c.sock", server.watches
    given = ("--config", node.config, "--cluster-socket", socket)
    with (
        server.running(node.folder) as kubeconfig,
        ClusterProcess(socket, "node-1", kubeconfig),
        node.serving(*given) as process,
    ):
        kubelet.wait(lambda: kubelet.resources())
        if rule.get("sameDevice") is not False:
            server.wait_for("watches", lambda: server.watches >= watches + 2)
        yield Cluster(kubelet, server)
        process.end(signal.SIGKILL)


def records(node: Node) -> set[str]:
    return {path.stem for path in Path(node.folder / "state/kept").glob("0*.json")}


def test_a_vm_that_requires_its_device_gets_it_again_and_nobody_else_does(
    node: Node, kubelet: Kubelet, server: ApiServer
) -> None:
    with serving(node, kubelet, server) as cluster:
        kubelet.wait_for(GPU, BOTH)
        had = cluster.bind("launcher-1", "one", "required")
        assert records(node) == {had}
        cluster.end("launcher-1")
        kubelet.wait_for(GPU, {each: each != had for each in BOTH})
        other = cluster.bind("stranger-1", "other")
        assert other != had
        with pytest.raises(NotAdmitted, match="available: 0"):
            cluster.bind("stranger-2", "another")
        cluster.create("launcher-2", "one", "required")
        kubelet.wait_for(GPU, BOTH)
        with pytest.raises(NotAdmitted, match=" is kept for a VM since "):
            cluster.bind("stranger-3", "another")
        assert cluster.bind("launcher-2", "one", "required") == had


def test_it_is_so_after_a_kill_and_a_reboot_too(node: Node, kubelet: Kubelet, server: ApiServer) -> None:
    boot = node.tree.root / "proc/sys/kernel/random/boot_id"
    with serving(node, kubelet, server) as cluster:
        kubelet.wait_for(GPU, BOTH)
        had = cluster.bind("launcher-1", "one", "required")
    kubelet.delete("launcher-1")
    server.remove(PODS, "launcher-1")
    server.ending = False
    boot.parent.mkdir(parents=True, exist_ok=True)
    boot.write_text("b0000000-0000-0000-0000-000000000000\n")
    with serving(node, kubelet, server) as cluster:
        kubelet.wait_for(GPU, {each: each != had for each in BOTH})
        cluster.create("launcher-2", "one", "required")
        kubelet.wait_for(GPU, BOTH)
        assert cluster.bind("launcher-2", "one", "required") == had


def test_a_vm_that_prefers_its_device_gets_it_if_it_is_free(node: Node, kubelet: Kubelet, server: ApiServer) -> None:
    with serving(node, kubelet, server) as cluster:
        kubelet.wait_for(GPU, BOTH)
        assert cluster.bind("stranger-1", "other") == FIRST
        assert cluster.bind("launcher-1", "one", "preferred") == SECOND
        cluster.end("stranger-1")
        cluster.end("launcher-1")
        assert cluster.bind("launcher-2", "one", "preferred") == SECOND
        cluster.end("launcher-2")
        strangers = [cluster.bind(f"stranger-{number}", f"other-{number}") for number in (2, 3)]
        assert strangers == [FIRST, SECOND], "what another VM prefers is taken last"
        cluster.end("stranger-2")
        assert cluster.bind("launcher-3", "one", "preferred") == FIRST


def test_a_device_is_kept_for_so_long(node: Node, kubelet: Kubelet, server: ApiServer) -> None:
    with serving(node, kubelet, server, keepFor=1) as cluster:
        kubelet.wait_for(GPU, BOTH)
        had = cluster.bind("launcher-1", "one", "required")
        cluster.end("launcher-1")
        kubelet.wait_for(GPU, {each: each != had for each in BOTH})
        kubelet.wait_for(GPU, BOTH)
        kubelet.wait(lambda: not records(node))


def test_where_the_rule_only_allows_to_prefer_nothing_is_kept(node: Node, kubelet: Kubelet, server: ApiServer) -> None:
    with serving(node, kubelet, server, sameDevice="preferred") as cluster:
        kubelet.wait_for(GPU, BOTH)
        assert cluster.bind("launcher-1", "one", "required") == FIRST
        cluster.end("launcher-1")
        taken = [cluster.bind(f"stranger-{number}", f"other-{number}") for number in (1, 2)]
        assert taken == [SECOND, FIRST]


def test_without_the_key_nobody_asks_for_pods_and_nothing_is_recorded(
    node: Node, kubelet: Kubelet, server: ApiServer
) -> None:
    socket = node.folder / "c.sock"
    with (
        server.running(node.folder) as kubeconfig,
        ClusterProcess(socket, "node-1", kubeconfig) as process,
        node.serving("--config", node.config, "--cluster-socket", socket),
    ):
        kubelet.wait_for(GPU, BOTH)
        process.wait_for("connected to the daemon")
        kubelet.admit("launcher-1", [("compute", GPU, 1)])
        assert server.lists == 0
    assert not Path(node.folder / "state/kept").exists()


def test_switched_on_while_it_runs_the_kubelet_asks_before_each_start(
    node: Node, kubelet: Kubelet, server: ApiServer
) -> None:
    with serving(node, kubelet, server, sameDevice=False) as cluster:
        kubelet.wait_for(GPU, BOTH)
        cluster.bind("launcher-1", "one", "required")
        assert not records(node)
        node.configure({"resources": [RULE], "rescanSeconds": 1})
        server.wait_for("watches", lambda: server.watches >= 2)
        kubelet.wait(lambda: kubelet.registrations.count(GPU) == 2 and kubelet.devices(GPU) == BOTH)
        had = cluster.bind("launcher-2", "two", "required")
        assert records(node) == {had}
