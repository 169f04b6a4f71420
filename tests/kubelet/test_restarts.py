"""Kubelets and plugins that end and start again while pods run (K4): nothing is lost, nothing is given twice."""

from __future__ import annotations

from typing import Any

import pytest

from tests.kubelet.conftest import SERVED, Serving
from tests.kubelet.host import DEVICES
from tests.kubelet.node import Node
from tests.kubelet.pods import Pods, container
from tests.support.waiting import until

pytestmark = pytest.mark.kubelet

HELD, ONE_GROUP = "gpus.test/HELD", "gpus.test/HELD_ONE_GROUP"
RESTARTS = 20
NEWCOMERS = (0, 9, 19)
"""The restarts after which a pod more asks for a device."""


class Running:
    """A pod that has one of three devices and one of two group members."""

    def __init__(self, name: str, pods: Pods, node: Node) -> None:
        self._pods = pods
        self.name = pods.run(name, container("compute", HELD=1, HELD_ONE_GROUP=1))
        self.has = node.holders()[f"{self.name}/compute"]
        self._started = self._containers()

    def advertised(self) -> dict[str, set[str]]:
        """What the kubelet should know beside it: all devices, the resident's own too, and no mate of them."""
        return {resource: DEVICES[resource] for resource in SERVED} | {ONE_GROUP: self.has[ONE_GROUP]}

    def is_untouched(self) -> bool:
        return self._containers() == self._started

    def _containers(self) -> list[tuple[Any, ...]]:
        status = self._pods.status(self.name)
        return [(one["containerID"], one["restartCount"], one["ready"]) for one in status["containerStatuses"]]


def test_a_kubelet_that_restarts_twenty_times_has_all_devices_each_time_and_gives_none_away_twice(
    serving: Serving, node: Node, pods: Pods
) -> None:
    resident = Running("resident", pods, node)
    for restart in range(RESTARTS):
        before = node.written()
        node.restart_kubelet()
        node.wait_healthy(resident.advertised(), since=before, nudge=serving.host.blink)
        assert serving.plugin.running
        if restart in NEWCOMERS:
            newcomer = pods.run(f"newcomer-{restart}", container("compute", HELD=2), scheduled=False)
            given = pods.look(newcomer, "compute").env["PCI_RESOURCE_GPUS_TEST_HELD"]
            assert set(given.split(",")) == DEVICES[HELD] - resident.has[HELD]
            # To its end, not by force: a kubelet that restarts again and again never comes to ending a container whose
            # pod is gone already, and its devices are still in use.
            pods.end(newcomer)
    assert node.holders()[f"{resident.name}/compute"] == resident.has
    assert resident.is_untouched()


def test_a_container_that_ends_and_is_started_again_has_the_device_that_it_had(serving: Serving, pods: Pods) -> None:
    # It ends by itself, a while after it is told: a command that is run in it would end with it, and fail.
    ends = "until [ -e /tmp/end ]; do sleep 0.2; done; sleep 2; exit 1"
    again = container("compute", AGAIN=1) | {"command": ["sh", "-c", ends]}
    name = pods.run("again", again, restartPolicy="Always")
    before = pods.look(name, "compute")

    pods.shell(name, "compute", ": > /tmp/end")

    until(lambda: pods.restarts(name) == 1, "it started again", lambda: pods.status(name))
    pods.wait_running(name)
    assert pods.look(name, "compute") == before


@pytest.mark.parametrize("from_checkpoint", [False, True], ids=["by_pod_resources", "by_the_checkpoint_alone"])
def test_a_plugin_that_is_killed_and_started_again_knows_what_pods_have(
    serving: Serving, node: Node, pods: Pods, from_checkpoint: bool
) -> None:
    """It has nothing under way then; tests/kernel/pod/test_vgpu_lifecycle.py kills it at its changes."""
    resident = Running("resident-by-checkpoint" if from_checkpoint else "resident-by-list", pods, node)
    before = node.written()
    serving.plugin.kill()
    if from_checkpoint:
        serving.plugin.use("--pod-resources=/nobody.sock")
    try:
        node.wait_healthy(resident.advertised(), since=before, nudge=serving.host.blink)

        second = pods.make("second", container("compute", HELD_ONE_GROUP=1), scheduled=False)

        assert "requested number of devices unavailable" in pods.wait_refused(second)
        assert node.holders()[f"{resident.name}/compute"] == resident.has
        assert resident.is_untouched()
    finally:
        if from_checkpoint:
            serving.plugin.use()
