"""Cards of NVSwitch boards go to pods by whole partitions, which are active as long as a pod has them (K13)."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from itertools import combinations, count
from pathlib import Path

import pytest

from launcherkit.errors import LauncherkitError, UnwritableFile
from launcherkit_plugin.__main__ import run
from launcherkit_plugin.allocation.preference import best_partition
from launcherkit_plugin.dra.inventory import inventory
from launcherkit_plugin.dra.labels import attribute
from launcherkit_plugin.fabric.activations import Activated, ActivatedPartitions
from launcherkit_plugin.fabric.fabric import LATE_SECONDS, CardSet
from launcherkit_plugin.fabric.manager import ProcessManager
from launcherkit_plugin.model.config import FabricConfig
from launcherkit_plugin.model.device import ClaimRef, Desired, Holder, Usage, with_cards
from launcherkit_plugin.model.errors import (
    CARD_IN_OTHER_USE,
    DEVICE_UNHEALTHY,
    FABRIC_MISFIT,
    FABRIC_UNREACHABLE,
    GROUP_SPLIT,
    NO_PARTITION,
    PARTITION_LOST,
    PARTITION_NOT_CHANGED,
    PARTITION_OF_OTHERS,
)
from tests.plugin.fabric.double import CARDS, MODULES, TABLE, Board, addresses, cards_of
from tests.plugin.fabric.hgx import NAME, SWITCHES, Node, key_of
from tests.plugin.resources import rebind
from tests.support.errors import raises_code
from tests.support.provoked import provoked
from tests.support.waiting import PATIENCE

X2, X4, X8 = (f"{NAME}-x{size}" for size in (2, 4, 8))
PAIR, OTHER_PAIR = cards_of(3), cards_of(4)
BY_HAND = FabricConfig(modules=MODULES)


class Killed(BaseException):
    """kill -9: nothing is done any more."""


STEPS: tuple[str, ...] = ("before", "after")


def kill(node: Node, when: str, call: str) -> None:
    def die(made: str) -> None:
        if made == call:
            node.board.before = node.board.after = lambda call: None
            raise Killed

    setattr(node.board, when, die)


def killed(work: Callable[[], object]) -> None:
    """Let a daemon do something that kills it; what it had in memory is gone."""
    with suppress(Killed, LauncherkitError, BaseExceptionGroup):
        work()


@pytest.fixture
def node(tmp_path: Path) -> Node:
    made = Node(tmp_path, Board())
    made.turn()
    return made


# What is advertised


def test_each_size_is_a_resource_whose_devices_are_partitions(node: Node) -> None:
    sizes = {name: len(resource.devices) for name, resource in node.listed.items()}
    assert sizes == {NAME: 8, X2: 4, X4: 2, X8: 1}
    assert set(node.listed[X2].devices) == {key_of(cards_of(number)) for number in (3, 4, 5, 6)}
    assert all(device.healthy for resource in node.listed.values() for device in resource.devices.values())


def test_a_partition_has_the_groups_and_the_numa_node_of_its_cards(node: Node) -> None:
    cards = sorted(PAIR)
    whole, members = node.device(key_of(PAIR), X2), [node.device(card) for card in cards]
    assert whole.groups == members[0].groups | members[1].groups
    assert [str(each) for each in whole.functions] == cards
    assert whole.numa_node is None if len({each.numa_node for each in members}) > 1 else whole.numa_node is not None
    assert whole.description == "fabric partition 3 with 2 cards"


def test_cards_say_which_module_they_are_and_in_which_partitions(node: Node) -> None:
    device = node.device(MODULES[4])
    assert (device.module, device.partitions) == (4, ((1, 10), (2, 4), (4, 1), (8, 0)))


def test_without_fabric_in_the_configuration_nothing_is_asked_and_there_are_only_cards(tmp_path: Path) -> None:
    node = Node(tmp_path, Board())
    node.board.calls.clear()
    node.fabric = None  # type: ignore[assignment]
    node.restart()
    node.turn()
    node.admit("one", NAME, 3)
    assert (list(node.listed), node.board.calls) == ([NAME], [])


# For a pod


def test_a_pod_gets_the_cards_of_a_partition_which_is_active_then(node: Node) -> None:
    grant = node.give("one", X2, key_of(PAIR))
    assert grant.env == {"PCI_RESOURCE_NVIDIA_COM_A100-X2": ",".join(sorted(PAIR))}
    groups = {f"/dev/vfio/{10 + CARDS.index(card)}" for card in PAIR}
    assert groups < set(grant.nodes)
    assert node.board.active == {3}


@pytest.mark.parametrize("size", [1, 2, 4, 8])
def test_a_pod_that_asks_for_that_many_cards_gets_those_of_one_partition(node: Node, size: int) -> None:
    node.admit("one", NAME, size)
    (number,) = node.board.active
    assert node.cards_of("one") == cards_of(number)


def test_cards_that_are_no_partition_are_refused_with_the_sizes_that_there_are(node: Node) -> None:
    with raises_code(NO_PARTITION) as raised:
        node.give("one", NAME, *CARDS[:3])
    assert provoked("fabric", NO_PARTITION.code) == [f"{NO_PARTITION.code}: {raised.value.message}"]
    assert node.board.active == set()


def test_two_partitions_can_go_to_one_container(node: Node) -> None:
    node.admit("one", X2, 2)
    assert len(node.board.active) == 2


def test_who_overlaps_a_pods_partition_is_unhealthy_and_the_rest_is_not(node: Node) -> None:
    node.give("one", X2, key_of(PAIR))
    node.turn()
    assert node.problem(key_of(PAIR), X2) is None
    for resource in node.listed.values():
        for key, device in resource.devices.items():
            overlaps = not PAIR.isdisjoint(key.split("+")) and key != key_of(PAIR)
            assert (device.problem is not None) == overlaps, (resource.name, key)


def test_an_overlapping_one_is_refused_even_before_the_kubelet_knows(node: Node) -> None:
    node.give("one", X2, key_of(PAIR))
    for resource, key in ((X4, key_of(cards_of(1))), (NAME, min(PAIR)), (X8, key_of(CARDS))):
        with raises_code(GROUP_SPLIT):
            node.give("other", resource, key)
    assert node.board.active == {3}


def test_after_the_pod_the_partition_is_inactive_and_its_cards_are_free(node: Node) -> None:
    node.give("one", X2, key_of(PAIR))
    node.turn()
    node.end("one")
    node.turn()
    assert (node.board.active, dict(node.records.read())) == (set(), {})
    assert all(device.healthy for resource in node.listed.values() for device in resource.devices.values())
    assert node.outcomes == [("activate", "done"), ("deactivate", "done")]
    assert node.events[-1] == (
        "PartitionDeactivated",
        f"{X2}: fabric partition 3 is inactive again after a pod had it",
    )


def test_the_next_pod_may_come_before_the_daemon_has_noticed_and_the_partition_is_made_anew(node: Node) -> None:
    node.give("one", X2, key_of(PAIR))
    node.turn()
    node.end("one")
    node.board.calls.clear()
    node.give("two", X2, key_of(PAIR))
    assert [call for call in node.board.calls if call[0] != "partitions"] == [("deactivate", 3), ("activate", 3)]
    node.turn()
    assert node.board.active == {3}


def test_nothing_is_deactivated_while_it_is_unknown_who_has_what(node: Node) -> None:
    node.give("one", X2, key_of(PAIR))
    node.turn()
    node.end("one")
    node.usage_known = False
    node.turn()
    assert node.board.active == {3}
    node.usage_known = True
    node.turn()
    assert node.board.active == set()


def test_who_holds_a_partition_holds_its_cards_whatever_fabric_manager_says() -> None:
    held = with_cards(Usage("pod-resources", {X2: {"a+b": Holder("vms/one")}, NAME: {"c": Holder("vms/two")}}))
    assert held.held_ids == {"a+b", "a", "b", "c"}
    assert held.holder(NAME, "a") is None, "the ordinary resource doesn't say that the pod has it from there"


def test_while_fabric_manager_does_not_answer_a_restarted_daemon_still_knows_whose_the_cards_are(node: Node) -> None:
    node.give("one", X2, key_of(PAIR))
    node.board.codes["partitions"] = [-9] * 9
    node.restart()
    node.turn()
    assert set(node.listed) == {NAME}
    for card in CARDS:
        reason = "group-in-use" if card in PAIR else "fabric"
        assert node.text(card).startswith(reason) or card in PAIR


# Which one


def broken(partitions: list[frozenset[str]], free: frozenset[str], taken: frozenset[str]) -> list[int]:
    """How many whole partitions of 8, of 4, of 2 are lost, for larger ones than what is taken."""
    lost = []
    for size in (8, 4, 2):
        before = [each for each in partitions if len(each) == size and each <= free]
        after = [each for each in before if each <= free - taken]
        if size > len(taken):
            lost.append(len(before) - len(after))
    return lost


def test_what_a_pod_gets_leaves_the_most_larger_partitions_whole() -> None:
    partitions = [cards_of(number) for number, _ in TABLE]
    chosen = random.Random(4)
    for _ in range(300):
        free = frozenset(chosen.sample(CARDS, chosen.randint(0, 8)))
        size = chosen.choice((1, 2, 4))
        candidates = [each for each in partitions if len(each) == size and each <= free]
        found = best_partition(partitions, free, candidates)
        if not candidates:
            assert found is None
            continue
        assert found is not None
        cost = broken(partitions, free, frozenset(found))
        assert cost == min(broken(partitions, free, each) for each in candidates)


def test_small_pods_leave_room_for_large_ones(node: Node) -> None:
    node.admit("single", NAME, 1)
    node.turn()
    node.admit("pair", X2)
    node.turn()
    node.admit("four", X4)
    assert len(node.board.active) == 3
    node.turn()
    node.admit("last", NAME, 1)
    assert len(node.cards_of("single") | node.cards_of("pair") | node.cards_of("four") | node.cards_of("last")) == 8


# What goes wrong


def test_while_fabric_manager_does_not_answer_no_card_is_given_and_pods_keep_theirs(node: Node) -> None:
    node.give("one", X2, key_of(PAIR))
    node.board.codes["partitions"] = [-9] * 4
    with raises_code(FABRIC_UNREACHABLE, match="fmGetSupportedFabricPartitions returned FM_ST_CONNECTION_NOT_VALID"):
        node.give("other", X2, key_of(OTHER_PAIR))
    node.turn()
    assert node.up[-1] is None
    assert node.problem(key_of(PAIR), X2) is None
    assert node.text(key_of(OTHER_PAIR), X2).startswith("fabric: Fabric Manager at /run/nvidia-fabricmanager/socket")
    reason, message = node.events[-1]
    assert reason == "FabricManagerUnreachable"
    assert provoked("fabric", FABRIC_UNREACHABLE.code) == [f"{FABRIC_UNREACHABLE.code}: {message}"]
    node.board.codes.clear()
    node.turn()
    node.give("other", X2, key_of(OTHER_PAIR))
    assert node.board.active == {3, 4}
    assert node.up[-1] == 1


@pytest.mark.parametrize("wrong", ["crash", "hang"])
def test_a_library_that_crashes_or_hangs_is_named(node: Node, wrong: str) -> None:
    node.board.codes["activate"] = [wrong]
    with raises_code(PARTITION_NOT_CHANGED, match="killed"):
        node.give("one", X2, key_of(PAIR))
    assert node.board.active == set()
    node.turn(LATE_SECONDS)
    assert (node.board.active, dict(node.records.read())) == (set(), {})


def test_a_partition_that_can_not_be_activated_is_unhealthy_for_a_while_and_others_are_not(node: Node) -> None:
    node.board.codes["activate"] = [-10]
    with raises_code(PARTITION_NOT_CHANGED) as raised:
        node.give("one", X2, key_of(PAIR))
    assert provoked("fabric", PARTITION_NOT_CHANGED.code) == [f"{PARTITION_NOT_CHANGED.code}: {raised.value.message}"]
    assert (node.board.active, dict(node.records.read())) == (set(), {})
    assert node.outcomes == [("activate", "failed")]
    node.turn(0)
    assert "FM_ST_NVLINK_ERROR" in node.text(key_of(PAIR), X2)
    with raises_code(DEVICE_UNHEALTHY):
        node.give("one", X2, key_of(PAIR))
    node.give("one", X2, key_of(OTHER_PAIR))
    assert node.board.active == {4}


@pytest.mark.parametrize("wrong", ["hang", "crash"])
def test_an_activation_that_comes_about_after_its_call_was_given_up_is_undone(node: Node, wrong: str) -> None:
    """Fabric Manager goes on when the process that has asked it is killed."""
    node.board.codes["activate"] = [wrong]
    with raises_code(PARTITION_NOT_CHANGED):
        node.give("one", X2, key_of(PAIR))
    assert set(node.records.read()) == {3}
    node.turn(10)
    node.board.active.add(3)
    node.turn(10)
    node.turn(10)
    assert (node.board.active, dict(node.records.read())) == (set(), {})
    assert "PartitionOfOthers" not in {reason for reason, _ in node.events}


def test_the_record_of_an_activation_that_never_comes_about_goes(node: Node) -> None:
    node.board.codes["activate"] = ["hang"]
    with raises_code(PARTITION_NOT_CHANGED):
        node.give("one", X2, key_of(PAIR))
    node.turn(LATE_SECONDS - 1)
    assert set(node.records.read()) == {3}
    node.turn(1)
    assert dict(node.records.read()) == {}


def test_of_two_partitions_for_a_container_none_stays_active_if_one_fails(node: Node) -> None:
    node.board.codes["activate"] = []
    calls = count()

    def second_fails(call: str) -> None:
        if call == "activate" and next(calls) == 1:
            node.board.codes["activate"].append(-2)

    node.board.before = second_fails
    with raises_code(PARTITION_NOT_CHANGED):
        node.give("one", X2, key_of(PAIR), key_of(OTHER_PAIR))
    assert (node.board.active, dict(node.records.read())) == (set(), {})


def test_one_that_can_not_be_deactivated_is_not_offered_and_is_tried_again(node: Node) -> None:
    node.give("one", X2, key_of(PAIR))
    node.turn()
    node.end("one")
    node.board.codes["deactivate"] = [-10, -10]
    node.turn()
    assert node.events[-1][0] == "PartitionNotDeactivated"
    for card in PAIR:
        assert "FM_ST_NVLINK_ERROR" in node.text(card)
    assert node.problem(key_of(PAIR), X2) is not None
    node.turn()
    node.turn()
    assert (node.board.active, node.problem(key_of(PAIR), X2)) == (set(), None)


def test_a_partition_of_somebody_else_is_named_left_alone_and_nobody_gets_its_cards(node: Node) -> None:
    node.board.active.add(1)
    node.turn()
    reason, message = node.events[-1]
    assert reason == "PartitionOfOthers"
    assert provoked("fabric", PARTITION_OF_OTHERS.code) == [f"{PARTITION_OF_OTHERS.code}: {message}"]
    for card in CARDS:
        assert (node.problem(card) is None) == (card not in cards_of(1))
    with raises_code(DEVICE_UNHEALTHY):
        node.give("one", X2, key_of(PAIR))
    node.turn()
    assert node.board.active == {1}


def test_what_was_activated_a_moment_ago_is_not_somebody_elses(node: Node) -> None:
    node.give("one", X2, key_of(PAIR))
    assert node.setup.fabric is not None
    assert node.setup.fabric.problem(addresses(*PAIR), node.now, held=False) is None


def test_so_it_is_if_somebody_activates_it_a_moment_before(node: Node) -> None:
    node.board.active.add(1)
    with raises_code(PARTITION_OF_OTHERS):
        node.give("one", X2, key_of(PAIR))

    def meanwhile(call: str) -> None:
        if call == "activate":
            node.board.active.add(2)

    node.board.before = meanwhile
    with raises_code(PARTITION_OF_OTHERS):
        node.give("one", X2, key_of(cards_of(5)))
    node.turn()
    assert (node.board.active, dict(node.records.read())) == ({1, 2}, {})


def test_so_it_is_if_it_is_the_very_partition_that_was_wanted(node: Node) -> None:
    def meanwhile(call: str) -> None:
        if call == "activate":
            node.board.active.add(5)

    node.board.before = meanwhile
    with raises_code(PARTITION_OF_OTHERS):
        node.give("one", X2, key_of(cards_of(5)))
    node.turn()
    assert (node.board.active, dict(node.records.read())) == ({5}, {})


def test_what_fabric_manager_only_says_that_it_has_done_is_not_believed(node: Node) -> None:
    node.board.codes = {"activate": [0]}
    with raises_code(PARTITION_NOT_CHANGED, match="was to be activated, Fabric Manager said that it is, and it isn't"):
        node.give("one", X2, key_of(PAIR))
    node.give("one", X2, key_of(PAIR))
    node.turn()
    node.end("one")
    node.board.codes = {"deactivate": [0]}
    node.turn()
    assert "was to be deactivated" in node.text(key_of(PAIR), X2)
    node.turn()
    assert (node.board.active, node.problem(key_of(PAIR), X2)) == (set(), None)


def test_after_fabric_manager_was_started_again_pods_cards_are_named_and_nothing_is_given_twice(node: Node) -> None:
    node.give("one", X2, key_of(PAIR))
    node.turn()
    node.board.start_again()
    node.turn()
    reason, message = node.events[-1]
    assert reason == "PartitionLost"
    assert provoked("fabric", PARTITION_LOST.code) == [f"{PARTITION_LOST.code}: {message}"]
    assert "in no active fabric partition" in node.text(key_of(PAIR), X2)
    for card in PAIR:
        assert node.problem(card) is not None
    assert node.board.active == set()
    node.end("one")
    node.turn()
    assert (node.problem(key_of(PAIR), X2), dict(node.records.read())) == (None, {})
    node.give("two", X2, key_of(PAIR))
    assert node.board.active == {3}


# If the board is as it was seen last


ONCE = [["activate", "partitions"]]
ANEW = [["partitions"], ["activate", "partitions"]]


def activate(node: Node) -> None:
    """As an Allocate does that is under way when a turn finds something else."""
    assert node.setup.fabric is not None
    asyncio.run(node.setup.fabric.activate(X2, [CardSet(addresses(*sorted(PAIR)))], [key_of(PAIR)]))


def hidden(node: Node) -> list[str]:
    """What is left of records that were not put in their place."""
    return [path.name for path in (node.root / "ledger/fabric").glob(".*")]


def test_a_partition_is_activated_in_one_exchange_with_its_record_after_a_reading(node: Node) -> None:
    happened: list[str] = []
    node.board.asked.clear()
    node.board.before = happened.append
    node.give("one", X2, key_of(PAIR))
    node.give("two", X2, key_of(OTHER_PAIR))
    assert node.board.asked == ONCE * 2
    assert happened == ["partitions", "rename", "activate", "partitions"] * 2
    assert (node.board.active, set(node.records.read()), hidden(node)) == ({3, 4}, {3, 4}, [])


def test_if_it_is_another_one_nothing_is_recorded_until_it_has_been_read(node: Node) -> None:
    happened: list[str] = []
    node.board.active.add(5)
    node.board.asked.clear()
    node.board.before = happened.append
    node.give("one", X2, key_of(PAIR))
    assert node.board.asked == ONCE + ANEW
    assert happened == ["partitions"] * 3 + ["activate", "partitions"]
    assert (node.board.active, set(node.records.read()), hidden(node)) == ({3, 5}, {3}, [])
    node.turn()
    assert node.board.active == {3, 5}


@pytest.mark.parametrize("when", STEPS)
def test_killed_before_it_is_known_that_somebody_else_has_activated_it_the_next_daemon_leaves_it_alone(
    node: Node, when: str
) -> None:
    node.board.active.add(3)
    kill(node, when, "partitions")
    killed(lambda: node.give("one", X2, key_of(PAIR)))
    node.restart()
    node.turn()
    assert (node.board.active, dict(node.records.read())) == ({3}, {})


def test_if_the_library_crashes_before_that_is_known_it_is_left_alone_as_well(node: Node) -> None:
    node.board.active.add(3)
    node.board.codes["partitions"] = ["crash"]
    with raises_code(PARTITION_NOT_CHANGED):
        node.give("one", X2, key_of(PAIR))
    assert (node.board.active, dict(node.records.read()), hidden(node)) == ({3}, {}, [])


def test_with_an_old_record_of_it_the_board_is_read_first(node: Node) -> None:
    node.usage_known = False
    node.records.write(Activated(3, addresses(*sorted(PAIR)), X2))
    node.turn()
    node.board.active.add(3)
    node.board.codes["partitions"] = ["crash"]
    with raises_code(FABRIC_UNREACHABLE):
        node.give("one", X2, key_of(PAIR))
    assert node.board.active == {3}
    node.board.active.clear()
    node.turn()
    node.board.asked.clear()
    node.give("one", X2, key_of(PAIR))
    assert (node.board.asked, node.board.active) == (ANEW, {3})


def test_what_somebody_else_had_when_it_was_read_last_is_read_again(node: Node) -> None:
    node.board.active.add(1)
    node.turn()
    node.board.active.clear()
    node.board.asked.clear()
    activate(node)
    assert (node.board.asked, node.board.active) == (ANEW, {3})


def test_for_two_partitions_it_is_read_once_and_each_is_activated_once(node: Node) -> None:
    node.board.asked.clear()
    node.give("one", X2, key_of(PAIR), key_of(OTHER_PAIR))
    assert node.board.asked == [["partitions"], ["activate", "partitions"], ["activate", "partitions"]]


def test_a_board_of_which_a_vm_has_the_switches_is_not_taken_for_free(node: Node) -> None:
    for switch in SWITCHES:
        rebind(node.tree, switch, "vfio-pci")
    node.turn()
    with raises_code(FABRIC_MISFIT):
        activate(node)
    assert node.board.active == set()


def test_while_the_state_is_unknown_the_board_is_read_first(node: Node) -> None:
    node.board.codes["partitions"] = [-9]
    node.turn()
    node.board.asked.clear()
    activate(node)
    assert (node.board.asked, node.board.active) == (ANEW, {3})


def test_where_the_process_can_not_put_the_record_in_its_place_the_daemon_does(node: Node) -> None:
    place = node.root / "ledger/fabric/3.json"
    place.mkdir(parents=True)
    (place / "file").write_text("")
    with pytest.raises(UnwritableFile):
        node.give("one", X2, key_of(PAIR))
    assert (node.board.active, node.outcomes, hidden(node)) == (set(), [], [])
    (place / "file").unlink()
    node.give("one", X2, key_of(PAIR))
    assert (node.board.active, set(node.records.read()), hidden(node)) == ({3}, {3}, [])


# Which card is which module


def test_where_fabric_manager_reports_no_addresses_the_configuration_has_them(tmp_path: Path) -> None:
    node = Node(tmp_path, Board(addresses=False), fabric=BY_HAND)
    node.turn()
    node.give("one", X4, key_of(cards_of(2)))
    assert node.board.active == {2}


def test_without_them_it_says_which_are_missing_and_gives_no_card(tmp_path: Path) -> None:
    some = {module: card for module, card in MODULES.items() if module not in (2, 6)}
    node = Node(tmp_path, Board(addresses=False), fabric=FabricConfig(modules=some))
    node.turn()
    assert all(node.problem(card) is not None for card in CARDS)
    reason, message = node.events[-1]
    assert reason == "FabricMisconfigured"
    assert provoked("fabric", FABRIC_MISFIT.code) == [f"{FABRIC_MISFIT.code}: {message}"]


def test_another_order_of_modules_and_another_table_are_taken_as_they_are(tmp_path: Path) -> None:
    table = [(20, (8, 1)), (7, (2, 6)), (3, (5,)), (9, (8, 1, 2, 6))]
    node = Node(tmp_path, Board(table))
    node.turn()
    assert {name: len(resource.devices) for name, resource in node.listed.items()} == {NAME: 8, X2: 2, X4: 1}
    node.give("one", X2, key_of([MODULES[2], MODULES[6]]))
    node.give("two", NAME, MODULES[5])
    assert node.board.active == {7, 3}
    node.turn()
    with raises_code(NO_PARTITION):
        node.give("three", NAME, MODULES[8])
    node.give("four", NAME, MODULES[3])
    assert node.board.active == {7, 3}, "a card that is not on the board is an ordinary one"


# Full passthrough, and VFs


def test_switches_that_a_vm_has_are_told_from_it(node: Node) -> None:
    for switch in SWITCHES:
        rebind(node.tree, switch, "vfio-pci")
    node.turn()
    reason, message = node.events[-1]
    expected = f"NVSwitches are bound to VFIO for a VM that has the whole board: {', '.join(SWITCHES)}"
    assert (reason, message) == ("FabricMisconfigured", expected)
    assert all(node.problem(card) is not None for card in CARDS)


def with_vfs(tmp_path: Path) -> Node:
    node = Node(tmp_path, Board(mode=2))
    for number, card in enumerate(CARDS):
        for function in (4, 5):
            vf = card.replace(".0", f".{function}")
            node.tree.vf(card, vf, driver="vfio-pci", class_code=0x030200, group=100 + 10 * number + function)
    node.rule = node.rule._replace(select=(node.rule.select[0]._replace(virtual=True),))
    node.restart()
    node.turn()
    return node


def test_the_vfs_of_a_vm_are_those_of_its_partition_in_the_order_of_its_cards(tmp_path: Path) -> None:
    node = with_vfs(tmp_path)
    assert set(node.listed) == {NAME}
    vfs = [MODULES[module].replace(".0", ".4") for module in dict(TABLE)[3]]
    node.give("one", NAME, *sorted(vfs))
    bus = [int(vf[5:7], 16) for vf in vfs]
    assert node.board.vfs[3] == [[0, bus[0], 0, 4], [0, bus[1], 0, 4]]
    node.turn()
    node.end("one")
    node.turn()
    assert node.board.active == set()


def test_two_vfs_of_one_card_have_one_set_of_nvlinks(tmp_path: Path) -> None:
    node = with_vfs(tmp_path)
    with raises_code(NO_PARTITION, match="VFs of one card"):
        node.give("one", NAME, "0000:07:00.4", "0000:07:00.5")
    node.give("one", NAME, "0000:07:00.4")
    node.turn()
    assert node.board.active == {6 + 3}
    assert node.text("0000:07:00.5").startswith("other-use: 0000:07:00.5: a pod has another VF of 0000:07:00.0")
    with raises_code(DEVICE_UNHEALTHY):
        node.give("two", NAME, "0000:07:00.5")
    assert node.board.active == {6 + 3}


def test_a_second_vf_of_a_card_is_refused_even_before_the_kubelet_knows(tmp_path: Path) -> None:
    node = with_vfs(tmp_path)
    node.give("one", NAME, "0000:07:00.4")
    with raises_code(CARD_IN_OTHER_USE, match="a pod has another VF of 0000:07:00.0"):
        node.give("two", NAME, "0000:07:00.5")
    assert node.board.calls.count(("activate", 6 + 3)) == 1
    node.give("three", NAME, "0000:0f:00.5")
    assert node.board.active == {6 + 3, 6 + 1}


@pytest.mark.parametrize("size", [1, 2, 4, 8])
def test_a_pod_that_asks_for_vfs_gets_one_of_each_card_of_a_partition(tmp_path: Path, size: int) -> None:
    node = with_vfs(tmp_path)
    node.admit("one", NAME, size)
    (number,) = node.board.active
    assert {vf[:-1] + "0" for vf in node.pods["one"][1]} == cards_of(number)
    assert len(node.pods["one"][1]) == size


# Claims


def for_claims(node: Node) -> Node:
    node.rule = node.rule._replace(dra=True)
    node.restart()
    node.turn()
    return node


def test_a_card_of_a_claim_says_its_module_and_partitions_as_nvidias_driver_does(node: Node) -> None:
    for_claims(node)
    facts = node.look()
    published = {device.id: device.attributes for device in inventory(node.listed.values(), facts)}
    assert set(published) == set(CARDS)
    for module, card in MODULES.items():
        numbers = {f"partition{len(modules)}": number for number, modules in TABLE if module in modules}
        of_fabric = {"gpuModuleID": module, **numbers}
        assert {name: published[card][name] for name in of_fabric} == {
            name: attribute(value) for name, value in of_fabric.items()
        }


def test_the_cards_of_a_claim_are_one_partition_whatever_their_requests(node: Node) -> None:
    for_claims(node)
    holder = Holder("", claim=ClaimRef("vms", "pair", "1"))
    one, other = sorted(PAIR)

    async def prepare(*cards: str) -> None:
        desired = [Desired(NAME, [card]) for card in cards]
        async with node.allocator.claiming(holder, desired) as grants:
            assert [grant.env["PCI_RESOURCE_NVIDIA_COM_A100"] for grant in grants] == list(cards)
            node.allocator.claimed("driver", {NAME: dict.fromkeys(cards, holder)})

    asyncio.run(prepare(other, one))
    assert node.board.active == {3}
    assert node.board.calls.count(("activate", 3)) == 1
    node.turn()
    assert node.board.active == {3}
    node.allocator.claimed("driver", {})
    node.turn()
    assert node.board.active == set()
    with raises_code(NO_PARTITION):
        asyncio.run(prepare(one, min(OTHER_PAIR)))
    node.turn()
    assert (node.board.active, dict(node.records.read())) == (set(), {})


# What people see


def test_status_shows_which_partition_was_activated_for_a_card(node: Node, capfd: pytest.CaptureFixture[str]) -> None:
    node.give("one", X2, key_of(PAIR))
    places = ["--host", str(node.root), "--proc", f"{node.root}/proc", "--ledger", f"{node.root}/ledger"]
    places += ["--kubelet-dir", f"{node.root}/none"]
    assert run(["status", *places, *sorted(PAIR | OTHER_PAIR)], {}) == 0
    head, *lines = capfd.readouterr().out.splitlines()
    assert head.endswith("FABRIC")
    for line in lines:
        assert line.endswith(f"3 for {X2}") == (line.split()[0] in PAIR)


# Killed at every step


@pytest.mark.parametrize("when", STEPS)
@pytest.mark.parametrize("call", ["partitions", "rename", "activate"])
def test_killed_while_it_activates_one_the_next_daemon_deactivates_it(node: Node, when: str, call: str) -> None:
    kill(node, when, call)
    killed(lambda: node.give("one", X2, key_of(PAIR)))
    node.restart()
    node.turn()
    assert (node.board.active, dict(node.records.read())) == (set(), {})
    assert all(device.healthy for resource in node.listed.values() for device in resource.devices.values())


@pytest.mark.parametrize("when", STEPS)
def test_killed_while_it_deactivates_one_the_next_daemon_goes_on(node: Node, when: str) -> None:
    node.give("one", X2, key_of(PAIR))
    node.turn()
    node.end("one")
    kill(node, when, "deactivate")
    killed(node.turn)
    node.restart()
    node.turn()
    assert (node.board.active, dict(node.records.read())) == (set(), {})


@pytest.mark.parametrize("when", STEPS)
@pytest.mark.parametrize(("method", "while_it"), [("write", "activates"), ("remove", "deactivates")])
def test_killed_at_its_record_the_next_daemon_goes_on(
    node: Node, when: str, method: str, while_it: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = getattr(ActivatedPartitions, method)

    def die(self: ActivatedPartitions, *arguments: object) -> None:
        if when == "after":
            made(self, *arguments)
        raise Killed

    if while_it == "deactivates":
        node.give("one", X2, key_of(PAIR))
        node.turn()
        node.end("one")
    with monkeypatch.context() as patch:
        patch.setattr(ActivatedPartitions, method, die)
        if while_it == "activates":
            node.board.active.add(5)  # so the board is another one, and the daemon writes the record itself
        killed(node.turn if while_it == "deactivates" else lambda: node.give("one", X2, key_of(PAIR)))
    node.board.active.discard(5)
    node.restart()
    node.turn()
    assert (node.board.active, dict(node.records.read())) == (set(), {})
    assert all(device.healthy for resource in node.listed.values() for device in resource.devices.values())


def test_a_record_that_can_not_be_written_is_no_partition(node: Node) -> None:
    (node.root / "ledger").write_text("")
    with pytest.raises(UnwritableFile):
        node.give("one", X2, key_of(PAIR))
    assert (node.board.active, node.outcomes) == (set(), [])


def test_a_pods_partition_stays_active_over_restarts_of_the_daemon(node: Node) -> None:
    node.give("one", X2, key_of(PAIR))
    node.restart()
    node.turn()
    assert node.board.active == {3}
    node.end("one")
    node.turn()
    assert node.board.active == set()


def test_a_record_of_an_earlier_boot_says_nothing_of_a_partition_of_today(node: Node) -> None:
    node.give("one", X2, key_of(PAIR))
    node.end("one")
    node.boot("second")
    node.restart()
    node.turn()
    assert node.board.active == {3}


def test_a_broken_record_still_says_which_partition_was_activated(node: Node) -> None:
    node.give("one", X2, key_of(PAIR))
    (node.root / "ledger/fabric/3.json").write_text("{")
    node.restart()
    node.turn()
    assert node.board.active == {3}
    node.end("one")
    node.turn()
    assert (node.board.active, dict(node.records.read())) == (set(), {})


def check(node: Node) -> None:
    """No partition is active for two pods, none without a pod, and each pod has one of its own set."""
    pods = {pod: node.cards_of(pod) for pod in node.pods}
    assert all(one.isdisjoint(other) for one, other in combinations(pods.values(), 2))
    assert {cards_of(number) for number in node.board.active} == set(pods.values())


def test_two_hundred_pods_with_kills_of_the_daemon(node: Node) -> None:
    chosen = random.Random(33)
    admitted = kills = 0
    for pod in range(200):
        for other in [each for each in node.pods if chosen.random() < 0.5]:
            node.end(other)
        if chosen.random() < 0.5:
            node.turn()
        die = chosen.random() < 0.4
        if die:
            kill(node, chosen.choice(STEPS), chosen.choice(("partitions", "rename", "activate", "deactivate")))
        size = chosen.choice((1, 2, 4, 8))
        by_partition = size > 1 and chosen.random() < 0.5
        asked = (f"{NAME}-x{size}", 1) if by_partition else (NAME, size)
        try:
            node.admit(f"pod-{pod}", *asked)
            admitted += 1
        except (LookupError, LauncherkitError):
            pass
        except (Killed, BaseExceptionGroup):
            kills += 1
            node.restart()
        node.board.before = node.board.after = lambda call: None
        if chosen.random() < 0.2:
            node.restart()
        node.turn(0 if chosen.random() < 0.5 else 100)
        node.turn(100)
        check(node)
    assert admitted > 60
    assert kills > 20


def test_an_allocation_that_waits_for_a_deactivation_goes_on_after_it(node: Node) -> None:
    node.give("one", X2, key_of(PAIR))
    node.turn()
    node.end("one")

    async def both() -> None:
        turn = asyncio.create_task(node.take_turn())
        await asyncio.sleep(0)
        (_,) = await node.allocator.allocate(X2, [[key_of(PAIR)]])
        node.pods["two"] = X2, (key_of(PAIR),)
        await turn

    node.now += 100
    asyncio.run(both())
    node.turn(0)
    assert node.board.active == {3}


def test_a_board_without_partitions_is_no_board_without_cards(tmp_path: Path) -> None:
    """T2: an empty list says nothing of what is active, so no card is an ordinary one, and no record goes."""
    node = Node(tmp_path, Board())
    node.turn()
    node.give("one", X2, key_of(PAIR))
    node.turn()
    node.end("one")
    table, node.board.table = node.board.table, {}
    node.turn()
    assert node.events[-1][0] == "FabricMisconfigured"
    assert {node.text(card) for card in CARDS} == {"fabric: Fabric Manager lists no partition"}
    assert set(node.records.read()) == {3}
    node.board.table = table
    node.turn()
    node.turn()
    assert (node.board.active, dict(node.records.read()), node.problem(key_of(PAIR), X2)) == (set(), {}, None)


def test_somebody_elses_partition_over_cards_of_a_pod_is_named(node: Node) -> None:
    node.give("one", X2, key_of(PAIR))
    node.turn()
    node.board.active = {1}
    node.turn()
    assert {reason for reason, _ in node.events} >= {"PartitionOfOthers", "PartitionLost"}


@pytest.mark.parametrize("number", [3, 7])
def test_so_is_one_of_a_part_of_them(node: Node, number: int) -> None:
    node.give("one", X4, key_of(cards_of(1)))
    node.turn()
    node.board.active = {number}
    node.turn()
    assert {reason for reason, _ in node.events} >= {"PartitionOfOthers", "PartitionLost"}


def test_a_pods_own_partition_whose_record_is_lost_is_nobody_elses(node: Node) -> None:
    node.give("one", X2, key_of(PAIR))
    node.turn()
    node.records.remove(3)
    node.turn()
    assert node.events == []


def test_cards_of_a_partition_that_can_not_be_activated_are_preferred_last(node: Node) -> None:
    """Without this each pod that a controller makes anew gets the broken one."""
    node.board.codes["activate"] = [-10]
    with raises_code(PARTITION_NOT_CHANGED):
        node.admit("one", NAME, 4)
    node.turn(0)
    node.admit("one", NAME, 4)
    tried = [number for call, number in node.board.calls if call == "activate"]
    assert sorted(tried) == [1, 2]
    node.turn()
    with raises_code(PARTITION_NOT_CHANGED):
        node.board.codes["activate"] = [-10]
        node.admit("two", NAME, 4)
    node.turn(0)
    node.admit("two", NAME, 4)  # there is no other of that size
    assert len(node.board.active) == 2


def test_the_only_partition_that_fits_is_preferred_though_it_has_failed(node: Node) -> None:
    """Another one of that size is in use in part, so it can't be had at all."""
    node.give("pair", X2, key_of(PAIR))
    node.turn()
    node.board.codes["activate"] = [-10]
    with raises_code(PARTITION_NOT_CHANGED):
        node.admit("one", NAME, 4)
    node.turn(0)
    node.admit("one", NAME, 4)
    assert node.board.active == {2, 3}


def test_letting_go_of_fabric_manager_does_not_wait_for_a_call_and_its_process_ends_after_it() -> None:
    """A daemon that is told to end, or has another configuration, while libnvfm hangs."""
    asked, answered = threading.Event(), threading.Event()
    ended: list[str] = []

    class Hangs:
        def ask(self, questions: Sequence[Mapping[str, object]], seconds: float) -> list[bytes]:
            asked.set()
            answered.wait(PATIENCE)
            raise TimeoutError

        def leave(self, problem: Exception) -> str:
            ended.append("killed")
            return "late"

        def end(self) -> None:
            ended.append("ended")

    class Answers(Hangs):
        def ask(self, questions: Sequence[Mapping[str, object]], seconds: float) -> list[bytes]:
            asked.set()
            answered.wait(PATIENCE)
            return [b'{"code": 0, "from": "fmGetSupportedFabricPartitions"}']

    for kind, how in ((Hangs, "killed"), (Answers, "ended")):
        manager = ProcessManager(FabricConfig(), start=kind)
        asked.clear()
        answered.clear()
        ended.clear()

        def ask(manager: ProcessManager = manager) -> None:
            with suppress(LauncherkitError):
                manager.board()

        caller = threading.Thread(target=ask)
        caller.start()
        assert asked.wait(PATIENCE)
        manager.close()
        assert ended == []
        answered.set()
        caller.join()
        assert ended == [how]


def test_before_fabric_manager_was_asked_that_is_the_reason(tmp_path: Path) -> None:
    fabric = Node(tmp_path, Board()).setup.fabric
    assert fabric is not None
    problem = fabric.problem(addresses(*PAIR), 0.0, held=False)
    assert problem is not None
    assert problem.text == "Fabric Manager has not been asked yet"
