"""Counters that devices share, so that the scheduler never allocates devices that exclude each other (D3)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from math import lcm
from typing import NamedTuple

from launcherkit.model.address import PciAddress
from launcherkit_plugin.dra.labels import label

MAX_COUNTERS = 32
"""The most counters in a set."""
LARGEST = 1 << 31
"""The largest value of a counter, used if the types of a card have no small common multiple."""


class CounterUse(NamedTuple):
    """How much a device consumes of a shared counter."""

    set: str
    counter: str
    amount: int
    total: int
    """The value of the counter when nothing is allocated."""


class Sharer(NamedTuple):
    """The properties of a device that determine what it shares with others."""

    id: str
    groups: frozenset[int]
    """IOMMU groups (K3)."""
    card: str
    """Of a vGPU, its card; of a VF, its physical function; else empty."""
    per_card: int
    """Of a vGPU, how many of its type fit on the card; 0: unknown."""
    place: str
    """Devices with the same place are alternatives."""
    functions: tuple[PciAddress, ...]
    in_container: bool = False
    """Containers use it through the host's driver; others may use devices of its groups (K10)."""


def counter_uses(sharers: Sequence[Sharer]) -> list[tuple[CounterUse, ...]]:
    """What each device consumes: from at most two sets, that of its groups and that of its card."""
    uses: list[list[CounterUse]] = [[] for _ in sharers]
    for position, use in chain(_of_groups(sharers), _of_cards(sharers)):
        uses[position].append(use)
    return [tuple(each) for each in uses]


def _of_groups(sharers: Sequence[Sharer]) -> Iterable[tuple[int, CounterUse]]:
    """A counter for each group or place that several devices share; connected counters form a set.

    A device for VMs consumes the whole counter. A device for containers consumes 1, so that containers can have all of
    theirs at once.
    """
    members: dict[object, list[int]] = {}
    for position, sharer in enumerate(sharers):
        for key in (*sharer.groups, sharer.place):
            members.setdefault(key, []).append(position)
    shared = {tuple(positions) for positions in members.values() if len(positions) > 1}
    for cluster in _clusters(shared):
        everyone = sorted({position for positions in cluster for position in positions})
        name = label("group", min(sharers[position].id for position in everyone))
        counted = sorted(_largest(cluster), key=lambda positions: sorted(sharers[at].id for at in positions))
        if len(counted) > MAX_COUNTERS:
            counted = [tuple(everyone)]
        for number, positions in enumerate(counted):
            counter = f"group-{number}" if len(counted) > 1 else "group"
            total = max(1, sum(sharers[position].in_container for position in positions))
            for position in positions:
                yield position, CounterUse(name, counter, 1 if sharers[position].in_container else total, total)


def _largest(cluster: Sequence[tuple[int, ...]]) -> list[tuple[int, ...]]:
    """The lists that are no proper subset of another one, whose counter is enough."""
    sets = [frozenset(positions) for positions in cluster]
    return [positions for positions, own in zip(cluster, sets, strict=True) if not any(own < other for other in sets)]


def _clusters(shared: Iterable[tuple[int, ...]]) -> list[list[tuple[int, ...]]]:
    """The lists of positions, in clusters that are connected by common positions."""
    clusters: dict[int, tuple[set[int], list[tuple[int, ...]]]] = {}
    for positions in shared:
        joined, lists = set(positions), [positions]
        for cluster in {id(before): before for position in positions if (before := clusters.get(position))}.values():
            joined |= cluster[0]
            lists += cluster[1]
        clusters |= dict.fromkeys(joined, (joined, lists))
    return [lists for _, lists in {id(found): found for found in clusters.values()}.values()]


def _of_cards(sharers: Sequence[Sharer]) -> Iterable[tuple[int, CounterUse]]:
    """A counter for the room of each card: a vGPU consumes its share, a VF 1, and the whole card everything. A card on
    which all of its devices fit together has no counter.

    The counters of cards that belong to one device form one set.
    """
    counted = {tuple(room.amounts): room for room in _card_rooms(sharers) if not room.fits_all(sharers)}
    for cluster in _clusters(counted):
        together = sorted((counted[positions] for positions in cluster), key=lambda room: room.card)
        for number, room in enumerate(together):
            counter = f"card-{number}" if len(together) > 1 else "card"
            for position, amount in room.amounts.items():
                yield position, CounterUse(label("card", together[0].card), counter, amount, room.total)


class _CardRoom(NamedTuple):
    """The room of a card."""

    card: str
    amounts: Mapping[int, int]
    """How much of it each device needs, by position."""
    total: int

    def fits_all(self, sharers: Sequence[Sharer]) -> bool:
        """Whether all of the devices fit together; alternatives need as much as the largest of them."""
        places: dict[str, int] = {}
        for position, amount in self.amounts.items():
            place = sharers[position].place
            places[place] = max(places.get(place, 0), amount)
        return sum(places.values()) <= self.total


def _card_rooms(sharers: Sequence[Sharer]) -> Iterator[_CardRoom]:
    """The room of each card that has vGPUs or VFs, with the devices on it and those that have the whole card."""
    parts: dict[str, list[int]] = {}
    for position, sharer in enumerate(sharers):
        if sharer.card:
            parts.setdefault(sharer.card, []).append(position)
    whole: dict[str, list[int]] = {}
    for position, sharer in enumerate(sharers):
        for card in map(str, sharer.functions if parts and not sharer.card else ()):
            if card in parts:
                whole.setdefault(card, []).append(position)
    for card, positions in parts.items():
        total = _room([sharers[position] for position in positions])
        shares = {
            position: total // sharers[position].per_card if sharers[position].per_card else 1 for position in positions
        }
        yield _CardRoom(card, shares | dict.fromkeys(whole.get(card, ()), total), total)


def _room(parts: Sequence[Sharer]) -> int:
    """The number of units of a card, such that each type's share is an integer; devices of unknown share take one."""
    measure = lcm(*{sharer.per_card for sharer in parts if sharer.per_card})
    room = measure if measure <= LARGEST else LARGEST
    unknown = sum(not sharer.per_card for sharer in parts)
    return room * max(1, -(-unknown // room))
