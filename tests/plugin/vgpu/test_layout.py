"""Layouts: brought about, kept, asserted, and never at the cost of what is in use (G5)."""

from __future__ import annotations

import errno
from uuid import uuid4

import pytest

from launcherkit_plugin.model.config import LayoutEntry, VgpuRule
from launcherkit_plugin.model.device import NO_USAGE, Usage
from launcherkit_plugin.model.errors import BAD_LAYOUT, NO_VGPU_ROOM, VGPU_IN_USE
from launcherkit_plugin.vgpu.cards import Instance
from launcherkit_plugin.vgpu.layout import Step, apply_layout, difference, type_counts
from launcherkit_plugin.vgpu.maker import Maker
from launcherkit_plugin.vgpu.writer import VgpuWriter
from tests.plugin.vgpu.kernel import A2_4Q, A2_8Q, T4_1Q, T4_2Q, Kernel
from tests.plugin.vgpu.node import Clock, Node
from tests.support.errors import raises_code

FIRST, SECOND, SRIOV = "0000:01:00.0", "0000:02:00.0", "0000:41:00.0"


@pytest.fixture
def kernel() -> Kernel:
    kernel = Kernel()
    kernel.card(FIRST)
    kernel.card(SECOND, mixed=True)
    kernel.card_of_vfs(SRIOV, 6, (A2_4Q, A2_8Q), mib=16384)
    return kernel


def applied(kernel: Kernel, *entries: LayoutEntry, spread: tuple[str, ...] = (), in_use: str = "") -> list[Step]:
    clock = Clock()
    writer = VgpuWriter(Maker(kernel, clock, clock.sleep), kernel.is_open)
    done: list[Step] = []

    def why_it_stays(instance: Instance) -> str | None:
        return f"{instance.device} is in use" if instance.device == in_use else None

    apply_layout(entries, spread, kernel.facts, writer, why_it_stays, done.append)
    return done


def there(kernel: Kernel, card: str) -> dict[str, int]:
    kinds = [type_id for parent, type_id in kernel.mdevs.values() if parent == card]
    return {kind: kinds.count(kind) for kind in kinds}


def test_so_many_of_a_type_are_made_on_a_card_by_its_place_or_address(kernel: Kernel) -> None:
    applied(kernel, LayoutEntry("#0", "GRID T4-1Q", 3), LayoutEntry(SECOND, T4_2Q.id, 1))
    assert there(kernel, FIRST) == {T4_1Q.id: 3}
    assert there(kernel, SECOND) == {T4_2Q.id: 1}


def test_a_layout_that_is_there_changes_nothing(kernel: Kernel) -> None:
    entries = (LayoutEntry("*", "GRID_T4-1Q", 2), LayoutEntry(SRIOV, "NVIDIA A2-8Q", 1))
    with raises_code(BAD_LAYOUT, match=r"0000:41:00\.0"):
        applied(kernel, LayoutEntry(SRIOV, "GRID_T4-1Q", 2))
    applied(kernel, *entries)
    before = kernel.mdevs
    assert applied(kernel, *entries) == []
    assert kernel.mdevs == before
    assert difference(type_counts(entries, (), kernel.facts())[0], kernel.facts()) == []


def test_without_a_number_it_is_as_many_as_there_is_room_for(kernel: Kernel) -> None:
    applied(kernel, LayoutEntry(FIRST, "GRID T4-1Q"), LayoutEntry(SRIOV, "NVIDIA A2-4Q"))
    assert there(kernel, FIRST) == {T4_1Q.id: 4}
    assert len(kernel.gpus["0000:41:01.0"].given) == 4


def test_types_mix_where_the_driver_allows_it(kernel: Kernel) -> None:
    applied(kernel, LayoutEntry(SECOND, "GRID T4-2Q", 1), LayoutEntry(SECOND, "GRID T4-1Q"))
    assert there(kernel, SECOND) == {T4_2Q.id: 1, T4_1Q.id: 2}


def test_another_type_goes_first_where_nothing_uses_it(kernel: Kernel) -> None:
    kernel.make(FIRST, T4_1Q.id, str(uuid4()))
    done = applied(kernel, LayoutEntry(FIRST, "GRID T4-2Q", 2))
    assert [step.action for step in done] == ["remove", "create", "create"]
    assert there(kernel, FIRST) == {T4_2Q.id: 2}


def test_the_types_of_vfs_are_set_and_taken_back(kernel: Kernel) -> None:
    applied(kernel, LayoutEntry(SRIOV, "NVIDIA A2-8Q", 2))
    gpu = kernel.gpus["0000:41:01.0"]
    assert [kind.name for kind in gpu.given.values()] == ["NVIDIA A2-8Q"] * 2
    applied(kernel, LayoutEntry(SRIOV, "743", 0), LayoutEntry(SRIOV, "742", 1))
    assert [kind.name for kind in gpu.given.values()] == ["NVIDIA A2-4Q"]


def test_it_refuses_before_the_first_step_where_something_in_use_would_go(kernel: Kernel) -> None:
    used, free = str(uuid4()), str(uuid4())
    kernel.make(FIRST, T4_1Q.id, used)
    kernel.make(SECOND, T4_1Q.id, free)
    with raises_code(VGPU_IN_USE, match=f"{used} is in use"):
        applied(kernel, LayoutEntry("0000:0*", "GRID T4-2Q", 1), in_use=used)
    assert set(kernel.mdevs) == {used, free}


def test_what_is_in_use_may_stay_where_others_can_go(kernel: Kernel) -> None:
    devices = [str(uuid4()) for _ in range(3)]
    for device in devices:
        kernel.make(FIRST, T4_1Q.id, device)
    applied(kernel, LayoutEntry(FIRST, "GRID T4-1Q", 1), in_use=sorted(devices)[2])
    assert list(kernel.mdevs) == [sorted(devices)[2]]


def test_more_than_fit_is_an_error_that_says_how_far_it_came(kernel: Kernel) -> None:
    with raises_code(NO_VGPU_ROOM, match=r"0000:01:00\.0: GRID T4-2Q: 3 wanted, 2 there"):
        applied(kernel, LayoutEntry(FIRST, "GRID T4-2Q", 3))


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        (
            LayoutEntry("#3", "GRID T4-1Q", 1),
            "no card is called '#3'; there are: 0000:01:00.0, 0000:02:00.0, 0000:41:00.0",
        ),
        (LayoutEntry("0000:09:*", "GRID T4-1Q", 1), "no card is called '0000:09:*'"),
        (LayoutEntry(FIRST, "GRID T4-9Q", 1), "0000:01:00.0 has no vGPU type 'GRID T4-9Q'; did you mean GRID T4-"),
    ],
)
def test_a_card_or_type_that_isnt_there_is_an_error(kernel: Kernel, entry: LayoutEntry, message: str) -> None:
    with raises_code(BAD_LAYOUT) as caught:
        applied(kernel, entry)
    assert message in str(caught.value)


def test_cards_that_a_layout_doesnt_name_are_left_alone(kernel: Kernel) -> None:
    kernel.make(SECOND, T4_1Q.id, str(uuid4()))
    applied(kernel, LayoutEntry(FIRST, "GRID T4-2Q", 1))
    assert there(kernel, SECOND) == {T4_1Q.id: 1}


def test_types_are_spread_over_cards_in_turn_as_kubevirt_does(kernel: Kernel) -> None:
    applied(kernel, spread=("GRID T4-2Q", "GRID T4-1Q", "NVIDIA A2-4Q", "NVIDIA A2-8Q"))
    assert (there(kernel, FIRST), there(kernel, SECOND)) == ({T4_2Q.id: 2}, {T4_1Q.id: 4})
    assert {kind.name for kind in kernel.gpus["0000:41:01.0"].given.values()} == {"NVIDIA A2-4Q"}


def test_a_card_that_the_layout_names_is_not_spread_over(kernel: Kernel) -> None:
    applied(kernel, LayoutEntry(FIRST, "GRID T4-1Q", 1), spread=("GRID T4-2Q",))
    assert (there(kernel, FIRST), there(kernel, SECOND)) == ({T4_1Q.id: 1}, {T4_2Q.id: 2})


def test_the_difference_names_what_is_missing_and_what_is_too_much(kernel: Kernel) -> None:
    kernel.make(FIRST, T4_1Q.id, str(uuid4()))
    entries = (LayoutEntry(FIRST, "GRID T4-2Q", 2), LayoutEntry(SECOND, "GRID T4-1Q"))
    assert difference(type_counts(entries, (), kernel.facts())[0], kernel.facts()) == [
        "0000:01:00.0: GRID T4-1Q: 0 wanted, 1 there",
        "0000:01:00.0: GRID T4-2Q: 2 wanted, 0 there",
        "0000:02:00.0: GRID T4-1Q: as many wanted as there is room for: 0 exist, and there is room for 4 more",
    ]


# In the daemon


def keeping(kernel: Kernel, *entries: LayoutEntry, spread: tuple[str, ...] = ()) -> Node:
    return Node(kernel, mdevs=(VgpuRule(("GRID T4-*",)),), layout=entries, spread=spread)


def test_the_daemon_makes_the_layout_and_advertises_it(kernel: Kernel) -> None:
    node = keeping(kernel, LayoutEntry("#0", "GRID T4-1Q", 2))
    node.turn()
    assert len(node.healthy("nvidia.com/GRID_T4-1Q")) == 2
    uuids = set(kernel.mdevs)
    kernel.reboot()
    node.restart()
    node.turn()
    assert set(kernel.mdevs) == uuids


def test_the_daemon_reports_what_its_layout_names_and_is_not_there_and_makes_the_rest(kernel: Kernel) -> None:
    node = keeping(kernel, LayoutEntry("0000:99:00.0", "GRID T4-1Q", 1), LayoutEntry("#0", "GRID T4-1Q", 2))
    node.turn()
    node.turn()
    assert len(kernel.mdevs) == 2
    assert any("no card is called '0000:99:00.0'" in line for line in node.recorded.lines)


def test_the_daemon_keeps_the_layout_though_nobody_uses_it(kernel: Kernel) -> None:
    node = keeping(kernel, LayoutEntry("#0", "GRID T4-1Q", 2))
    for _ in range(3):
        node.turn()
        node.clock.now += 1000
    kernel.unmake(next(iter(kernel.mdevs)))
    node.turn()
    assert len(kernel.mdevs) == 2


def test_a_changed_layout_waits_for_what_a_pod_has(kernel: Kernel) -> None:
    node = keeping(kernel, LayoutEntry("#0", "GRID T4-1Q", 2))
    node.turn()
    held = sorted(kernel.mdevs)[0]
    node.hold("nvidia.com/GRID_T4-1Q", held)
    node.config = node.config._replace(layout=(LayoutEntry("#0", "GRID T4-2Q", 2),))
    node.restart()
    node.turn()
    assert list(kernel.mdevs) == [held]
    node.usage = Usage("pod-resources", {})
    node.turn()
    assert there(kernel, FIRST) == {T4_2Q.id: 2}


def test_the_daemon_touches_neither_what_others_made_nor_anything_while_usage_is_unknown(kernel: Kernel) -> None:
    foreign = str(uuid4())
    kernel.make(FIRST, T4_1Q.id, foreign)
    node = keeping(kernel, LayoutEntry("#0", "GRID T4-2Q", 2))
    node.turn()
    assert list(kernel.mdevs) == [foreign]
    node = keeping(kernel, LayoutEntry("#1", "GRID T4-2Q", 2))
    node.usage = NO_USAGE
    node.turn()
    assert list(kernel.mdevs) == [foreign]


def test_what_is_wrong_with_a_layout_is_reported_once_and_the_rest_is_done(kernel: Kernel) -> None:
    node = keeping(kernel, LayoutEntry("#0", "GRID T4-1Q", 1), LayoutEntry("#9", "GRID T4-1Q", 1))
    for _ in range(3):
        node.turn()
    assert len(kernel.mdevs) == 1
    assert len([line for line in node.recorded.lines if "LK736" in line]) <= 2


def test_the_first_step_that_a_card_refuses_ends_its_round(kernel: Kernel) -> None:
    written: list[str] = []

    def refuse(path: str) -> None:
        written.append(path)
        raise OSError(errno.EIO, "Input/output error")

    kernel.touched = refuse
    keeping(kernel, LayoutEntry("#0", "GRID T4-1Q", 3)).turn()
    assert len(written) == 1


def test_a_full_card_whose_types_the_driver_doesnt_name_is_left_as_it_is(kernel: Kernel) -> None:
    node = keeping(kernel, LayoutEntry(SRIOV, "NVIDIA A2-8Q", 2))
    node.turn()
    given = dict(kernel.gpus["0000:41:01.0"].given)
    node.restart()
    for _ in range(3):
        node.turn()
        node.clock.now += 1000
    assert kernel.gpus["0000:41:01.0"].given == given
    lines = [line for line in node.recorded.lines if "layout: " in line]
    assert "LK732" in lines[-1], "it is full, and not called a wrong type"
    assert not any("LK736" in line for line in lines)
