"""Devices of one IOMMU group never go to two pods (K3), whatever the kubelet and the scheduler think."""

from __future__ import annotations

import grpc
import pytest

from launcherkit_plugin.kubelet.proto import deviceplugin_v1beta1_pb2 as wire
from tests.kubelet.conftest import Serving
from tests.kubelet.host import AUDIO, CARDS, DEVICES, nodes_of
from tests.kubelet.node import Node, call
from tests.kubelet.pods import Pods, container
from tests.support.waiting import until

pytestmark = pytest.mark.kubelet


def test_a_group_member_of_what_a_pod_has_is_nobodys_until_the_pod_has_ended(
    serving: Serving, node: Node, pods: Pods
) -> None:
    resource = "gpus.test/ONE_GROUP"
    first = pods.run("first", container("compute", ONE_GROUP=1))
    (mine,) = node.holders()[f"{first}/compute"][resource]
    node.wait_counts({resource: (2, 1)})

    second = pods.make("second", container("compute", ONE_GROUP=1))

    assert "Insufficient gpus.test/ONE_GROUP" in pods.wait_unschedulable(second)
    with pytest.raises(grpc.RpcError) as refusal:
        allocate(node, resource, *DEVICES[resource] - {mine})
    assert refusal.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    said = refusal.value.details()
    assert said.startswith("error[LK714]")
    assert f"a pod has {mine}, which shares IOMMU group 10" in said

    pods.delete(first)
    pods.run("next", container("compute", SPARE=1))  # the kubelet writes down who has what when it gives anything
    pods.wait_running(second)


def test_of_two_pods_that_ask_at_once_for_one_group_member_each_only_one_gets_it(
    serving: Serving, node: Node, pods: Pods
) -> None:
    names = ("left", "right")
    pods.make_all({name: (container("compute", AT_ONCE=1),) for name in names}, scheduled=False)

    def phases() -> dict[str, str]:
        return {name: pods.status(name)["phase"] for name in names}

    until(lambda: sorted(phases().values()) == ["Failed", "Running"], "one of them run, and one refused", phases)
    (refused,) = (name for name, phase in phases().items() if phase == "Failed")
    why = pods.wait_refused(refused)
    assert "shares IOMMU group 12" in why or "requested number of devices unavailable" in why


def test_a_pod_that_asks_for_two_gets_the_two_of_one_group(serving: Serving, pods: Pods) -> None:
    groups = {card.gpu: card.group for card in CARDS["gpus.test/PAIRS"]}
    names = ("pair-one", "pair-two", "pair-three")
    pods.make_all({name: (container("compute", PAIRS=2),) for name in names})
    pods.wait_running(*names)

    given = [pods.look(name, "compute").env["PCI_RESOURCE_GPUS_TEST_PAIRS"].split(",") for name in names]

    assert sorted(sorted({groups[each] for each in pair}) for pair in given) == [[16], [17], [18]]


def test_a_pod_that_asks_for_two_gets_two_of_one_numa_node(serving: Serving, pods: Pods) -> None:
    nodes = {card.gpu: card.numa for card in CARDS["gpus.test/NUMA"]}
    names = ("near", "far")
    pods.make_all({name: (container("compute", NUMA=2),) for name in names})
    pods.wait_running(*names)

    given = [pods.look(name, "compute").env["PCI_RESOURCE_GPUS_TEST_NUMA"].split(",") for name in names]

    assert [{nodes[each] for each in pair} for pair in given] in ([{0}, {1}], [{1}, {0}])


def test_a_card_and_its_audio_as_two_resources_go_to_one_pod_and_the_audio_of_anothers_card_to_none(
    serving: Serving, node: Node, pods: Pods
) -> None:
    cards = {card.gpu: card for card in CARDS["gpus.test/WITH_AUDIO"]}
    owner = pods.run("owner", container("compute", WITH_AUDIO=1))
    taken = cards.pop(pods.look(owner, "compute").env["PCI_RESOURCE_GPUS_TEST_WITH_AUDIO"])
    node.wait_healthy({AUDIO: DEVICES[AUDIO] - {taken.audio}})

    # The kubelet asks for the two resources of a container in any order.
    for name in ("whole", "another"):
        pods.run(name, container("compute", WITH_AUDIO=1, WITH_AUDIO_ITS_AUDIO=1))
        seen = pods.look(name, "compute")
        card = cards.pop(seen.env["PCI_RESOURCE_GPUS_TEST_WITH_AUDIO"])
        assert seen.env["PCI_RESOURCE_GPUS_TEST_WITH_AUDIO_ITS_AUDIO"] == card.audio
        assert seen.nodes == nodes_of(card.group)


def allocate(node: Node, resource: str, *ids: str) -> wire.AllocateResponse:
    """Ask the plugin for devices as a kubelet would that knows no better."""
    socket = node.kubelet_dir / f"device-plugins/kubevirt-{resource.partition('/')[2]}.sock"
    asked = wire.ContainerAllocateRequest(devices_ids=ids)
    return call(
        socket,
        "/v1beta1.DevicePlugin/Allocate",
        wire.AllocateRequest(container_requests=[asked]),
        wire.AllocateResponse,
    )
