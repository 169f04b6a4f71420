"""Plans the GPU instances of a card: which to destroy, and which to create where (G6)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from typing import NamedTuple

from launcherkit.errors import LauncherkitError
from launcherkit_plugin.model.config import GpuInstances
from launcherkit_plugin.model.errors import BAD_LAYOUT, GPU_INSTANCES_REFUSED
from launcherkit_plugin.vgpu.nvml import MigCard, Placed, Profile


class MigPlan(NamedTuple):
    """What is missing from a card, and what is too much."""

    remove: tuple[Placed, ...] = ()
    create: tuple[Placed, ...] = ()

    @property
    def steps(self) -> list[tuple[str, Placed]]:
        """What is done to which, in order."""
        return [*(("destroy", each) for each in self.remove), *(("create", each) for each in self.create)]


def plan(name: str, card: MigCard, declared: Sequence[GpuInstances], ours: Set[Placed]) -> MigPlan:
    """How a card gets the declared GPU instances.

    Those that others made count, and stay. As many as possible of ours stay; all of them are made anew if the missing
    ones have no room beside them.

    Args:
        name: of the card.
        card: its state, in MIG mode.
        declared: how many of which profiles.
        ours: the instances that may be destroyed.

    Raises:
        BAD_LAYOUT: the card has no such profile.
        GPU_INSTANCES_REFUSED: it can't hold all of them together, with those that others made.
    """
    counts: dict[int, int] = {}
    for instances in declared:
        profile = _profile(name, card, instances.profile)
        counts[profile.id] = counts.get(profile.id, 0) + instances.number
    too_many = any(counts.get(profile.id, 0) > profile.most for profile in card.profiles)
    for stay in () if too_many else (card.instances - _surplus(card, counts, ours), card.instances - ours):
        missing = [
            profile
            for profile in sorted(card.profiles, key=_size, reverse=True)
            for _ in range(counts.get(profile.id, 0) - sum(each.profile == profile.id for each in stay))
        ]
        placed = next(_placed(missing, sorted(stay)), None)
        if placed is not None:
            new = frozenset(placed)  # one that is destroyed and made again at the same place stays
            gone = card.instances - stay
            return MigPlan(tuple(sorted(gone - new)), tuple(each for each in placed if each not in gone))
    raise _no_room(name, card, declared, ours)


def _profile(name: str, card: MigCard, text: str) -> Profile:
    sought = text.lower().removeprefix("mig ")
    for profile in card.profiles:
        if sought in (profile.name.lower(), str(profile.id)):
            return profile
    offered = ", ".join(f"{each.name} ({each.id})" for each in card.profiles) or "none"
    raise BAD_LAYOUT(
        f"layout: {name} has no GPU instance profile {text!r}; there are: {offered}",
        "`nvidia-smi mig -lgip` on the node shows them too.",
        device=name,
        key="layout",
    )


def _surplus(card: MigCard, counts: dict[int, int], ours: Set[Placed]) -> set[Placed]:
    """What must go of ours: of each profile the last ones."""
    gone: set[Placed] = set()
    for profile in {each.profile for each in card.instances}:
        of_profile = [each for each in card.instances if each.profile == profile]
        too_many = len(of_profile) - counts.get(profile, 0)
        gone.update(sorted(set(of_profile) & ours, reverse=True)[: max(0, too_many)])
    return gone


def _size(profile: Profile) -> int:
    return max((size for _, size in profile.placements), default=0)


def _placed(
    missing: Sequence[Profile], taken: Sequence[Placed], before: tuple[Placed, ...] = ()
) -> Iterator[tuple[Placed, ...]]:
    """The ways to place instances beside others. Equal ones are placed in ascending order, to try no way twice."""
    if not missing:
        yield before
        return
    profile = missing[0]
    for start, size in sorted(profile.placements):
        new = Placed(profile.id, start, size)
        in_order = not before or before[-1].profile != new.profile or before[-1] < new
        if in_order and not any(new.overlaps(each) for each in (*taken, *before)):
            yield from _placed(missing[1:], taken, (*before, new))


def _no_room(name: str, card: MigCard, declared: Sequence[GpuInstances], ours: Set[Placed]) -> LauncherkitError:
    text = ", ".join(f"{each.number} of {each.profile}" for each in declared)
    others = ", ".join(map(card.text, sorted(card.instances - ours)))
    beside = f" beside those that others made ({others})" if others else ""
    return GPU_INSTANCES_REFUSED(
        f"{name} can't hold {text} together{beside}",
        "`nvidia-smi mig -lgipp` on the node shows where each profile can be. Nothing was changed.",
        device=name,
        key="layout",
    )
