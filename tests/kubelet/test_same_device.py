"""Restarts of a VM whose pods ask for the device that it had, while others want that device: on the real kubelet, with
the scheduler, which only counts.

``LAUNCHERKIT_TEST_RESTARTS`` says how many, a few by default: each takes seconds. With ``-rP`` pytest shows them.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.kubelet.conftest import SAME, options
from tests.kubelet.host import DEVICES, StandInHost, configuration
from tests.kubelet.node import Node
from tests.kubelet.plugin import Plugin
from tests.kubelet.pods import Pods, container
from tests.support.cluster import Cluster
from tests.support.clusterprocess import ClusterProcess
from tests.support.waiting import until
from tests.tiers import RESTARTS as RESTARTS_VARIABLE

pytestmark = pytest.mark.kubelet

RESTARTS = int(os.environ.get(RESTARTS_VARIABLE, "3"))
VM = "same-vm"
OWN_POD: dict[str, str] = {}
"""Variables by which the plugin knows its own pod."""
STRANGERS = {"app": "same-strangers"}


@pytest.fixture
def plugin(host: StandInHost, node: Node, pods: Pods, cluster: Cluster, tmp_path: Path) -> Iterator[Plugin]:
    """A plugin with its process for the cluster, which has the admin's rights here."""
    rules = configuration(SAME, rescan_seconds=1)
    rules["resources"][0] |= {"sameDevice": "required"}
    socket = tmp_path / "c.sock"
    given = (*options(host, node.kubelet_dir), "--cluster-socket", str(socket))
    plugin = Plugin(rules, tmp_path, *given)
    OWN_POD.update(pods.own_pod())
    before = node.written()
    with ClusterProcess(socket, node.name, cluster.environment()["KUBECONFIG"]):
        plugin.start(env=OWN_POD)
        try:
            node.wait_healthy({SAME: DEVICES[SAME]}, since=before)
            node.wait_counts({SAME: (len(DEVICES[SAME]), len(DEVICES[SAME]))})
            yield plugin
        finally:
            assert plugin.end() == 0


class Vm:
    """A VM with one pod at a time, made again by its name until the kubelet takes it, as KubeVirt's controller does."""

    def __init__(self, cluster: Cluster, node: Node, wish: str) -> None:
        self._cluster = cluster
        self._node = node
        self._labels = {"launcherkit.io/same-device": wish}
        self.refused: list[str] = []
        """What was said of pods that were turned away."""

    def start(self) -> str:
        """Start it; gives its device."""
        until(self._started, f"{VM} running", lambda: self._status())
        (device,) = self._node.holders()[f"{VM}/compute"][SAME]
        return device

    def stop(self) -> None:
        self._cluster.kubectl("delete", "pod", VM, "--wait=true", "--ignore-not-found")

    def _started(self) -> bool:
        status = self._status()
        if status is None:
            self._create()
        elif status["phase"] == "Failed":
            self.refused.append(str(status.get("message", "")))
            self.stop()
        return status is not None and status["phase"] == "Running"

    def _status(self) -> dict[str, Any] | None:
        found = json.loads(self._cluster.kubectl("get", "pods", f"--field-selector=metadata.name={VM}", "-o", "json"))
        return found["items"][0]["status"] if found["items"] else None

    def _create(self) -> None:
        self._cluster.kubectl("create", "-f", "-", given=json.dumps(pod(VM, self._labels)))


def pod(name: str, labels: dict[str, str]) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": labels},
        "spec": {
            "terminationGracePeriodSeconds": 0,
            "enableServiceLinks": False,
            "containers": [container("compute", SAME=1)],
        },
    }


@contextmanager
def strangers(cluster: Cluster, number: int) -> Iterator[None]:
    """So many pods of others. One that is turned away is made again after a pause that grows, as a VM is."""
    name = STRANGERS["app"]
    template = {key: value for key, value in pod(name, STRANGERS).items() if key in ("metadata", "spec")}
    template |= {"metadata": {"labels": STRANGERS}, "spec": {**template["spec"], "restartPolicy": "Never"}}
    spec = {"parallelism": number, "completions": 10000, "backoffLimit": 10000, "template": template}
    document = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name}, "spec": spec}
    cluster.kubectl("create", "-f", "-", given=json.dumps(document))
    try:
        yield
    finally:
        cluster.kubectl("delete", "job", name, "--cascade=orphan", "--wait=true")
        gone = ("--force", "--grace-period=0", "--wait=false")
        cluster.kubectl("delete", "pods", f"--selector=app={name}", *gone)


def test_a_vm_that_requires_its_device_has_it_after_each_restart(plugin: Plugin, cluster: Cluster, node: Node) -> None:
    """Somebody waits for each device that is free."""
    vm = Vm(cluster, node, "required")
    had = vm.start()
    with strangers(cluster, len(DEVICES[SAME])):
        for restart in range(RESTARTS):
            if restart % 10 == 5:
                plugin.kill()
                plugin.start(env=OWN_POD)
            vm.stop()
            assert vm.start() == had, f"restart {restart}"
            print(f"{time.ctime()}: restart {restart}: {had}; pods turned away: {vm.refused}")  # noqa: T201
        vm.stop()


def test_a_vm_that_prefers_its_device_has_it_after_each_restart_unless_another_has_it(
    plugin: Plugin, cluster: Cluster, node: Node
) -> None:
    """Others end now and then, so that there is a choice; one device is left for the VM."""
    vm = Vm(cluster, node, "preferred")
    had = vm.start()
    same = 0
    with strangers(cluster, len(DEVICES[SAME]) - 1):
        for restart in range(RESTARTS):
            vm.stop()
            names = cluster.kubectl("get", "pods", f"--selector=app={STRANGERS['app']}", "-o", "name").split()
            cluster.kubectl("delete", *names[:1], "--wait=false")
            has = vm.start()
            owners = {device: name for name, found in node.holders().items() for device in found.get(SAME, ())}
            assert has == had or owners.get(had), f"restart {restart}: {had} was free, and it has {has}"
            same += has == had
            print(f"{time.ctime()}: restart {restart}: {has}; the same {same} times; {owners}")  # noqa: T201
            had = has
        vm.stop()
