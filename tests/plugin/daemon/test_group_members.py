"""Devices of one IOMMU group never go to two pods (K3): what the kubelet tier has of a real kubelet, by the double."""

from __future__ import annotations

import pytest

from launcherkit_lab.kubelet import Kubelet, NotAdmitted
from tests.plugin.daemon.test_serve import BOTH, GPU, Node, kubelet, node

__all__ = ["kubelet", "node"]

MATES = ("0000:04:00.0", "0000:05:00.0")
AUDIO = "nvidia.com/AUDIO"
SOUND = {card: f"{card[:-1]}1" for card in BOTH}
"""The audio function of each card."""


def test_a_mate_of_what_a_pod_has_is_nobodys_until_the_pod_has_ended(node: Node, kubelet: Kubelet) -> None:
    mates = "nvidia.com/MATES"
    for mate in MATES:
        node.tree.function(mate, driver="vfio-pci", group=20)
    rule = {"name": mates, "select": [{"addresses": MATES}]}
    node.configure({"resources": [rule], "rescanSeconds": 1})
    with node.serving():
        kubelet.wait_for(mates, dict.fromkeys(MATES, True))
        (first,) = kubelet.admit("first", [("compute", mates, 1)])
        kubelet.wait_for(mates, {mate: mate in first.ids for mate in MATES})
        with pytest.raises(NotAdmitted, match="requested: 1, available: 0"):
            kubelet.admit("second", [("compute", mates, 1)])
        asked = kubelet.asked_for_pods
        kubelet.wait(lambda: kubelet.asked_for_pods > asked + 1, "the plugin to have seen the pod")
        kubelet.delete("first")
        kubelet.wait_for(mates, dict.fromkeys(MATES, True))
        kubelet.admit("second", [("compute", mates, 1)])


def test_a_pod_that_asks_for_two_gets_two_of_one_numa_node(node: Node, kubelet: Kubelet) -> None:
    node.tree.card("0000:03:00", group=12, numa=0)
    node.tree.card("0000:04:00", group=13, numa=1)
    with node.serving():
        kubelet.wait_for(GPU, BOTH | {"0000:03:00.0": True, "0000:04:00.0": True})
        pods = [kubelet.admit(name, [("compute", GPU, 2)]) for name in ("near", "far")]
        near, far = ({kubelet.topology(GPU)[device] for device in holding.ids} for (holding,) in pods)
        assert sorted([near, far], key=sorted) == [{0}, {1}]


@pytest.mark.parametrize("first", [GPU, AUDIO])
def test_a_card_and_its_audio_as_two_resources_go_to_one_container_in_any_order(
    node: Node, kubelet: Kubelet, first: str
) -> None:
    audio = {"name": AUDIO, "companion": True, "select": [{"addresses": [*SOUND.values()]}]}
    cards = {"name": GPU, "select": [{"addresses": [*BOTH]}]}
    node.configure({"resources": [audio, cards], "rescanSeconds": 1})
    last = max(BOTH)  # a kubelet without a preference would begin with the first
    (asked, its), (then, wanted) = [(GPU, last), (AUDIO, SOUND[last])][:: 1 if first == GPU else -1]
    with node.serving():
        kubelet.wait_for(GPU, BOTH)
        kubelet.wait_for(AUDIO, dict.fromkeys(SOUND.values(), True))
        kubelet.call_allocate(asked, [its])
        (holding,) = kubelet.admit("pod", [("compute", then, 1)])
        assert holding.ids == (wanted,)
