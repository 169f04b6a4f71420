"""Devices that fall ill and recover (K5), and those that are asked for when they are gone (K2)."""

from __future__ import annotations

import time
from itertools import count
from pathlib import Path

import grpc
import pytest

from tests.kubelet.conftest import STALE, Serving, options
from tests.kubelet.host import CARDS, DEVICES, StandInHost, configuration
from tests.kubelet.node import Node
from tests.kubelet.plugin import Plugin
from tests.kubelet.pods import Pods, container
from tests.kubelet.test_group_members import allocate
from tests.plugin.resources import rebind
from tests.support.waiting import until

pytestmark = pytest.mark.kubelet

SICK = "gpus.test/SICK"
SETTLED_SECONDS = 2.0
"""The plugin looks at the host within that after the kubelet has written its checkpoint, most of the time."""


def test_a_device_whose_node_goes_is_not_allocatable_until_it_is_back(serving: Serving, node: Node) -> None:
    _, card = CARDS[SICK]
    serving.host.lose_node(f"vfio/{card.group}")
    node.wait_counts({SICK: (2, 1)})
    until(
        lambda: any(f"/dev/vfio/{card.group} is not there" in reported for reported in node.events()),
        "an event",
        node.events,
    )

    serving.host.node(f"vfio/{card.group}")
    node.wait_counts({SICK: (2, 2)})


def test_a_device_that_gets_another_driver_goes_to_no_pod_until_it_has_its_own(
    serving: Serving, node: Node, pods: Pods
) -> None:
    well, ill = CARDS[SICK]
    before = node.written()
    rebind(serving.host, ill.gpu, "nvidia")
    node.wait_healthy({SICK: {well.gpu}}, since=before)
    first = pods.run("healthy", container("compute", SICK=1), scheduled=False)
    assert node.holders()[f"{first}/compute"] == {SICK: {well.gpu}}
    second = pods.make("patient", container("compute", SICK=1), scheduled=False)
    assert "Requested: 1, Available: 0" in pods.wait_refused(second)

    rebind(serving.host, ill.gpu, "vfio-pci")

    node.wait_healthy({SICK: DEVICES[SICK]})
    third = pods.run("cured", container("compute", SICK=1), scheduled=False)
    assert node.holders()[f"{third}/compute"] == {SICK: {ill.gpu}}


def test_a_device_that_vanishes_before_it_is_asked_for_is_refused_in_words_that_the_pod_shows(
    serving: Serving, host: StandInHost, node: Node, pods: Pods, tmp_path: Path
) -> None:
    stale, sound = CARDS[STALE]
    # It looks at the host once an hour, when a node comes or goes, and when the kubelet has written its checkpoint. A
    # driver that changes here makes no uevent.
    plugin = Plugin(configuration(STALE, rescan_seconds=3600), tmp_path, *options(host, node.kubelet_dir))
    before = node.written()
    plugin.start()
    try:
        node.wait_healthy({STALE: DEVICES[STALE]}, since=before)
        numbers = count()

        def refused_late() -> tuple[str, ...]:
            """A pod that is refused by the plugin, and why; nothing where the plugin has noticed before."""
            host.lose_node(f"vfio/{sound.group}")
            node.wait_healthy({STALE: {stale.gpu}})
            host.node(f"vfio/{sound.group}")
            node.wait_healthy({STALE: DEVICES[STALE]})
            time.sleep(SETTLED_SECONDS)
            rebind(host, stale.gpu, "nouveau")
            name = pods.make(f"late-{next(numbers)}", container("compute", STALE=2), scheduled=False)
            why = pods.wait_refused(name)
            if "LK713" in why:
                return name, why
            rebind(host, stale.gpu, "vfio-pci")  # it has looked once more
            return ()

        name, why = until(refused_late, "a pod that is refused by Allocate")
        assert "error[LK713]: gpus.test/STALE: 0000:60:00.0 is no longer available" in why
        assert "is bound to nouveau, not to a VFIO driver" in why
        until(
            lambda: any("LK713" in event for event in pods.events(name)), "an event with it", lambda: pods.events(name)
        )
        with pytest.raises(grpc.RpcError) as refusal:
            allocate(node, STALE, "0000:99:00.0")
        assert refusal.value.code() is grpc.StatusCode.NOT_FOUND
        assert "there is no device '0000:99:00.0'" in refusal.value.details()
    finally:
        rebind(host, stale.gpu, "vfio-pci")
        assert plugin.end() == 0
