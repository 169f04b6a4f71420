"""Which devices a container should rather get: whole groups on one NUMA node (K3), vGPUs of cards in use (G1)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcherkit_plugin.allocation.allocator import Allocator, Offer
from launcherkit_plugin.allocation.preference import prefer, spread
from launcherkit_plugin.allocation.reservations import Reservations
from launcherkit_plugin.host.work_queue import WorkQueue
from launcherkit_plugin.model.config import VgpuConfig, VgpuRule
from launcherkit_plugin.model.device import Device, Usage
from launcherkit_plugin.vgpu.maker import Maker
from launcherkit_plugin.vgpu.providers import vgpus_of
from launcherkit_plugin.vgpu.writer import VgpuWriter
from tests.plugin.resources import CountedId, device
from tests.plugin.vgpu.kernel import A2_4Q, A2_8Q, Kernel
from tests.plugin.vgpu.node import Clock, name_of
from tests.support.waiting import PATIENCE


def known(*devices: Device) -> dict[str, Device]:
    return {each.id: each for each in devices}


def taken(devices: dict[str, Device], size: int, must: tuple[str, ...] = (), free: str = "") -> list[str]:
    return sorted(prefer(devices, list(free) or list(devices), must, size))


PAIR_AND_SINGLES = known(device("a", 1), device("b", 2), device("c", 2), device("d", 3))


def test_two_members_of_a_group_rather_than_one_of_each_group() -> None:
    assert taken(PAIR_AND_SINGLES, 2) == ["a", "d"] or taken(PAIR_AND_SINGLES, 2) == ["b", "c"]
    assert taken(known(device("a", 1), device("b", 2), device("c", 2)), 2) == ["b", "c"]


def test_one_device_is_taken_from_no_group_of_two() -> None:
    assert taken(PAIR_AND_SINGLES, 1) in (["a"], ["d"])
    assert taken(known(device("a", 1), device("b", 1), device("c", 2)), 1) == ["c"]


def test_what_the_kubelet_has_chosen_brings_its_group_member() -> None:
    assert taken(PAIR_AND_SINGLES, 2, must=("b",)) == ["b", "c"]


def test_groups_hang_together_through_a_third() -> None:
    chain = known(device("a", 1), device("b", 1, 2), device("c", 2), device("d", 3), device("e", 4))
    assert taken(chain, 2) == ["d", "e"]
    assert taken(chain, 3) == ["a", "b", "c"]


def test_one_numa_node_rather_than_two() -> None:
    nodes = known(device("a", 1, numa=0), device("b", 2, numa=1), device("c", 3, numa=1))
    assert taken(nodes, 2) == ["b", "c"]
    assert taken(nodes, 2, must=("c",)) == ["b", "c"]


def test_whole_groups_come_before_numa_nodes() -> None:
    nodes = known(device("a", 1, numa=0), device("b", 1, numa=1), device("c", 2, numa=0), device("d", 2, numa=1))
    assert taken(nodes, 2) == ["a", "b"]


def test_one_switch_rather_than_two_on_the_same_node() -> None:
    def on(name: str, group: int, *path: str) -> Device:
        return device(name, group, numa=0, path=path)

    switches = known(
        on("a", 1, "pci0000:00", "0000:00:01.0", "0000:01:08.0"),
        on("b", 2, "pci0000:00", "0000:00:02.0", "0000:02:08.0"),
        on("c", 3, "pci0000:00", "0000:00:02.0", "0000:02:09.0"),
    )
    assert taken(switches, 2) == ["b", "c"]


def test_few_numa_nodes_come_before_few_switches() -> None:
    one, other = ("pci0000:00", "one", ""), ("pci0000:00", "other", "")
    devices = known(
        device("c", 1, numa=0)._replace(path=one),
        device("b", 2, numa=0)._replace(path=other),
        device("a", 3, numa=1)._replace(path=one),
    )
    assert taken(devices, 2) == ["b", "c"]
    assert taken(devices, 2, must=("c",)) == ["b", "c"]


def test_the_lowest_ids_are_taken_where_nothing_else_tells() -> None:
    assert prefer(known(*(device(name, number) for number, name in enumerate("dbca"))), list("dbca"), [], 2) == [
        "a",
        "b",
    ]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        # In use (nothing is free of slot 0), with an existing vGPU, by how many are left, by name.
        ({"card": "b", "used": 1}, {"card": "a", "made": 1}),
        ({"card": "b", "used": 1, "free": 3}, {"card": "a", "free": 1}),
        ({"card": "b", "made": 1, "free": 3}, {"card": "a", "free": 2}),
        ({"card": "b", "free": 2}, {"card": "a", "free": 3}),
        ({"card": "a"}, {"card": "b"}),
    ],
)
def test_vgpus_are_taken_from_cards_in_this_order(first: dict[str, Any], second: dict[str, Any]) -> None:
    """G1: one rule after the other, each against all that come after it."""
    devices: dict[str, Device] = {}
    free: list[str] = []
    for card in (second, first):
        slots = [f"{card['card']}{number}" for number in range(card.get("used", 0) + card.get("free", 2))]
        for number, slot in enumerate(slots):
            devices[slot] = Device(slot, card=card["card"], made=number < card.get("made", 0))
        free += slots[card.get("used", 0) :]
    found = prefer(devices, free, [], len(free))
    assert [name[0] for name in found] == sorted([name[0] for name in found], key=lambda card: card != first["card"]), (
        "one card after the other"
    )
    assert found[0][0] == first["card"]


def test_of_a_card_existing_vgpus_are_taken_first_then_its_slots_in_order() -> None:
    devices = known(*(Device(f"x{number}", card="x", made=number == 2) for number in (3, 1, 2, 0)))
    assert prefer(devices, sorted(devices), [], 4) == ["x2", "x3", "x1", "x0"]


def test_only_what_is_free_is_taken() -> None:
    assert taken(PAIR_AND_SINGLES, 3, free="abd") == ["a", "b", "d"]


def test_too_few_are_better_than_none() -> None:
    assert taken(PAIR_AND_SINGLES, 9) == ["a", "b", "c", "d"]


def test_ids_that_are_not_known_any_more_do_no_harm() -> None:
    assert taken(PAIR_AND_SINGLES, 2, free="xa") == ["a", "x"]
    assert taken({}, 1, free="xy") == ["x"]


def test_the_answer_is_the_same_every_time() -> None:
    many = known(*(device(f"{number:03}", number // 2, numa=number % 4) for number in range(64)))
    first = prefer(many, sorted(many), [], 8)
    assert first == prefer(many, sorted(many, reverse=True), [], 8)
    assert len({many[name].numa_node for name in first}) <= 4


def test_thousands_of_devices_are_no_trouble() -> None:
    many = known(
        *(
            device(f"{number:05}", number, numa=number % 4, path=("pci", f"{number % 64}", f"{number}"))
            for number in range(4096)
        )
    )
    chosen = prefer(many, sorted(many), [], 64)
    assert len(chosen) == 64
    assert len({many[name].path[:-1] for name in chosen}) == 1


def test_what_would_be_refused_comes_last() -> None:
    pairs = known(device("a", 1), device("b", 1), device("c", 2), device("d", 2))
    assert prefer(pairs, ["b", "c", "d"], [], 1, blocked=["b"]) == ["c"]
    assert prefer(pairs, ["b", "c", "d"], [], 3, blocked=["b"]) == ["c", "d", "b"]
    assert prefer(pairs, ["b", "c", "d"], ["b"], 1, blocked=["b"]) == ["b"]
    vgpus = {key: Device(key, card=key[0], made=False) for key in ("a0", "a1", "b0", "b1")}
    assert prefer(vgpus, ["a0", "a1", "b0", "b1"], [], 2, blocked=["a0", "a1"]) == ["b0", "b1"]
    assert prefer(vgpus, ["a1", "b0"], ["b1"], 3, blocked=["a1"]) == ["b1", "b0", "a1"]
    replicas = ["a::0", "a::1", "b::0"]
    assert spread(replicas, replicas, [], 1, blocked=["a::0", "a::1"]) == ["b::0"]
    assert spread(replicas, replicas, [], 2, blocked=["a::0", "a::1"]) == ["b::0", "a::0"]


def test_a_preference_looks_at_each_device_a_few_times_however_many_there_are() -> None:
    def looks(count: int, size: int) -> float:
        ids = [CountedId(f"{number:06}") for number in range(count)]
        devices: dict[str, Device] = {
            name: device(name, number // 64, numa=number % 2) for number, name in enumerate(ids)
        }
        CountedId.looks = 0
        assert len(prefer(devices, ids, ids[: size // 2], size, blocked=ids[-count // 4 :])) == size
        return CountedId.looks / count

    assert looks(8192, 4096) <= 1.5 * looks(1024, 512)


def test_devices_of_one_large_group_are_looked_at_a_few_times_each() -> None:
    ids = [CountedId(f"{number:06}") for number in range(4096)]
    devices: dict[str, Device] = {name: device(name, 7) for name in ids}
    CountedId.looks = 0
    assert prefer(devices, ids, [], 3) == ids[:3]
    assert CountedId.looks <= 100 * len(ids)


DEVICES = st.lists(
    st.tuples(st.frozensets(st.integers(0, 5), max_size=2), st.sampled_from([None, 0, 1])), min_size=1, max_size=12
).map(lambda rows: known(*(device(f"d{n:02}", *groups, numa=numa) for n, (groups, numa) in enumerate(rows))))


@given(DEVICES, st.data())
def test_any_answer_has_the_size_the_musts_and_only_what_is_free(
    devices: dict[str, Device], data: st.DataObject
) -> None:
    free = data.draw(st.lists(st.sampled_from(sorted(devices)), unique=True))
    must = data.draw(st.lists(st.sampled_from(free), unique=True)) if free else []
    size = data.draw(st.integers(len(must), max(len(must), len(free))))
    chosen = prefer(devices, free, must, size)
    assert len(chosen) == len(set(chosen)) == min(size, len(free))
    assert set(must) <= set(chosen) <= set(free)


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
        writer = VgpuWriter(Maker(self.kernel, self.clock, self.clock.sleep), self.kernel.is_open)
        mdevs, vfs = (VgpuRule(TYPES, mode="dynamic"),), (VgpuRule(TYPES, mode="dynamic", prefix="PCI_RESOURCE"),)
        self.pools, _ = vgpus_of(VgpuConfig(mdevs=mdevs, vfs=vfs), name_of, writer, WorkQueue(stall=PATIENCE))
        self.allocator = Allocator(Reservations(), self.clock)
        self.given: set[str] = set()
        self.turn()

    def turn(self) -> None:
        usage = self.allocator.observe(Usage("pod-resources", {}), 0.0)
        facts = self.kernel.facts()
        offers = {
            found.name: Offer(found, provider)
            for provider in self.pools
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
        for gpu in {gpu.address: gpu for gpu in self.kernel.gpus.values()}.values():
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
