"""The kubelet's questions over all resources: what is refused, and what Allocate leaves behind."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcherkit.model.host import NO_FACTS, HostFacts, PciFunction
from launcherkit_plugin.allocation.allocator import Allocator, Offer
from launcherkit_plugin.allocation.reservations import PATIENCE_SECONDS, Reservations
from launcherkit_plugin.model.device import ClaimRef, Desired, Grant, Holder, Resource, Usage
from launcherkit_plugin.model.errors import DEVICE_TAKEN, DEVICE_UNHEALTHY, GROUP_SPLIT, UNKNOWN_DEVICE
from launcherkit_plugin.model.wakeups import WakeupQueue
from tests.plugin.resources import RULE, Node, device, rebind, resource, usage
from tests.support.errors import raises_code
from tests.support.hosttree import HostTree
from tests.support.provoked import provoked

GPUS = resource("gpu", device("a", 1), device("b", 1), device("c", 2), device("sick", 3, why="bound to nouveau"))
T = TypeVar("T")


class Giver:
    """A provider that gives what it is asked for, or fails."""

    changes_host = False

    def __init__(self, failure: Exception | None = None) -> None:
        self.failure = failure
        self.open = asyncio.Event()
        self.open.set()
        self.gate: dict[str, asyncio.Event] = {}
        """What the first device of a call has to wait for."""

    async def allocate(self, found: Resource, ids: Sequence[str], wishes: object = None) -> Grant:
        await self.gate.get(ids[0], self.open).wait()
        if self.failure is not None:
            raise self.failure
        return Grant({found.variable: ",".join(ids)}, ())

    async def check(self, found: Resource, ids: Sequence[str]) -> None:
        await self.allocate(found, ids)

    def wants(self, function: PciFunction) -> bool:
        return True

    def resources(self, host: HostFacts, used: Usage, now: float) -> tuple[Resource, ...]:
        return ()


class Desk:
    """An allocator with a clock that the test moves."""

    def __init__(self, giver: Giver | None = None, *resources: Resource) -> None:
        self.now = 100.0
        self.wakeups = WakeupQueue(0.0)
        self.allocator = Allocator(Reservations(), lambda: self.now, self.wakeups.notify)
        provider = giver or Giver()
        self.offers = {each.name: Offer(each, provider) for each in resources or (GPUS,)}
        self.allocator.advertise(self.offers, NO_FACTS)

    def allocate(self, *ids: str, name: str = "gpu") -> Grant:
        return asyncio.run(self.allocator.allocate(name, [ids]))[0]

    def unhealthy(self) -> list[str]:
        listed = self.allocator.advertise(self.offers, NO_FACTS)
        return [each.id for offer in listed.values() for each in offer.resource.devices.values() if not each.healthy]

    def observe(self, pods: dict[str, dict[str, str]]) -> None:
        self.now += 1
        self.allocator.observe(usage(pods), self.now)


def test_the_names_are_those_of_the_resources_that_it_answers_for() -> None:
    desk = Desk()
    desk.allocator.advertise({"gpu": Offer(GPUS, Giver())}, NO_FACTS)
    assert set(desk.allocator.names) == {"gpu"}


def test_a_device_that_is_not_there_is_an_error() -> None:
    with raises_code(UNKNOWN_DEVICE, match="gpu: there is no device 'z'"):
        Desk().allocate("a", "z")
    with raises_code(UNKNOWN_DEVICE, match="nic: there is no device 'a'"):
        Desk().allocate("a", name="nic")


def test_a_device_that_is_unhealthy_is_an_error_with_the_reason() -> None:
    with raises_code(DEVICE_UNHEALTHY, match="gpu: sick is Unhealthy: bound to nouveau"):
        Desk().allocate("a", "sick")


def test_what_was_given_away_makes_its_group_members_unhealthy_at_once() -> None:
    desk = Desk()
    assert desk.allocate("a").env == {"PCI_RESOURCE_gpu": "a"}
    assert desk.unhealthy() == ["b", "sick"]
    with raises_code(GROUP_SPLIT, match="a pod that is being started has a"):
        desk.allocate("b")


@pytest.mark.parametrize("changes_host", [True, False])
def test_a_caller_that_hangs_up_gets_nothing_unless_the_host_is_being_changed(changes_host: bool) -> None:
    giver = Giver()
    giver.changes_host = changes_host
    desk = Desk(giver)

    async def hang_up() -> None:
        giver.open.clear()
        call = asyncio.create_task(desk.allocator.allocate("gpu", [["a"]]))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        call.cancel()
        await asyncio.wait({call})
        giver.open.set()
        assert bool(await desk.wakeups.wait(5.0 if changes_host else 0.01)) == changes_host

    asyncio.run(hang_up())
    assert (desk.allocator.usage().holder("gpu", "a") is not None) == changes_host


def test_group_members_come_back_when_the_pod_has_gone() -> None:
    desk = Desk()
    desk.allocate("a")
    desk.observe({"gpu": {"a": "default/vm"}})
    assert desk.unhealthy() == ["b", "sick"]
    desk.observe({})
    assert desk.unhealthy() == ["sick"]
    desk.allocate("b")


def test_group_members_come_back_when_the_pod_never_came() -> None:
    desk = Desk()
    desk.allocate("a")
    desk.now += PATIENCE_SECONDS
    desk.observe({})
    assert desk.unhealthy() == ["sick"]


def test_a_failure_leaves_nothing_reserved() -> None:
    desk = Desk(Giver(DEVICE_UNHEALTHY("it is gone", "Look.")))
    with raises_code(DEVICE_UNHEALTHY):
        desk.allocate("a")
    assert desk.unhealthy() == ["sick"]


def test_all_or_nothing_where_the_second_device_is_a_group_member_of_a_pods() -> None:
    desk = Desk()
    desk.observe({"gpu": {"b": "default/vm"}})
    with raises_code(GROUP_SPLIT):
        desk.allocate("c", "a")
    assert desk.unhealthy() == ["a", "sick"]


def test_a_card_and_its_audio_go_to_one_container_in_either_order() -> None:
    cards = resource("gpu", device("a", 1), device("b", 2))
    audio = resource("audio", device("x", 1), device("y", 2), companion=True)
    for first, second in ((("a", "gpu"), ("x", "audio")), (("x", "audio"), ("a", "gpu"))):
        desk = Desk(None, cards, audio)
        desk.allocate(first[0], name=first[1])
        assert desk.unhealthy() == []
        desk.allocate(second[0], name=second[1])
        desk.now += 10
        desk.observe({"gpu": {"a": "default/vm"}, "audio": {"x": "default/vm"}})
        assert desk.unhealthy() == []


def test_a_group_is_not_split_between_two_pods_after_its_pod_has_ended() -> None:
    """Whoever gets one of two group members first has the group, though the kubelet's last word names the old pod."""
    desk = Desk()
    desk.observe({"gpu": {"a": "default/old", "b": "default/old"}})
    desk.allocate("b")
    with raises_code(GROUP_SPLIT):
        desk.allocate("a")


def test_a_group_is_not_split_between_two_pods_after_theirs_was_turned_away() -> None:
    desk = Desk()
    desk.allocate("a", "b")
    desk.allocate("a")
    with raises_code(GROUP_SPLIT):
        desk.allocate("b")


def test_the_companion_of_what_was_given_last_comes_first() -> None:
    cards = resource("gpu", *(device(f"0{number}", number) for number in range(4)))
    audio = resource("audio", *(device(f"1{number}", number) for number in range(4)), companion=True)
    desk = Desk(None, cards, audio)
    free = sorted(audio.devices)
    desk.allocate("02", name="gpu")
    assert desk.allocator.prefer("audio", free, [], 1) == ["12"]
    desk.now += 1
    desk.allocate("01", name="gpu")
    assert desk.allocator.prefer("audio", free, [], 1) == ["11"]
    assert desk.allocator.prefer("audio", free, [], 2) == ["11", "12"]
    desk.now += 10
    assert desk.allocator.prefer("audio", free, [], 1) == ["10"]


def test_a_preference_never_leads_into_the_group_of_another_pod() -> None:
    """The kubelet may not have heard yet that the group members of what it gave away are Unhealthy."""
    cards = resource("gpu", *(device(f"{number:02}", number // 2) for number in range(8)))
    desk = Desk(None, cards)
    free = sorted(cards.devices)
    for _ in range(4):
        chosen = desk.allocator.prefer("gpu", free, [], 1)
        desk.allocate(*chosen)
        free = [key for key in free if key not in chosen]
    assert free == ["01", "03", "05", "07"]


def test_what_an_ended_container_had_is_free_as_soon_as_the_kubelet_gives_a_part_of_it_away_again() -> None:
    desk = Desk()
    desk.allocate("a", "b")
    desk.allocate("a")
    desk.observe({})
    assert desk.allocator.prefer("gpu", ["a", "b"], [], 1) == ["a"]
    desk.allocate("a")


HOSTS = st.lists(st.frozensets(st.integers(0, 6), min_size=1, max_size=2), min_size=1, max_size=14)


@given(HOSTS, st.lists(st.tuples(st.integers(1, 4), st.booleans()), max_size=10))
def test_a_preference_is_refused_only_where_nothing_else_was_free(
    groups: list[frozenset[int]], pods: list[tuple[int, bool]]
) -> None:
    """Pods of any size on any host, some of which end; the kubelet never hears of health."""
    cards = resource("gpu", *(device(f"{number:02}", *sorted(each)) for number, each in enumerate(groups)))
    desk = Desk(None, cards)
    held: dict[str, str] = {}
    for pod, (size, ends) in enumerate(pods):
        free = [key for key in sorted(cards.devices) if key not in held]
        if len(free) < size:
            continue
        taken = frozenset[int]().union(*(cards.devices[key].groups for key in held))
        possible = [key for key in free if cards.devices[key].groups.isdisjoint(taken)]
        chosen = desk.allocator.prefer("gpu", free, [], size)
        assert len(chosen) == size
        if len(possible) >= size:
            desk.allocate(*chosen)
            held |= dict.fromkeys(chosen, f"default/{pod}")
        if ends:
            held = {key: name for key, name in held.items() if name != f"default/{pod}"}
        desk.observe({"gpu": held})


def test_audio_alone_does_not_get_the_function_of_another_pods_card() -> None:
    desk = Desk(None, resource("gpu", device("a", 1)), resource("audio", device("x", 1), companion=True))
    desk.allocate("a")
    desk.now += 10
    desk.observe({"gpu": {"a": "default/vm"}})
    assert desk.unhealthy() == ["x"]
    with raises_code(GROUP_SPLIT):
        desk.allocate("x", name="audio")


def test_an_allocation_that_takes_its_time_holds_up_no_other_and_holds_what_it_asks_for() -> None:
    async def scene(desk: Desk, giver: Giver) -> None:
        slow = giver.gate["a"] = asyncio.Event()
        asked = asyncio.create_task(desk.allocator.allocate("gpu", [["a"]]))
        await asyncio.sleep(0)
        assert (await desk.allocator.allocate("gpu", [["c"]]))[0].env == {"PCI_RESOURCE_gpu": "c"}
        assert not asked.done()
        with raises_code(GROUP_SPLIT):
            await desk.allocator.allocate("gpu", [["b"]])
        assert desk.allocator.usage().holder("gpu", "a") is not None
        desk.now += PATIENCE_SECONDS + 1
        desk.observe({})
        assert desk.allocator.usage().holder("gpu", "a") is not None, "however long it takes"
        slow.set()
        await asked
        assert desk.unhealthy() == ["b", "sick"]

    giver = Giver()
    asyncio.run(scene(Desk(giver), giver))


def test_an_allocation_that_fails_in_the_end_holds_nothing() -> None:
    async def scene(desk: Desk, giver: Giver) -> None:
        giver.gate["a"] = asyncio.Event()
        asked = asyncio.create_task(desk.allocator.allocate("gpu", [["a"]]))
        await asyncio.sleep(0)
        giver.failure = UNKNOWN_DEVICE("it has gone", "Plug it in.")
        giver.gate["a"].set()
        with raises_code(UNKNOWN_DEVICE):
            await asked
        assert desk.allocator.usage().holder("gpu", "a") is None

    giver = Giver()
    asyncio.run(scene(Desk(giver), giver))


def test_the_containers_of_one_pod_get_theirs_together_or_not_at_all() -> None:
    desk = Desk()
    grants = asyncio.run(desk.allocator.allocate("gpu", [["a"], ["b"]]))
    assert [grant.env["PCI_RESOURCE_gpu"] for grant in grants] == ["a", "b"]
    desk = Desk()
    with raises_code(DEVICE_UNHEALTHY):
        asyncio.run(desk.allocator.allocate("gpu", [["a"], ["sick"]]))
    assert desk.unhealthy() == ["sick"]


def test_the_check_before_the_start_asks_the_provider_again() -> None:
    desk = Desk(Giver(DEVICE_UNHEALTHY("it is gone", "Look.")))
    with raises_code(DEVICE_UNHEALTHY, match="it is gone"):
        _run(desk.allocator.check("gpu", ["a"]))
    with raises_code(UNKNOWN_DEVICE):
        _run(desk.allocator.check("gpu", ["z"]))
    _run(Desk().allocator.check("gpu", ["a"]))


def test_a_preference_for_a_resource_that_has_gone_is_what_is_free() -> None:
    assert Desk().allocator.prefer("nic", ["n", "m"], [], 1) == ["m"]
    assert Desk().allocator.prefer("gpu", ["a", "b", "c"], [], 2) == ["a", "b"]


def _run(call: Coroutine[object, object, T]) -> T:
    return asyncio.run(call)


# The messages that the pages of these errors show


GA102 = "nvidia.com/GA102"


def test_the_page_of_an_unknown_device_shows_what_is_said() -> None:
    with raises_code(UNKNOWN_DEVICE) as raised:
        Desk(None, resource(GA102, device("0000:01:00.0", 12))).allocate("0000:e1:00.0", name=GA102)
    assert [f"LK712: {raised.value.message}"] == provoked("allocator", "LK712")


def test_the_page_of_a_split_group_shows_what_is_said() -> None:
    desk = Desk(None, resource(GA102, device("0000:01:00.0", 12), device("0000:02:00.0", 12)))
    desk.observe({GA102: {"0000:01:00.0": "default/vm-1"}})
    with raises_code(GROUP_SPLIT) as raised:
        desk.allocate("0000:02:00.0", name=GA102)
    assert [f"LK714: {raised.value.message}"] == provoked("allocator", "LK714")


def test_the_page_of_an_unhealthy_device_shows_what_is_said(tmp_path: Path) -> None:
    tree = HostTree(tmp_path)
    tree.card("0000:01:00", group=12)
    node = Node(tree, {0x03: RULE._replace(name=GA102)})
    node.look()
    rebind(tree, "0000:01:00.0", "nouveau")
    with raises_code(DEVICE_UNHEALTHY) as raised:
        node.grant("0000:01:00.0", name=GA102)
    assert [f"LK713: {raised.value.message}"] == provoked("allocator", "LK713")


# ResourceClaims

CLAIM = Holder("", claim=ClaimRef("vms", "gpu", "u-1"))
AGAIN = Holder("", claim=ClaimRef("vms", "gpu", "u-2"))
"""Another one, made under the name of the first."""


def prepare(desk: Desk, holder: Holder, *ids: str, name: str = "gpu") -> None:
    async def claim() -> None:
        async with desk.allocator.claiming(holder, [Desired(name, ids)]):
            desk.allocator.claimed("d", {name: dict.fromkeys(ids, holder)})

    asyncio.run(claim())


def test_a_device_of_one_claim_is_refused_to_any_other_and_given_to_the_same_one_again() -> None:
    desk = Desk()
    prepare(desk, CLAIM, "c")
    prepare(desk, CLAIM, "c")
    with raises_code(DEVICE_TAKEN, match="c can't be prepared for ResourceClaim vms/gpu: ResourceClaim vms/gpu has it"):
        prepare(desk, AGAIN, "c")


def test_a_device_that_a_pod_had_by_another_name_is_refused_to_a_claim() -> None:
    key = "0000:01:00.0"
    desk = Desk(None, resource("gpu", device(key, 1)))
    desk.observe({"nvidia.com/OLD": {key: "vms/launcher"}})
    with raises_code(DEVICE_TAKEN) as caught:
        prepare(desk, CLAIM, key)
    assert [f"LK812: {caught.value.message}"] == provoked("dra-node", "LK812")


def test_the_group_members_of_a_claims_device_go_to_nobody_else() -> None:
    desk = Desk()
    prepare(desk, CLAIM, "a")
    assert desk.unhealthy() == ["b", "sick"]
    with raises_code(GROUP_SPLIT, match="ResourceClaim vms/gpu has a, which shares IOMMU group 1"):
        desk.allocate("b")
    with raises_code(GROUP_SPLIT):
        prepare(desk, AGAIN, "b")


def test_one_claim_has_a_group_whole_by_whatever_resources() -> None:
    desk = Desk(None, resource("gpu", device("a", 1)), resource("nic", device("b", 1)))

    async def claim() -> list[Grant]:
        async with desk.allocator.claiming(CLAIM, [Desired("gpu", ["a"]), Desired("nic", ["b"])]) as grants:
            return grants

    assert [dict(grant.env) for grant in asyncio.run(claim())] == [{"PCI_RESOURCE_gpu": "a"}, {"PCI_RESOURCE_nic": "b"}]


def test_what_a_claim_asks_for_is_held_until_it_is_refused() -> None:
    desk = Desk(Giver(DEVICE_UNHEALTHY("no", "no")))
    with raises_code(DEVICE_UNHEALTHY):
        prepare(desk, CLAIM, "c")
    desk.allocator.advertise({"gpu": Offer(GPUS, Giver())}, NO_FACTS)
    prepare(desk, AGAIN, "c")


def test_a_claim_gets_the_nodes_of_each_device_whatever_cdi_says(tmp_path: Path) -> None:
    tree = HostTree(tmp_path)
    tree.card("0000:01:00", group=7)
    tree.card("0000:02:00", group=8)
    node = Node(tree)
    node.look()
    found = node.seen["nvidia.com/GPU"]._replace(dra=True)
    grant = asyncio.run(node.provider.allocate(found, ["0000:02:00.0", "0000:01:00.0"]))
    assert grant.each == {
        "0000:02:00.0": ("/dev/vfio/vfio", "/dev/vfio/8"),
        "0000:01:00.0": ("/dev/vfio/vfio", "/dev/vfio/7"),
    }
    assert (grant.nodes, grant.cdi) == (("/dev/vfio/vfio", "/dev/vfio/8", "/dev/vfio/7"), ())
