"""Compares a declared layout with the existing vGPUs, plans the next steps, and applies a whole layout (G5).

A layout owns the cards that it names: other vGPUs there are removed. Cards that it doesn't name are left as they are.
Each reading of the host yields one round of steps, because the remaining room can only be read after each change.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import count as counting
from typing import Literal, NamedTuple, TypeAlias

from launcherkit.errors import BadConfig, Collector, LauncherkitError, NoPlace
from launcherkit.model.address import PciAddress
from launcherkit.model.host import HostFacts
from launcherkit_plugin.model.config import LayoutEntry
from launcherkit_plugin.model.errors import BAD_LAYOUT, NO_VGPU_ROOM, VGPU_IN_USE
from launcherkit_plugin.vgpu.cards import Instance, VgpuCard, cards, instances_on, is_meant, is_type, kinds_of
from launcherkit_plugin.vgpu.mdev_slots import MdevSlot
from launcherkit_plugin.vgpu.writer import VgpuWriter

WhyItStays: TypeAlias = Callable[[Instance], str | None]
"""Returns why a vGPU must stay; None if it may be removed."""


class TypeCount(NamedTuple):
    """How many vGPUs of a type a layout wants on a card."""

    card: VgpuCard
    type_id: str
    type_name: str
    """The name of the type, or its ID."""
    number: int | None
    """None: as many as fit."""


class Step(NamedTuple):
    """A vGPU to create or remove."""

    action: Literal["create", "remove"]
    card: str
    instance: Instance


class Round(NamedTuple):
    """The next steps, and what prevents others."""

    steps: tuple[Step, ...]
    blocked: tuple[str, ...]
    """Why unwanted vGPUs stay, in words."""


def type_counts(
    entries: Sequence[LayoutEntry], spread: Sequence[str], host: HostFacts
) -> tuple[list[TypeCount], list[LauncherkitError]]:
    """What a layout asks for on this host, and an error for each entry that matches no card or type."""
    all_cards = cards(host)
    counts: dict[tuple[str, str], TypeCount] = {}
    errors: list[LauncherkitError] = []
    for entry in entries:
        meant = cards_of(entry.parent, all_cards)
        pattern = entry.type
        kinds = [] if pattern is None else [(card, kind) for card in meant for kind in kinds_like(pattern, card, host)]
        for card, (type_id, type_name) in kinds:
            counts.setdefault((card.name, type_id), TypeCount(card, type_id, type_name, entry.count))
        if not meant:
            errors.append(_no_card(entry, all_cards))
        elif pattern is not None and not kinds:
            errors.append(_no_type(pattern, meant, host))
    named = {card for card, _ in counts} | {
        card.name for entry in entries for card in cards_of(entry.parent, all_cards)
    }
    rest = [card for card in all_cards if card.name not in named]
    return [*counts.values(), *_spread(spread, rest, host)], errors


def vfs_needed(entries: Sequence[LayoutEntry], card: PciAddress) -> int:
    """How many virtual functions a layout needs of a card that has none yet; 0: it doesn't say.

    A card that the layout names by number isn't known before it has some.
    """
    counts = [entry.count for entry in entries if is_meant(entry.parent, (str(card),))]
    return 0 if None in counts else sum(number for number in counts if number is not None)


def _no_card(entry: LayoutEntry, all_cards: Sequence[VgpuCard]) -> BadConfig:
    listed = ", ".join(card.name for card in all_cards) or "none"
    return BAD_LAYOUT(
        f"layout: no card is called {entry.parent!r}; there are: {listed}", _REMEDY, device=entry.parent, key="layout"
    )


def _no_type(kind: str, meant: Sequence[VgpuCard], host: HostFacts) -> LauncherkitError:
    names = ", ".join(card.name for card in meant)
    nameless = {it.type_id for card in meant for it in instances_on(card, host) if not it.named}
    if nameless:
        return NO_VGPU_ROOM(
            f"layout: {names}: whether its vGPUs of type {', '.join(sorted(nameless))} are {kind!r} isn't known: the "
            "driver names a type only while there is room for another vGPU of it",
            "If they are, nothing has to be done: they stay, and are known again once one is gone. The number of the "
            "type in place of its name tells it at once.",
            device=names,
            key="layout",
        )
    reason = ""
    if any(card.vfs and not kinds_of(card, host) for card in meant):
        reason = ": the driver offers none; with MIG on, it needs GPU instances before the VFs are made"
    return BAD_LAYOUT(
        f"layout: {names} has no vGPU type {kind!r}{reason or near_type(kind, meant, host)}",
        _REMEDY,
        device=names,
        key="layout",
    )


_REMEDY = "`launcherkit-plugin vgpu list` shows the cards of this node, with their types."


def cards_of(pattern: str, all_cards: Sequence[VgpuCard]) -> list[VgpuCard]:
    """The cards that a glob matches; ``#N`` is the one with that number."""
    if pattern.startswith("#") and pattern[1:].isascii() and pattern[1:].isdigit():
        return list(all_cards[int(pattern[1:]) :][:1])
    return [card for card in all_cards if is_meant(pattern, (card.name, *(parent.name for parent in card.parents)))]


def kinds_like(pattern: str, card: VgpuCard, host: HostFacts) -> list[tuple[str, str]]:
    """The types of a card that match a glob: ID and name of each."""
    kinds = kinds_of(card, host)
    if card.vfs and pattern.isascii() and pattern.isdigit():
        kinds.setdefault(pattern, pattern)  # the driver doesn't list types for which there is no room
    return [(type_id, what) for type_id, what in kinds.items() if is_type(pattern, type_id, what)]


def near_type(text: str, cards: Sequence[VgpuCard], host: HostFacts) -> str:
    """``; did you mean GRID T4-1Q?`` if a type of these cards has a similar name; else empty."""
    from launcherkit.diff import did_you_mean  # only for an error

    return did_you_mean(text, {what for card in cards for what in kinds_of(card, host).values()})


def _spread(types: Sequence[str], all_cards: Sequence[VgpuCard], host: HostFacts) -> Iterator[TypeCount]:
    """Assign types to cards in turn, each to the next card that offers it, until no card is left that fits."""
    left = list(all_cards)
    while True:
        before = len(left)
        for pattern in types:
            card = next((card for card in left if kinds_like(pattern, card, host)), None)
            if card is not None:
                left.remove(card)
                yield TypeCount(card, *kinds_like(pattern, card, host)[0], None)
        if len(left) == before:
            return


def difference(counts: Iterable[TypeCount], host: HostFacts) -> list[str]:
    """A line for each type with a wrong number of vGPUs."""
    lines = []
    for card, of_card in _by_card(counts).items():
        existing = _by_type(instances_on(card, host))
        for type_id in sorted({*existing, *of_card}):
            number = len(existing.get(type_id, ()))
            asked = of_card.get(type_id)
            type_name = asked.type_name if asked else existing[type_id][0].type_name
            if asked is not None and asked.number is None:
                room = len(free_on(card, type_id, type_name, host))
                if room or not number:
                    have = f"{number} exist, and there is room for {room} more"
                    lines.append(f"{card.name}: {type_name}: as many wanted as there is room for: {have}")
            elif number != (asked.number if asked else 0):
                lines.append(f"{card.name}: {type_name}: {asked.number if asked else 0} wanted, {number} there")
    return lines


def next_round(counts: Iterable[TypeCount], host: HostFacts, why_it_stays: WhyItStays) -> Round:
    """The next steps to a layout: on each card, first surplus vGPUs are removed, then those of one type are created."""
    steps: list[Step] = []
    blocked: list[str] = []
    for card, of_card in _by_card(counts).items():
        existing = _by_type(instances_on(card, host))
        going: list[Step] = []
        for type_id, instances in existing.items():
            asked = of_card.get(type_id)
            keep = 0 if asked is None else len(instances) if asked.number is None else asked.number
            going += _too_many(card, instances, keep, why_it_stays, blocked)
        steps += going or _too_few(card, of_card, existing, host)
    return Round(tuple(steps), tuple(blocked))


def _too_many(
    card: VgpuCard, instances: Sequence[Instance], keep: int, why_it_stays: WhyItStays, blocked: list[str]
) -> Iterator[Step]:
    surplus = len(instances) - keep
    stays = []
    for instance in reversed(instances):
        if surplus > 0:
            reason = why_it_stays(instance)
            if reason is None:
                surplus -= 1
                yield Step("remove", card.name, instance)
            else:
                stays.append(reason)
    if surplus > 0:
        blocked += stays


def _too_few(
    card: VgpuCard, counts: Mapping[str, TypeCount], existing: Mapping[str, Sequence[Instance]], host: HostFacts
) -> list[Step]:
    """Create vGPUs of the first type that has too few and for which there is room."""
    for type_id, asked in counts.items():
        free = free_on(card, type_id, asked.type_name, host)
        missing = None if asked.number is None else max(0, asked.number - len(existing.get(type_id, ())))
        steps = [Step("create", card.name, instance) for instance in free[:missing]]
        if steps:
            return steps
    return []


def free_on(card: VgpuCard, type_id: str, type_name: str, host: HostFacts) -> list[Instance]:
    """The vGPUs of a type that could be created now."""
    free = []
    for parent in card.parents:
        room = sum(kind.available_instances or 0 for kind in parent.types if kind.id == type_id)
        slots = (MdevSlot(parent.name, type_id, number, "layout").uuid for number in counting())
        new = (uuid for uuid in slots if uuid not in host.mdevs)
        free += [Instance(next(new), parent.name, type_id, type_name) for _ in range(room)]
    for vf in card.vfs:
        state = host.details[vf].vgpu
        if state is not None and not state.current_type and type_id in {str(number) for number, _ in state.creatable}:
            free.append(Instance(str(vf), card.name, type_id, type_name))
    return free


def _by_card(counts: Iterable[TypeCount]) -> dict[VgpuCard, dict[str, TypeCount]]:
    by_name: dict[str, dict[str, TypeCount]] = {}
    of_name: dict[str, VgpuCard] = {}
    for asked in counts:
        of_name[asked.card.name] = asked.card
        by_name.setdefault(asked.card.name, {})[asked.type_id] = asked
    return {of_name[name]: kinds for name, kinds in by_name.items()}


def _by_type(instances: Iterable[Instance]) -> dict[str, list[Instance]]:
    by_type: dict[str, list[Instance]] = {}
    for instance in instances:
        by_type.setdefault(instance.type_id, []).append(instance)
    return by_type


def do_step(step: Step, writer: VgpuWriter) -> bool:
    """Do one step; returns whether this changed something.

    Raises:
        LauncherkitError: see `VgpuWriter`.
    """
    return writer.create(step.instance) if step.action == "create" else writer.remove(step.instance)


def apply_layout(
    entries: Sequence[LayoutEntry],
    spread: Sequence[str],
    look: Callable[[], HostFacts],
    writer: VgpuWriter,
    why_it_stays: WhyItStays,
    done: Callable[[Step], None],
) -> None:
    """Apply a layout to a host, or refuse it before the first step.

    Args:
        entries: the layout.
        spread: types for the cards that it doesn't name.
        look: reads the host.
        writer: creates and removes vGPUs.
        why_it_stays: says why a vGPU must stay.
        done: called with each step that was done.

    Raises:
        BAD_LAYOUT: a card or type doesn't exist.
        VGPU_IN_USE: a vGPU in use would have to be removed; nothing was changed.
        NO_VGPU_ROOM: the layout can't be reached; the message says what is missing, or that a card is full.
        LauncherkitError: a step failed.
    """
    host = look()
    check_layout(entries, spread, host, why_it_stays)
    while True:
        counts, _ = type_counts(entries, spread, host)
        steps = next_round(counts, host, why_it_stays).steps
        changed = False
        for step in steps:
            with suppress(NoPlace):  # the next reading shows for what there is room
                changed |= do_step(step, writer)
                done(step)
        host = look()
        if not changed:
            break
    left = difference(type_counts(entries, spread, host)[0], host)
    if left:
        raise NO_VGPU_ROOM(
            f"the layout can't be reached: {'; '.join(left)}",
            "The cards can't hold these vGPUs together: see the driver's rules for mixing types.",
            key="layout",
        )


def check_layout(
    entries: Sequence[LayoutEntry], spread: Sequence[str], host: HostFacts, why_it_stays: WhyItStays
) -> tuple[Step, ...]:
    """The first steps to a layout.

    Raises:
        BAD_LAYOUT: a card or type doesn't exist.
        NO_VGPU_ROOM: a card is full, so its driver doesn't tell which types it has.
        VGPU_IN_USE: a vGPU in use would have to be removed.
    """
    counts, unknown = type_counts(entries, spread, host)
    errors = Collector()
    for error in unknown:
        errors.add(error)
    coming = next_round(counts, host, why_it_stays)
    for reason in coming.blocked:
        errors.add(VGPU_IN_USE(reason, "Stop the VM that has it, or change the layout.", key="layout"))
    errors.raise_if_any()
    return coming.steps
