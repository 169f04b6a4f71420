"""Mediated devices: advertised before they exist, made when asked for, removed when nobody has them (G1-G3)."""

from __future__ import annotations

import errno
import os
from uuid import uuid4

import pytest

from launcherkit_plugin.model.config import VgpuRule
from launcherkit_plugin.model.device import NO_USAGE, Holder, Usage
from launcherkit_plugin.model.errors import NO_VGPU_ROOM, UNKNOWN_DEVICE, VGPU_NOT_MADE, WRONG_VGPU
from launcherkit_plugin.vgpu.mdev_slots import MdevSlot
from tests.plugin.vgpu.kernel import A2_4Q, A2_8Q, T4_1Q, T4_2Q, Kernel
from tests.plugin.vgpu.node import Node
from tests.support.errors import raises_code

CARD = "0000:01:00.0"
ONE, TWO = "nvidia.com/GRID_T4-1Q", "nvidia.com/GRID_T4-2Q"
DYNAMIC = (VgpuRule(("GRID T4-*",), mode="dynamic"),)
STATIC = (VgpuRule(("GRID_T4-1Q",)),)


@pytest.fixture
def kernel() -> Kernel:
    kernel = Kernel()
    kernel.card(CARD)
    return kernel


@pytest.fixture
def node(kernel: Kernel) -> Node:
    node = Node(kernel, mdevs=DYNAMIC)
    node.turn()
    return node


def refusing(number: int) -> OSError:
    return OSError(number, os.strerror(number))


# What is advertised


def test_slots_are_advertised_before_any_mdev_exists(node: Node) -> None:
    assert (len(node.healthy(ONE)), len(node.healthy(TWO))) == (4, 2)
    assert node.kernel.mdevs == {}


def test_a_slot_has_the_numa_node_of_its_card(kernel: Kernel) -> None:
    kernel.card("0000:02:00.0", numa=1)
    node = Node(kernel, mdevs=DYNAMIC)
    node.turn()
    assert sorted(device.numa_node or 0 for device in node.devices(ONE)) == [0] * 4 + [1] * 4


def test_the_first_one_fixes_the_type_of_its_card_until_it_is_empty(node: Node) -> None:
    first = node.healthy(ONE)[0]
    node.allocate(ONE, first)
    node.hold(ONE, first)
    node.turn()
    assert len(node.healthy(ONE)) == 4
    assert node.healthy(TWO) == []
    assert node.reasons(TWO) == {"other-type"}
    node.usage = Usage("pod-resources", {})
    node.turn()
    node.clock.now += 61
    node.turn()
    assert (len(node.healthy(ONE)), len(node.healthy(TWO))) == (4, 2)


def test_types_live_side_by_side_where_the_driver_lets_them(kernel: Kernel) -> None:
    kernel.card("0000:02:00.0", mixed=True)
    node = Node(kernel, mdevs=(VgpuRule(("GRID T4-*",), mode="dynamic", parents=("0000:02:*",)),))
    node.turn()
    node.allocate(TWO, node.healthy(TWO)[0])
    node.turn()
    assert (len(node.healthy(ONE)), len(node.healthy(TWO))) == (2, 2)


def test_the_ids_of_slots_stay_the_same_whatever_is_made(node: Node) -> None:
    before = {device.id for device in node.devices(ONE)}
    node.allocate(TWO, node.healthy(TWO)[0])
    node.turn()
    assert {device.id for device in node.devices(ONE)} == before


def test_a_driver_that_tells_the_most_keeps_slots_over_a_restart() -> None:
    kernel = Kernel()
    kernel.card(CARD, describe=True)
    node = Node(kernel, mdevs=DYNAMIC)
    node.turn()
    before = {device.id for device in node.devices(ONE)}
    node.allocate(TWO, node.healthy(TWO)[0])
    node.restart()
    node.turn()
    assert {device.id for device in node.devices(ONE)} == before
    assert node.healthy(ONE) == []


def test_what_others_have_made_takes_room_and_is_not_advertised_in_dynamic_mode(kernel: Kernel) -> None:
    foreign = str(uuid4())
    kernel.make(CARD, T4_1Q.id, foreign)
    node = Node(kernel, mdevs=DYNAMIC)
    node.turn()
    assert len(node.devices(ONE)) == 4
    assert len(node.healthy(ONE)) == 3
    assert foreign not in {device.id for device in node.devices(ONE)}
    assert node.reasons(ONE) == {"no-room"}


def test_static_mode_advertises_what_exists_whoever_made_it(kernel: Kernel) -> None:
    foreign = str(uuid4())
    kernel.make(CARD, T4_1Q.id, foreign)
    node = Node(kernel, mdevs=STATIC)
    node.turn()
    (device,) = node.devices(ONE)
    assert (device.id, device.healthy) == (foreign, True)
    assert device.groups == {kernel.facts().mdevs[foreign].iommu_group}
    node.clock.now += 1000
    node.turn()
    assert foreign in kernel.mdevs


def test_vfs_that_take_one_mdev_each_promise_no_more_than_their_card_can_hold() -> None:
    kernel = Kernel()
    kernel.card_of_mdev_vfs("0000:41:00.0", 16, (A2_4Q, A2_8Q), mib=16384)
    node = Node(kernel, mdevs=(VgpuRule(("nvidia-74*",), mode="dynamic"),))
    node.turn()
    four, eight = "nvidia.com/NVIDIA_A2-4Q", "nvidia.com/NVIDIA_A2-8Q"
    assert (len(node.devices(four)), len(node.healthy(four))) == (16, 4)
    assert (len(node.devices(eight)), len(node.healthy(eight))) == (16, 2)
    for device in node.healthy(four):
        node.allocate(four, device)
    node.turn()
    assert len(kernel.mdevs) == 4
    assert len(node.healthy(four)) == 4
    assert node.reasons(eight) == {"other-type"}


def test_until_usage_was_known_once_nothing_is_promised(kernel: Kernel) -> None:
    node = Node(kernel, mdevs=DYNAMIC)
    node.usage = NO_USAGE
    node.turn()
    assert node.healthy(ONE) == []
    assert node.reasons(ONE) == {"usage"}
    node.usage = Usage("checkpoint", {})
    node.turn()
    node.usage = NO_USAGE
    node.turn()
    assert len(node.healthy(ONE)) == 4


def test_an_mdev_without_its_node_is_unhealthy(node: Node) -> None:
    first = node.healthy(ONE)[0]
    node.allocate(ONE, first)
    kernel = node.kernel
    kernel.drop(kernel.node(first).removeprefix("/"))
    node.turn()
    assert node.reasons(ONE) == {"node"}


# Allocate


def test_a_container_gets_uuids_and_the_nodes_of_its_groups(node: Node) -> None:
    first, second = node.healthy(ONE)[:2]
    grant = node.allocate(ONE, second, first)
    assert grant.env == {"MDEV_PCI_RESOURCE_NVIDIA_COM_GRID_T4-1Q": f"{second},{first}"}
    assert grant.nodes == ("/dev/vfio/vfio", node.kernel.node(second), node.kernel.node(first))
    assert node.kernel.mdevs == {first: (CARD, T4_1Q.id), second: (CARD, T4_1Q.id)}


def test_the_same_slot_once_more_is_success(node: Node) -> None:
    first = node.healthy(ONE)[0]
    assert node.allocate(ONE, first) == node.allocate(ONE, first)
    assert node.recorded.counted == [("create", "done")]


def test_a_slot_has_the_same_uuid_after_a_restart_and_is_found_there(node: Node) -> None:
    first = node.healthy(ONE)[0]
    node.allocate(ONE, first)
    node.restart()
    node.turn()
    assert first in node.healthy(ONE)
    node.allocate(ONE, first)
    assert node.recorded.counted == [("create", "done")]


def test_no_room_is_reported_and_nothing_is_half_done(node: Node) -> None:
    one, two = node.healthy(TWO)
    node.kernel.make(CARD, T4_2Q.id, str(uuid4()))
    with raises_code(NO_VGPU_ROOM, match=f"{CARD} has no room for an mdev of type {T4_2Q.id}"):
        node.allocate(TWO, one, two)
    assert one not in node.kernel.mdevs
    assert two not in node.kernel.mdevs


def test_another_mdev_at_the_slots_uuid_is_an_error(node: Node) -> None:
    first = node.healthy(ONE)[0]
    node.kernel.make(CARD, T4_2Q.id, first)
    with raises_code(WRONG_VGPU, match=f"mdev {first} is of type {T4_2Q.id} on {CARD}"):
        node.allocate(ONE, first)


def test_a_slot_that_fails_is_offered_again_later(node: Node) -> None:
    def broken(path: str) -> None:
        raise refusing(errno.EIO)

    node.kernel.touched = broken
    with raises_code(VGPU_NOT_MADE, match="Input/output error"):
        node.allocate(ONE, node.healthy(ONE)[0])
    node.turn()
    assert node.reasons(ONE) == {"failed"}
    assert len(node.healthy(TWO)) == 2
    assert [event[:2] for event in node.recorded.events] == [("Warning", "VgpuLK731")]
    node.kernel.touched = lambda _: None
    node.clock.now += 11
    node.turn()
    node.allocate(ONE, node.healthy(ONE)[0])
    assert len(node.healthy(ONE)) == 4


def test_a_driver_that_does_nothing_is_reported(node: Node) -> None:
    node.kernel.make = lambda *_: None  # type: ignore[method-assign]
    with raises_code(VGPU_NOT_MADE, match="was requested, and there is none"):
        node.allocate(ONE, node.healthy(ONE)[0])


def test_static_mode_makes_nothing(kernel: Kernel) -> None:
    foreign = str(uuid4())
    kernel.make(CARD, T4_1Q.id, foreign)
    node = Node(kernel, mdevs=STATIC)
    node.turn()
    assert node.allocate(ONE, foreign).env == {"MDEV_PCI_RESOURCE_NVIDIA_COM_GRID_T4-1Q": foreign}
    kernel.unmake(foreign)
    with raises_code(UNKNOWN_DEVICE, match="no longer exists"):
        node.check(ONE, foreign)
    with raises_code(UNKNOWN_DEVICE, match="no longer exists"):
        node.allocate(ONE, foreign)
    assert kernel.mdevs == {}


def test_a_static_mdev_that_a_pod_has_and_somebody_removed_is_not_made_again(kernel: Kernel) -> None:
    """Neither one of others, nor one that has the UUID of a slot of ours."""
    foreign, ours = str(uuid4()), MdevSlot(CARD, T4_1Q.id, 0).uuid
    for uuid in (foreign, ours):
        kernel.make(CARD, T4_1Q.id, uuid)
    node = Node(kernel, mdevs=STATIC)
    node.hold(ONE, foreign, ours)
    node.turn()
    for uuid in (foreign, ours):
        kernel.unmake(uuid)
    assert node.work() == []
    assert not node.turn()
    assert kernel.mdevs == {}


def test_the_last_look_before_a_container_starts_makes_what_a_reboot_took(node: Node) -> None:
    first = node.healthy(ONE)[0]
    node.allocate(ONE, first)
    node.kernel.reboot()
    node.check(ONE, first)
    assert first in node.kernel.mdevs


# Release


def test_one_that_no_pod_has_goes_after_the_grace_time(node: Node) -> None:
    first = node.healthy(ONE)[0]
    node.allocate(ONE, first)
    node.hold(ONE, first)
    node.turn()
    node.usage = Usage("pod-resources", {})
    node.turn()
    node.clock.now += 59
    node.turn()
    assert first in node.kernel.mdevs
    node.clock.now += 1
    node.turn()
    assert node.kernel.mdevs == {}
    assert node.recorded.counted == [("create", "done"), ("remove", "done")]
    assert [event[:2] for event in node.recorded.events] == [("Normal", "VgpuMade"), ("Normal", "VgpuRemoved")]


def test_a_pod_that_the_kubelet_turned_away_leaves_nothing_behind(node: Node) -> None:
    node.allocate(ONE, node.healthy(ONE)[0])
    for _ in range(5):
        node.clock.now += 40
        node.turn()
    assert node.kernel.mdevs == {}


def test_one_that_a_pod_has_stays_whatever_was_restarted_and_whatever_it_is_called(node: Node) -> None:
    first = node.healthy(ONE)[0]
    node.allocate(ONE, first)
    node.hold("example.com/OLD-NAME", first, source="checkpoint")
    for _ in range(3):
        node.restart()
        node.turn()
        node.clock.now += 1000
        node.turn()
    assert first in node.kernel.mdevs
    assert node.kernel.taken == []


def test_with_no_source_readable_nothing_is_removed(node: Node) -> None:
    first = node.healthy(ONE)[0]
    node.allocate(ONE, first)
    node.restart()
    node.usage = NO_USAGE
    for _ in range(3):
        node.clock.now += 1000
        node.turn()
    assert first in node.kernel.mdevs


def test_one_that_is_open_stays_and_that_is_reported_once(node: Node) -> None:
    first = node.healthy(ONE)[0]
    node.allocate(ONE, first)
    node.restart()
    node.kernel.open.add(node.kernel.node(first))
    for _ in range(4):
        node.turn()
        node.clock.now += 61
    assert first in node.kernel.mdevs
    assert len([line for line in node.recorded.lines if "LK734" in line]) == 1
    node.kernel.open.clear()
    node.turn()
    assert node.kernel.mdevs == {}


def test_one_that_could_not_be_removed_is_tried_again_after_a_pause(node: Node) -> None:
    first = node.healthy(ONE)[0]
    node.allocate(ONE, first)
    node.restart()
    node.turn()

    def broken(path: str) -> None:
        raise refusing(errno.EIO)

    node.kernel.touched = broken
    node.clock.now += 61
    assert [bool(node.work()) for _ in range(2)] == [True, False]
    node.clock.now += 1000
    assert node.work()


def test_one_that_may_be_open_stays(node: Node) -> None:
    first = node.healthy(ONE)[0]
    node.allocate(ONE, first)
    node.kernel.is_open = lambda nodes: None  # type: ignore[assignment, method-assign, return-value]
    node.restart()
    node.turn()
    node.clock.now += 1000
    node.turn()
    assert first in node.kernel.mdevs
    assert any("it is unknown whether a process has" in line for line in node.recorded.lines)


def test_one_that_others_made_is_never_removed(node: Node) -> None:
    foreign = [str(uuid4()), "00000000-0000-5000-8000-000000000000"]
    for uuid in foreign:
        node.kernel.make(CARD, T4_1Q.id, uuid)
    node.turn()
    node.clock.now += 1000
    node.turn()
    assert sorted(node.kernel.mdevs) == sorted(foreign)


def test_what_a_pod_has_is_made_again_after_a_reboot(node: Node) -> None:
    one, two = node.healthy(ONE)[:2]
    node.allocate(ONE, one, two)
    node.hold(ONE, one, two, source="checkpoint")
    node.kernel.reboot()
    node.restart()
    node.turn()
    assert node.kernel.mdevs == {one: (CARD, T4_1Q.id), two: (CARD, T4_1Q.id)}
    assert node.healthy(TWO) == []


def test_what_a_pod_has_is_made_again_even_if_its_type_is_not_permitted_any_more(node: Node) -> None:
    one = node.healthy(ONE)[3]
    node.allocate(ONE, one)
    node.hold(ONE, one)
    node.config = node.config._replace(mdevs=(VgpuRule(("GRID T4-2Q",), mode="dynamic"),))
    node.kernel.reboot()
    node.restart()
    node.turn()
    assert one in node.kernel.mdevs


def test_what_nobody_has_makes_way_for_what_a_pod_has(node: Node) -> None:
    one, two = node.healthy(ONE)[0], node.healthy(TWO)[0]
    node.hold(ONE, one)
    node.kernel.make(CARD, T4_2Q.id, two)
    node.turn()
    assert node.kernel.mdevs == {one: (CARD, T4_1Q.id)}


def test_a_stopped_vms_mdev_goes_at_once_though_its_pod_is_still_there(node: Node) -> None:
    first, second = node.healthy(ONE)[:2]
    node.allocate(ONE, first, second)
    node.hold(ONE, first, second, pod="default/virt-launcher-vm-abcde")
    node.turn()
    node.stopped.mark("default/virt-launcher-vm-abcde", [first])
    node.turn()
    assert list(node.kernel.mdevs) == [second]
    node.turn()
    assert list(node.kernel.mdevs) == [second]


def test_a_stopped_vms_slot_that_went_to_another_pod_stays(node: Node) -> None:
    first = node.healthy(ONE)[0]
    node.allocate(ONE, first)
    node.stopped.mark("default/virt-launcher-vm-abcde", [first])
    node.hold(ONE, first, pod="default/virt-launcher-other-fghij")
    node.turn()
    node.clock.now += 1000
    node.turn()
    assert first in node.kernel.mdevs


# Identity


def test_uuids_depend_on_parent_type_slot_and_purpose_alone() -> None:
    assert MdevSlot(CARD, T4_1Q.id, 0).uuid == MdevSlot(CARD, T4_1Q.id, 0).uuid
    others = [
        MdevSlot(CARD, T4_1Q.id, 1),
        MdevSlot(CARD, T4_2Q.id, 0),
        MdevSlot("0000:02:00.0", T4_1Q.id, 0),
        MdevSlot(CARD, T4_1Q.id, 0, "layout"),
    ]
    assert len({MdevSlot(CARD, T4_1Q.id, 0).uuid, *(slot.uuid for slot in others)}) == 5


def test_a_slot_that_a_pod_has_under_another_name_is_not_given_again(node: Node) -> None:
    first, second = node.healthy(ONE)[:2]
    node.hold("example.com/OLD-NAME", first)
    node.turn()
    assert first not in node.healthy(ONE)
    assert second in node.healthy(ONE)
    assert node.reasons(ONE) == {"group-in-use"}


@pytest.mark.parametrize("doubtful", [False, True])
def test_a_pod_that_pod_resources_omits_keeps_its_vgpu(doubtful: bool) -> None:
    kernel = Kernel()
    kernel.card(CARD)
    node = Node(kernel, mdevs=[VgpuRule(("GRID T4-1Q",), mode="dynamic")])
    node.turn()
    (name,) = node.offers
    device = node.healthy(name)[0]
    node.allocate(name, device)
    found = {name: {device: Holder("uid:4d6f", "compute")}}
    node.usage = Usage("pod-resources", {}, found) if doubtful else Usage("pod-resources", found)
    for _ in range(5):
        node.clock.now += 1000
        node.turn()
    assert list(kernel.mdevs) == [device]
    node.usage = Usage("pod-resources", {})
    for _ in range(2):
        node.clock.now += 1000
        node.turn()
    assert kernel.mdevs == {}
