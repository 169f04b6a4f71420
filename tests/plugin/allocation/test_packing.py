"""vGPUs are packed onto as few cards as can be, so that the others stay free for other types (G1)."""

from __future__ import annotations

import asyncio

import pytest

from launcherkit_plugin.allocation.allocator import Allocator, Offer
from launcherkit_plugin.allocation.reservations import Reservations
from launcherkit_plugin.host.guarded import Guarded
from launcherkit_plugin.model.config import MdevRule, VgpuConfig, VgpuVfRule
from launcherkit_plugin.model.usage import Usage
from launcherkit_plugin.vgpu.maker import Maker
from launcherkit_plugin.vgpu.providers import vgpu_parts
from launcherkit_plugin.vgpu.writer import Changes
from tests.plugin.vgpu.kernel import A2_4Q, A2_8Q, Kernel
from tests.plugin.vgpu.node import Clock, name_of

FOUR, EIGHT = "nvidia.com/NVIDIA_A2-4Q", "nvidia.com/NVIDIA_A2-8Q"
TYPES = ("NVIDIA A2-4Q", "NVIDIA A2-8Q")


class Node:
    """Three cards, each of which is of one type once it has a vGPU."""

    def __init__(self, kind: str) -> None:
        self.kernel, self.clock = Kernel(), Clock()
        for number in (1, 2, 3):
            if kind == "mdev":
                self.kernel.card(f"0000:0{number}:00.0", [A2_4Q, A2_8Q], mib=16384)
            else:
                self.kernel.card_of_vfs(f"0000:0{number}:00.0", 6, [A2_4Q, A2_8Q], mib=16384)
        changes = Changes(Maker(self.kernel, self.clock, self.clock.sleep), self.kernel.is_open)
        mdevs, vfs = (MdevRule(TYPES, mode="dynamic"),), (VgpuVfRule(TYPES, mode="dynamic"),)
        self.parts = vgpu_parts(VgpuConfig(mdevs, vfs), name_of, changes, Guarded())
        self.allocator = Allocator(Reservations(), self.clock)
        self.given: set[str] = set()
        self.turn()

    def turn(self) -> None:
        usage = self.allocator.saw(Usage("pod-resources", {}), 0.0)
        facts = self.kernel.facts()
        offers = {
            found.name: Offer(found, provider)
            for provider in self.parts.providers
            for found in provider.resources(facts, usage, self.clock.now)
        }
        self.offers = self.allocator.advertise(offers, facts)

    def start_pod(self, resource: str, number: int = 1) -> None:
        """As the kubelet does, with what the plugin prefers; no turn of the daemon comes between."""
        devices = self.offers[resource].resource.devices.values()
        free = sorted(device.id for device in devices if device.healthy and device.id not in self.given)
        chosen = self.allocator.prefer(resource, free, [], number)
        assert len(chosen) == number
        self.given.update(chosen)
        asyncio.run(self.allocator.allocate(resource, [chosen]))

    def cards(self) -> dict[str, list[str]]:
        """The types of what was made, by card."""
        found: dict[str, list[str]] = {}
        for gpu in {gpu.address: gpu for gpu in self.kernel._gpus.values()}.values():
            if gpu.given:
                found[gpu.address] = sorted(kind.name[-2:] for kind in gpu.given.values())
        return found


@pytest.mark.parametrize("kind", ["mdev", "vf"])
@pytest.mark.parametrize("turns", [True, False])
def test_pods_of_two_types_leave_a_card_free(kind: str, turns: bool) -> None:
    node = Node(kind)
    for resource in (FOUR, FOUR, FOUR, EIGHT, EIGHT, FOUR):
        node.start_pod(resource)
        if turns or resource == EIGHT:
            node.turn()
        if resource == FOUR and len(node.given) == 3:
            node.turn()  # so that what the other type can't have is known
    assert node.cards() == {"0000:01:00.0": ["4Q"] * 4, "0000:02:00.0": ["8Q"] * 2}


@pytest.mark.parametrize("kind", ["mdev", "vf"])
def test_a_pod_of_several_gets_them_from_one_card_where_they_fit(kind: str) -> None:
    node = Node(kind)
    node.start_pod(FOUR)
    node.turn()
    node.start_pod(FOUR, 3)
    node.turn()
    assert node.cards() == {"0000:01:00.0": ["4Q"] * 4}
    node.start_pod(FOUR, 2)
    assert list(node.cards()) == ["0000:01:00.0", "0000:02:00.0"]
