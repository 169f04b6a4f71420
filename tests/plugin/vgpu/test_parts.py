"""The small parts of the vGPU providers: identity, names of types, grace, failures, nodes for the container runtime."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from uuid import UUID, uuid5

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from launcherkit_plugin.devices.cdi import CdiFiles, GrantedNodes
from launcherkit_plugin.model.config import VgpuRule
from launcherkit_plugin.model.device import Holder, Resource, Usage
from launcherkit_plugin.model.grace import due, idle_since
from launcherkit_plugin.vgpu.cards import cards, is_type, rule_for
from launcherkit_plugin.vgpu.lifecycle import Stopped
from launcherkit_plugin.vgpu.mdev_slots import MAX, MdevSlot, Purpose, find_slot, slot_of
from tests.plugin.vgpu.kernel import A2_4Q, Kernel

names = st.text(st.characters(codec="ascii", exclude_characters="/\0"), min_size=1, max_size=12)
slots = st.builds(MdevSlot, names, names, st.integers(0, MAX - 1), st.sampled_from(["pods", "layout"]))


@settings(deadline=None)  # the first look for a UUID goes through all slots
@given(slots)
def test_a_slot_is_found_by_the_uuid_that_follows_from_it(slot: MdevSlot) -> None:
    assert slot_of(slot.uuid, slot.parent, slot.type_id) == slot
    assert find_slot(slot.uuid, [("other", slot.type_id), (slot.parent, slot.type_id)]) == slot
    assert UUID(slot.uuid).version == 5


@settings(deadline=None)
@given(slots, slots)
def test_two_slots_have_two_uuids(one: MdevSlot, other: MdevSlot) -> None:
    assert (one.uuid == other.uuid) == (one == other)


@settings(deadline=None, max_examples=10)  # all slots are looked at each time
@given(st.uuids(), names)
def test_what_others_make_is_no_slot(uuid: UUID, parent: str) -> None:
    assert slot_of(str(uuid), parent, "nvidia-222") is None
    assert slot_of(str(uuid5(uuid, "x")), parent, "nvidia-222") is None


@pytest.mark.parametrize("purpose", ["pods", "layout"])
def test_the_uuids_of_this_version_are_those_of_the_next(purpose: Purpose) -> None:
    """A change here would leave every node with mdevs that nobody knows any more."""
    known: Mapping[str, str] = {
        "pods": "5bd2c153-b1da-5f7e-b987-472e00a4b0ad",
        "layout": "6f07cb98-4370-5014-8bd8-18c8c9074a1e",
    }
    assert MdevSlot("0000:01:00.0", "nvidia-222", 0, purpose).uuid == known[purpose]


@pytest.mark.parametrize("pattern", ["GRID T4-1Q", "GRID_T4-1Q", "nvidia-222", "GRID*", "nvidia-22?", "GRID  T4-1Q"])
def test_a_type_goes_by_its_name_or_id_blanks_and_underscores_alike(pattern: str) -> None:
    assert is_type(pattern, "nvidia-222", "GRID T4-1Q")
    assert not is_type(pattern, "i915-GVTg_V5_4", None)


def test_the_first_rule_counts_and_parents_go_by_their_card_too() -> None:
    rules = (
        VgpuRule(("nvidia-222",), name="nvidia.com/A", parents=("0000:02:*",)),
        VgpuRule(("nvidia-*",), name="nvidia.com/B"),
    )
    assert rule_for(rules, ["0000:02:00.4", "0000:02:00.0"], "nvidia-222", None) is rules[0]
    assert rule_for(rules, ["0000:01:00.0"], "nvidia-222", None) is rules[1]
    assert rule_for(rules, ["0000:01:00.0"], "i915-GVTg_V5_4", None) is None


def test_cards_come_by_address_and_vfs_belong_to_theirs() -> None:
    kernel = Kernel()
    kernel.card_of_vfs("0000:41:00.0", 3, (A2_4Q,), mib=16384)
    kernel.card_of_mdev_vfs("0000:21:00.0", 2, (A2_4Q,), mib=16384)
    kernel.card("0000:01:00.0")
    found = cards(kernel.facts())
    assert [card.name for card in found] == ["0000:01:00.0", "0000:21:00.0", "0000:41:00.0"]
    assert [(len(card.parents), len(card.vfs)) for card in found] == [(1, 0), (2, 0), (0, 3)]


def test_the_grace_time_begins_when_one_is_first_seen_with_nobody() -> None:
    idle = idle_since({}, ["a", "b"], {"b"}, 100.0)
    assert idle == {"a": 100.0}
    idle = idle_since(idle, ["a", "b"], (), 130.0)
    assert idle == {"a": 100.0, "b": 130.0}
    assert due(idle, 60.0, 160.0) == ["a"]
    assert due(idle, 60.0, 161.0, {"b"}) == ["a", "b"]
    assert idle_since(idle, ["a"], {"a"}, 170.0) == {}


def test_one_is_held_under_whatever_name() -> None:
    usage = Usage("checkpoint", {"x/A": {"1": Holder("uid:1")}, "x/B": {"2": Holder("uid:2")}})
    assert usage.held_ids == {"1", "2"}


def test_a_stopped_vms_devices_are_free_until_they_are_another_pods() -> None:
    stopped = Stopped()
    stopped.mark("default/one", ["1", "2"])
    mine, other = Holder("default/one"), Holder("default/two")
    usage, free = stopped.without(Usage("pod-resources", {"x/A": {"1": mine, "2": other, "3": mine}}))
    assert (dict(usage.held["x/A"]), set(free)) == ({"2": other, "3": mine}, {"1"})
    unknown = Usage("none", {"x/A": {"1": mine}})
    assert stopped.without(unknown) == (unknown, frozenset())
    usage, free = stopped.without(Usage("pod-resources", {"x/A": {"1": Holder("")}}))
    assert (dict(usage.held["x/A"]), free) == ({"1": Holder("")}, frozenset())


def test_the_container_runtime_finds_what_is_there_and_what_was_just_given(tmp_path: Path) -> None:
    nodes = GrantedNodes(CdiFiles(str(tmp_path), "mdev"), cdi_only=True)

    def written() -> set[str]:
        (file,) = tmp_path.iterdir()
        return {device["name"] for device in json.loads(file.read_text())["devices"]}

    grant = nodes.grant(
        Resource("x/A", "X_A", {}), {"1": ("/dev/vfio/vfio", "/dev/vfio/1"), "2": ("/dev/vfio/vfio", "/dev/vfio/2")}
    )
    assert grant.env == {"X_A": "1,2"}
    assert grant.nodes == ()
    assert grant.cdi == ("launcherkit.io/vfio=1", "launcherkit.io/vfio=2")
    nodes.replace({"x/A": {"3": ("/dev/vfio/3",)}}, held={"1"})  # by a look that was older than the grant
    assert written() == {"1", "3"}
