"""Which GPU instances are destroyed, and which are created where (G6)."""

from __future__ import annotations

from itertools import combinations_with_replacement, product

import pytest

from launcherkit_plugin.model.config import GpuInstances
from launcherkit_plugin.model.errors import BAD_LAYOUT, GPU_INSTANCES_REFUSED
from launcherkit_plugin.vgpu.mig_plan import MigPlan, plan
from launcherkit_plugin.vgpu.nvml import MigCard, Placed
from tests.plugin.vgpu.mig import BY_NAME, PROFILES, a100
from tests.support.errors import raises_code

CARD = "0000:41:00.0"


def wanted(**counts: int) -> list[GpuInstances]:
    return [GpuInstances(name, number) for name, number in counts.items()]


def at(name: str, start: int) -> Placed:
    profile = BY_NAME[name]
    return Placed(profile.id, start, dict(profile.placements)[start])


def slices(instance: Placed) -> set[int]:
    return {*range(instance.start, instance.start + instance.size)}


def could_hold(names: tuple[str, ...]) -> bool:
    """Whether some choice of a place for each leaves no slice to two: by trying all."""
    for choice in product(*(BY_NAME[name].placements for name in names)):
        taken = [at for start, size in choice for at in range(start, start + size)]
        if len({*taken}) == len(taken):
            return True
    return False


@pytest.mark.parametrize("names", [*combinations_with_replacement([profile.name for profile in PROFILES], 3)])
def test_what_a_card_can_hold_is_placed_without_a_slice_for_two(names: tuple[str, ...]) -> None:
    counts = {name: names.count(name) for name in names}
    too_many = any(number > BY_NAME[name].most for name, number in counts.items())
    if too_many or not could_hold(names):
        with raises_code(GPU_INSTANCES_REFUSED, match="can't hold"):
            plan(CARD, a100(), wanted(**counts), frozenset())
        return
    made = plan(CARD, a100(), wanted(**counts), frozenset())
    assert made.remove == ()
    assert sorted(each.profile for each in made.create) == sorted(BY_NAME[name].id for name in names)
    taken = [number for each in made.create for number in slices(each)]
    assert len({*taken}) == len(taken)
    assert all(
        (each.start, each.size) in profile.placements
        for each in made.create
        for profile in PROFILES
        if profile.id == each.profile
    )


def test_seven_of_the_smallest_fill_a_card_and_eight_are_refused() -> None:
    made = plan(CARD, a100(), wanted(**{"1g.5gb": 7}), frozenset())
    assert [each.start for each in made.create] == [*range(7)]
    with raises_code(GPU_INSTANCES_REFUSED, match=r"can't hold 8 of 1g\.5gb"):
        plan(CARD, a100(), wanted(**{"1g.5gb": 8}), frozenset())
    with raises_code(GPU_INSTANCES_REFUSED):
        plan(CARD, a100(), wanted(**{"1g.5gb": 10**9}), frozenset())


def test_a_profile_is_named_as_nvidia_smi_does_or_by_its_id() -> None:
    for name in ("1g.5gb", "MIG 1g.5gb", "1G.5GB", "19"):
        assert plan(CARD, a100(), [GpuInstances(name, 1)], frozenset()).create == (at("1g.5gb", 0),)
    with raises_code(
        BAD_LAYOUT, match=r"no GPU instance profile '1g\.6gb'; there are: 1g\.5gb \(19\), 1g\.5gb\+me \(20\)"
    ):
        plan(CARD, a100(), [GpuInstances("1g.6gb", 1)], frozenset())


def test_what_is_there_counts_whoever_made_it() -> None:
    card = a100(at("1g.5gb", 2), at("1g.5gb", 5))
    ours = frozenset({at("1g.5gb", 2)})
    assert plan(CARD, card, wanted(**{"1g.5gb": 2}), ours) == MigPlan()
    assert plan(CARD, card, wanted(**{"1g.5gb": 3}), ours) == MigPlan((), (at("1g.5gb", 0),))


def test_only_ours_are_destroyed_the_last_ones_first() -> None:
    card = a100(*(at("1g.5gb", start) for start in range(4)))
    ours = frozenset({at("1g.5gb", 1), at("1g.5gb", 2)})
    assert plan(CARD, card, wanted(**{"1g.5gb": 3}), ours) == MigPlan((at("1g.5gb", 2),), ())
    assert plan(CARD, card, (), ours) == MigPlan((at("1g.5gb", 1), at("1g.5gb", 2)), ())
    assert plan(CARD, card, (), frozenset()) == MigPlan()


def test_ours_are_made_anew_where_they_are_in_the_way_and_those_of_others_are_not() -> None:
    in_the_way = a100(at("1g.5gb", 1), at("1g.5gb", 6))
    both = wanted(**{"4g.20gb": 1, "1g.5gb": 2})
    made = plan(CARD, in_the_way, both, in_the_way.instances)
    assert at("4g.20gb", 0) in made.create
    assert made.remove == (at("1g.5gb", 1), at("1g.5gb", 6)) or at("1g.5gb", 6) not in made.remove
    after = (in_the_way.instances - {*made.remove}) | {*made.create}
    assert sorted(each.profile for each in after) == [5, 19, 19]
    with raises_code(GPU_INSTANCES_REFUSED, match=r"beside those that others made \(1g\.5gb at 1\)"):
        plan(CARD, in_the_way, both, frozenset({at("1g.5gb", 6)}))


def test_a_card_out_of_mig_mode_has_nothing_to_give_back() -> None:
    assert plan(CARD, MigCard(False, False), (), frozenset()) == MigPlan()
