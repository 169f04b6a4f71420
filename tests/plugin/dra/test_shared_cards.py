"""A card of which several claims have a share at once (KEP-5075): what is published, prepared, refused and left."""

from __future__ import annotations

import asyncio
import itertools
import json
import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from launcherkit.model.host import NO_FACTS
from launcherkit_plugin.binding.in_use import by_address
from launcherkit_plugin.daemon.loop import held_groups
from launcherkit_plugin.devices.grace_list import GONE_SECONDS, GraceList
from launcherkit_plugin.dra.admin_access import admin_states
from launcherkit_plugin.dra.claim_record import ClaimRecord, PreparedDevice
from launcherkit_plugin.dra.counters import CounterUse
from launcherkit_plugin.dra.inventory import DraDevice, inventory
from launcherkit_plugin.dra.slices import SHARES, slices
from launcherkit_plugin.model.config import ContainerUse, Sharing
from launcherkit_plugin.model.device import NO_USAGE, ClaimRef, Desired, Device, Holder, Resource, Usage, share_of
from launcherkit_plugin.model.errors import (
    BAD_CLAIM_RECORD,
    BAD_RESOURCE_CLAIM,
    CARD_IN_OTHER_USE,
    DEVICE_TAKEN,
    SHARED_REQUEST_TOO_LARGE,
)
from tests.plugin.binding.test_uses import NAME
from tests.plugin.binding.test_uses import RULE as ON_DEMAND
from tests.plugin.binding.test_uses import Node as Uses
from tests.plugin.dra.desk import CARDS, DRIVER, REF
from tests.plugin.dra.test_card_uses import CARD, CONTAINER, RULES, UUID, VM, Desk
from tests.plugin.dra.test_prepare import kill_at, survives
from tests.plugin.resources import Node
from tests.support.errors import raises_code

OTHER, THIRD = ClaimRef("ml", "train", "u-8"), ClaimRef("ml", "serve", "u-9")
SHARED = RULES._replace(sharing=Sharing(3))


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path, {0x03: SHARED})


def result(share: str = "", request: str = "gpu", device: str = CONTAINER, **more: Any) -> dict[str, Any]:
    share_id = {"shareID": share} if share else {}
    return {"request": request, "driver": DRIVER, "pool": "node-1", "device": device, **share_id, **more}


def allocate(desk: Desk, ref: ClaimRef, *results: dict[str, Any]) -> None:
    """Let the API server have a claim as the scheduler has allocated it."""
    desk.allocate(ref)
    desk.claims[str(ref)]["status"]["allocation"]["devices"]["results"] = list(results)


def prepare(desk: Desk, ref: ClaimRef, share: str) -> tuple[PreparedDevice, ...]:
    allocate(desk, ref, result(share))
    return desk.prepare(ref)


def taints(desk: Desk) -> dict[str, list[str]]:
    """Of the first card's devices, as they are published in the next turn."""
    desk.look()
    return {name: [taint.key for taint in desk.published[name].taints] for name in (VM, CONTAINER)}


TWO_HOLD = {f"{UUID}::s-1": "ResourceClaim vms/gpu", f"{UUID}::s-2": "ResourceClaim ml/train"}


# What is published


def test_a_card_is_published_once_with_as_many_shares_as_there_are_replicas(desk: Desk) -> None:
    specs = slices([desk.published[CONTAINER], desk.published[VM]], DRIVER)
    container, vm = (device for spec in specs for device in spec.get("devices", ()))
    assert container["allowMultipleAllocations"] is True
    policy = {"default": "1", "validRange": {"min": "1", "max": "3", "step": "1"}}
    assert container["capacity"] == {"launcherkit.io/shares": {"value": "3", "requestPolicy": policy}}
    assert vm.keys().isdisjoint({"allowMultipleAllocations"})
    assert "launcherkit.io/shares" not in vm["capacity"]
    assert container["consumesCounters"] == vm["consumesCounters"], "a VM can't have it beside them"
    names = Counter(device.name for device in desk.published.values())
    assert set(names.values()) == {1}


def test_where_a_request_may_have_one_share_it_can_not_take_more(tmp_path: Path) -> None:
    desk = Desk(tmp_path, {0x03: RULES._replace(sharing=Sharing(1024, one_a_request=True))})
    (device,) = slices([desk.published[CONTAINER]], DRIVER)[-1]["devices"]
    capacity = device["capacity"][SHARES]
    assert (capacity["value"], capacity["requestPolicy"]["validRange"]["max"]) == ("1Ki", "1")
    allocate(desk, REF, result("s-1"), result("s-2"))
    with raises_code(SHARED_REQUEST_TOO_LARGE, match="requests 2 of it"):
        desk.prepare()


def test_a_card_that_is_not_shared_is_written_without_a_word_of_shares(tmp_path: Path) -> None:
    desk = Desk(tmp_path, {0x03: RULES})
    (device,) = slices([desk.published[CONTAINER]], DRIVER)[-1]["devices"]
    assert device.keys().isdisjoint({"allowMultipleAllocations", "capacity"})


# What claims get


def test_each_claim_has_its_own_share_and_the_same_card(desk: Desk) -> None:
    (one,), (two,) = prepare(desk, REF, "s-1"), prepare(desk, OTHER, "s-2")
    assert (one.share_id, one.cdi) == ("s-1", (f"{DRIVER}/claim=u-1_{CONTAINER}_s-1",))
    assert (two.share_id, two.cdi) == ("s-2", (f"{DRIVER}/claim=u-8_{CONTAINER}_s-2",))
    assert desk.held() == TWO_HOLD
    for uid, share in (("u-1", "s-1"), ("u-8", "s-2")):
        (device,) = desk.cdi(f"{DRIVER}_{uid}.json")["devices"]
        assert device["name"] == f"{uid}_{CONTAINER}_{share}"
        assert device["containerEdits"]["env"] == [f"NVIDIA_VISIBLE_DEVICES={UUID}"]
        assert not device["containerEdits"]["deviceNodes"]


def test_by_nodes_each_claim_has_those_of_the_card(tmp_path: Path) -> None:
    desk = Desk(tmp_path, {0x03: SHARED._replace(container=ContainerUse("nodes", ("/dev/nvidiactl",)))})
    prepare(desk, REF, "s-1")
    allocate(desk, OTHER, result("s-2"), result("s-3"))
    desk.prepare(OTHER)
    documents = [desk.cdi(f"{DRIVER}_{uid}.json") for uid in ("u-1", "u-8")]
    nodes = [
        [node["path"] for node in device["containerEdits"]["deviceNodes"]]
        for document in documents
        for device in document["devices"]
    ]
    assert nodes == [["/dev/nvidia3", "/dev/nvidiactl"]] * 3
    assert desk.held().keys() == {f"{CARD}::s-1", f"{CARD}::s-2", f"{CARD}::s-3"}


def test_two_shares_in_one_request_are_one_card_in_the_container(desk: Desk) -> None:
    allocate(desk, REF, result("s-1"), result("s-2"))
    first = desk.prepare()
    assert [device.share_id for device in first] == ["s-1", "s-2"]
    devices = desk.cdi(f"{DRIVER}_u-1.json")["devices"]
    assert [device["containerEdits"]["env"] for device in devices] == [[f"NVIDIA_VISIBLE_DEVICES={UUID}"]] * 2
    kill_at(desk, 0)
    assert desk.prepare() == first, "no file is touched"


def test_metadata_name_the_share_by_an_attribute(desk: Desk) -> None:
    prepare(desk, REF, "s-1")
    (path,) = Path(desk.places.metadata).rglob("metadata.json")
    (request,) = json.loads(path.read_text().splitlines()[0])["requests"]
    (device,) = request["devices"]
    assert device["name"] == CONTAINER
    assert device["attributes"]["shareID"] == {"string": "s-1"}
    assert "shareID" not in desk.published[CONTAINER].attributes


def test_a_share_can_be_prepared_twice_and_ends_alone(desk: Desk) -> None:
    first = prepare(desk, REF, "s-1")
    prepare(desk, OTHER, "s-2")
    kill_at(desk, 0)
    assert desk.prepare() == first, "no file is touched"
    desk.step = str
    assert desk.held() == TWO_HOLD
    desk.unprepare()
    assert desk.held() == {f"{UUID}::s-2": "ResourceClaim ml/train"}
    assert [file for file in desk.files() if "u-1" in file or "vms_gpu" in file] == []
    assert desk.prepare(OTHER)
    desk.unprepare(OTHER)
    assert (desk.files(), desk.held()) == ([], {})


def test_a_claim_that_was_allocated_another_share_since_has_that_one(desk: Desk) -> None:
    prepare(desk, REF, "s-1")
    prepare(desk, OTHER, "s-2")
    prepare(desk, REF, "s-3")
    assert desk.held() == {f"{UUID}::s-3": "ResourceClaim vms/gpu", f"{UUID}::s-2": "ResourceClaim ml/train"}


@pytest.mark.parametrize("number", range(4))
def test_a_prepare_that_is_killed_anywhere_leaves_the_other_share(desk: Desk, number: int) -> None:
    prepare(desk, OTHER, "s-2")
    files = desk.files()
    allocate(desk, REF, result("s-1"))
    kill_at(desk, number)
    done = survives(desk, desk.prepare)
    assert done == (number == 3)
    assert desk.files() == files or done
    assert desk.prepare()
    assert desk.held() == TWO_HOLD


@pytest.mark.parametrize("number", range(3))
def test_an_unprepare_that_is_killed_anywhere_leaves_the_other_share(desk: Desk, number: int) -> None:
    prepare(desk, OTHER, "s-2")
    prepare(desk, REF, "s-1")
    kill_at(desk, number)
    assert not survives(desk, desk.unprepare)
    assert desk.held() == TWO_HOLD
    desk.unprepare()
    assert desk.held() == {f"{UUID}::s-2": "ResourceClaim ml/train"}
    assert desk.prepare(OTHER)


def test_a_share_without_the_name_of_one_is_refused(desk: Desk) -> None:
    allocate(desk, REF, result() | {"shareID": "a share: 1"})
    with raises_code(BAD_RESOURCE_CLAIM, match=r"shareID: 'a share: 1' is not a UID"):
        desk.prepare()


# What excludes what


def test_a_share_is_in_the_way_of_a_vm_and_of_no_other_share(tmp_path: Path) -> None:
    node = Uses(tmp_path, ON_DEMAND._replace(dra=True, with_kata=False, sharing=Sharing(2)))
    node.turn()
    (uuid,) = node.seen[NAME["container"]]
    one, other = Holder("", claim=REF), Holder("", claim=OTHER)

    def found() -> dict[str, list[str]]:
        published = inventory(node.resources, node.look())
        return {each.name: [taint.key for taint in each.taints] for each in published}

    async def claiming(holder: Holder, name: str, key: str) -> None:
        async with node.allocator.claiming(holder, [Desired(name, [key])]):
            pass

    assert found() == {VM: [], CONTAINER: []}
    held = {share_of(uuid, "s-1"): one}
    node.allocator.claimed(DRIVER, {NAME["container"]: held})
    node.turn(1)
    assert found() == {VM: ["launcherkit.io/other-use"], CONTAINER: []}
    with raises_code(CARD_IN_OTHER_USE, match="ResourceClaim vms/gpu has it"):
        asyncio.run(claiming(other, NAME["vm"], CARD))
    asyncio.run(claiming(other, NAME["container"], share_of(uuid, "s-2")))
    node.allocator.claimed(DRIVER, {NAME["container"]: held | {share_of(uuid, "s-2"): other}})
    node.turn(2)
    assert found() == {VM: ["launcherkit.io/other-use"], CONTAINER: []}
    node.allocator.claimed(DRIVER, {NAME["container"]: {share_of(uuid, "s-2"): other}})
    node.turn(3)
    assert found()[VM] == ["launcherkit.io/other-use"], "one is left"
    node.allocator.claimed(DRIVER, {})
    node.turn(4)
    assert found() == {VM: [], CONTAINER: []}
    node.allocator.claimed(DRIVER, {NAME["vm"]: {CARD: one}})
    node.turn(5)
    with raises_code(CARD_IN_OTHER_USE):
        asyncio.run(claiming(other, NAME["container"], share_of(uuid, "s-2")))


def test_a_whole_card_is_not_given_beside_its_shares_nor_a_share_beside_it(desk: Desk) -> None:
    prepare(desk, REF, "s-1")
    allocate(desk, OTHER, result())
    with raises_code(CARD_IN_OTHER_USE, match="ResourceClaim vms/gpu has it as nvidia.com/GPU-container"):
        desk.prepare(OTHER)
    desk.unprepare()
    desk.prepare(OTHER)  # an allocation of before the rule had `sharing`
    assert desk.held() == {UUID: "ResourceClaim ml/train"}
    with raises_code(CARD_IN_OTHER_USE, match="ResourceClaim ml/train has it"):
        prepare(desk, REF, "s-1")
    desk.look()
    with raises_code(CARD_IN_OTHER_USE, match="ResourceClaim ml/train has it"):
        desk.prepare()


def test_a_share_of_another_claim_is_refused(desk: Desk) -> None:
    prepare(desk, REF, "s-1")
    with raises_code(DEVICE_TAKEN, match=f"{UUID}::s-1 can't be prepared"):
        prepare(desk, OTHER, "s-1")


def test_a_card_for_vms_has_no_shares_whatever_a_claim_says(desk: Desk) -> None:
    second = "pci-0000-02-00-0"
    allocate(desk, REF, result("s-1", device=second))
    desk.prepare()
    assert list(desk.held()) == [f"{CARDS[1]}.0"]
    allocate(desk, OTHER, result("s-2", device=second))
    with raises_code(DEVICE_TAKEN):
        desk.prepare(OTHER)


def test_what_was_a_share_keeps_the_card_from_others_when_the_rule_has_no_sharing_any_more(desk: Desk) -> None:
    prepare(desk, REF, "s-1")
    desk.node = Node(desk.tree, {0x03: RULES})
    desk.restart()
    assert taints(desk)[CONTAINER] == ["launcherkit.io/other-use"]
    assert desk.prepare()
    allocate(desk, OTHER, result())
    with raises_code(CARD_IN_OTHER_USE, match="ResourceClaim vms/gpu has it"):
        desk.prepare(OTHER)
    desk.unprepare()
    assert desk.prepare(OTHER)


# What is left of it


RECORD = "claims/u-1.json"


def broken(desk: Desk) -> None:
    """The record of the first claim breaks, and another process starts."""
    Path(desk.places.data, RECORD).write_text("")
    desk.restart()
    desk.preparer.held()


def test_a_broken_record_holds_its_own_share_alone(desk: Desk) -> None:
    prepare(desk, REF, "s-1")
    broken(desk)
    assert desk.held() == {f"{UUID}::s-1": "ResourceClaim with the UID u-1"}
    prepare(desk, OTHER, "s-2")
    with raises_code(BAD_CLAIM_RECORD):
        prepare(desk, THIRD, "s-1")
    assert desk.prepare()
    assert desk.held() == TWO_HOLD


def test_a_broken_record_of_the_whole_card_holds_it_from_all_shares(desk: Desk) -> None:
    allocate(desk, REF, result())
    desk.prepare()
    broken(desk)
    with raises_code(BAD_CLAIM_RECORD):
        prepare(desk, OTHER, "s-2")


def test_a_share_whose_record_is_broken_is_its_claims_again_whatever_is_wrong_with_others(desk: Desk) -> None:
    prepare(desk, OTHER, "s-2")
    prepare(desk, REF, "s-1")
    Path(desk.places.data, "claims/u-8.json").write_text("")
    Path(desk.places.of_claim("u-8")).write_text("{")
    for path in Path(desk.places.metadata).rglob("ml_train/*/metadata.json"):
        path.write_text("{")
    broken(desk)
    assert not desk.allocator.usage().known
    desk.prepare()
    with raises_code(BAD_CLAIM_RECORD):
        prepare(desk, THIRD, "s-3")


def test_its_metadata_tell_the_share_where_the_cdi_file_is_gone(desk: Desk) -> None:
    prepare(desk, REF, "s-1")
    Path(desk.places.of_claim("u-1")).unlink()
    broken(desk)
    assert desk.held() == {f"{UUID}::s-1": "ResourceClaim with the UID u-1"}
    prepare(desk, OTHER, "s-2")


def test_metadata_of_another_share_are_written_again(desk: Desk) -> None:
    prepare(desk, REF, "s-1")
    (path,) = Path(desk.places.metadata).rglob("metadata.json")
    before = path.read_text()
    path.write_text(before.replace("s-1", "s-7"))
    desk.prepare()
    assert path.read_text() == before


def test_who_had_a_share_before_the_boot_keeps_it_beside_others_and_not_beside_the_whole_card(desk: Desk) -> None:
    prepare(desk, REF, "s-1")
    desk.boot = "boot-2"
    desk.restart()
    prepare(desk, OTHER, "s-2")
    assert desk.held() == TWO_HOLD
    desk.unprepare(OTHER)
    allocate(desk, THIRD, result())
    desk.prepare(THIRD)
    assert desk.held() == {UUID: "ResourceClaim ml/serve"}


# Who has it


def test_all_holders_of_a_card_are_named(desk: Desk) -> None:
    prepare(desk, REF, "s-1")
    prepare(desk, OTHER, "s-2")
    usage = desk.allocator.usage()
    at_card = by_address(usage, {UUID: CARD})
    assert sorted(str(holder) for held in at_card.held.values() for holder in held.values()) == [
        "ResourceClaim ml/train",
        "ResourceClaim vms/gpu",
    ]
    looking = PreparedDevice("look", "node-1", CONTAINER, "nvidia.com/GPU-container", UUID, (), admin=True)
    states = admin_states(ClaimRecord(THIRD, (looking,), ""), {}, usage, DRIVER)
    (device,) = json.loads(states["look"])["devices"]
    assert device["holder"] == "ResourceClaim vms/gpu, ResourceClaim ml/train"


def test_a_card_that_is_gone_stays_listed_while_somebody_has_a_share_of_it() -> None:
    grace, name, gone = GraceList(), "nvidia.com/GPU-container", {UUID: Device(UUID)}
    grace.keep({name: gone}, NO_FACTS, NO_USAGE, 0.0)
    for now, held in ((1.0, {}), (GONE_SECONDS * 2, {f"{UUID}::s-1": Holder("", claim=REF)}), (GONE_SECONDS * 2, {})):
        listed: dict[str, dict[str, Device]] = {}
        grace.keep(listed, NO_FACTS, Usage("pod-resources", {name: held}), now)
        assert list(listed.get(name, ())) == ([UUID] if held or now == 1.0 else [])


def test_the_group_of_a_card_is_held_while_somebody_has_a_share() -> None:
    device = Device(UUID, groups=frozenset({7}))
    resources = {"a/C": Resource("a/C", "V", {UUID: device, "GPU-2": Device("GPU-2", groups=frozenset({8}))}, dra=True)}
    assert held_groups(resources, Usage("pod-resources", {"a/C": {f"{UUID}::s-1": Holder("", claim=REF)}})) == {7}


# What fits


def fits(asked: Sequence[int], cards: int, shares: int) -> bool:
    """Whether claims for so many shares each can all have a card: every way is tried."""
    return any(
        all(sum(a for a, at in zip(asked, places, strict=True) if at == card) <= shares for card in range(cards))
        for places in itertools.product(range(cards), repeat=len(asked))
    )


def allocated_all(asked: Sequence[int], devices: Sequence[dict[str, Any]]) -> bool:
    """Whether a scheduler that goes by the published capacities alone, and back where it leads nowhere, places all."""
    room = [int(device["capacity"][SHARES]["value"]) for device in devices]
    ranges = [device["capacity"][SHARES]["requestPolicy"]["validRange"] for device in devices]

    def place(left: Sequence[int]) -> bool:
        if not left:
            return True
        for at, limits in enumerate(ranges):
            if int(limits["min"]) <= left[0] <= min(int(limits["max"]), room[at]):
                room[at] -= left[0]
                done = place(left[1:])
                room[at] += left[0]
                if done:
                    return True
        return False

    return place(asked)


def test_by_what_is_published_claims_fit_exactly_where_there_is_a_way() -> None:
    chance = random.Random(5075)
    answers = set()
    for _ in range(200):
        cards, shares = chance.randint(1, 3), chance.randint(2, 4)
        asked = [chance.randint(1, shares) for _ in range(chance.randint(1, 5))]
        devices = [
            DraDevice(f"container-{at}", "a/C", f"GPU-{at}", {}, {}, shares=shares, most_shares=shares)
            for at in range(cards)
        ]
        ((spec),) = slices(devices, DRIVER)
        answer = fits(asked, cards, shares)
        assert allocated_all(asked, spec["devices"]) == answer, (asked, cards, shares)
        answers.add(answer)
    assert answers == {True, False}


def test_a_shared_card_consumes_its_counters_once_however_many_have_it() -> None:
    use = CounterUse("group", "group", 1, 1)
    device = DraDevice("container-0", "a/C", "GPU-0", {}, {}, (use,), shares=4, most_shares=4)
    sets, spec = slices([device], DRIVER)
    assert sets["sharedCounters"] == [{"name": "group", "counters": {"group": {"value": "1"}}}]
    assert spec["devices"][0]["consumesCounters"] == [{"counterSet": "group", "counters": {"group": {"value": "1"}}}]
