"""Which free devices a container should preferably get: whole groups on one NUMA node (K3), packed vGPUs (G1), and
replicas of shared cards by the number of users of each card (K10)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from itertools import pairwise
from typing import NamedTuple

from launcherkit_plugin.model.device import Device, Resource, cards_in, without_replica


class _Bundle(NamedTuple):
    """Devices that share IOMMU groups: once a pod has one, no other pod can get the rest."""

    ids: tuple[str, ...]
    place: _Place


class _Place(NamedTuple):
    """Where a device is."""

    numa_node: int | None
    switch: tuple[str, ...]
    """The bridges from the root complex down to it."""


class _Kind(NamedTuple):
    """Bundles of one kind cost the same, so only the first of each kind is considered."""

    opened: bool
    """A part of the bundle is taken already."""
    left: int
    """How many devices are free."""
    place: _Place


MAX_STARTS = 32
"""From how many kinds of bundles a search starts. A node has fewer switches than that."""

MAX_SCORES = 100_000
"""How many choices are scored for one answer, which takes a tenth of a second. Only a request for hundreds of devices
out of thousands reaches this, and then has fewer starts."""


class _Score(NamedTuple):
    """What a choice costs, the most important part first; less is better."""

    broken: int
    """Groups of which only a part is taken."""
    nodes: int
    switches: int
    left: int
    """Devices still to be found: large bundles are preferred."""
    ids: tuple[str, ...]
    """Makes the answer deterministic."""


def prefer(
    devices: Mapping[str, Device],
    available: Sequence[str],
    must_include: Sequence[str],
    size: int,
    blocked: Sequence[str] = (),
) -> list[str]:
    """The ``size`` devices of ``available`` to take, ``must_include`` first; fewer if there aren't as many.

    vGPUs are packed onto few cards. For other devices the order of preference is: nothing that would be refused, no
    group split, few NUMA nodes, few switches, the lowest IDs. A greedy search starts once from each kind of bundle;
    it is good, not exhaustive.

    Args:
        devices: of the resource, by ID; an available ID that isn't among them is taken last.
        available: the IDs that the kubelet considers free and healthy.
        must_include: those of them that the kubelet requires.
        size: how many.
        blocked: those that an Allocate would refuse because a pod has their group; taken in this order, when nothing
            else is left.
    """
    chosen, free = chosen_and_free(available, must_include, size, blocked)
    if any(devices[device].card for device in available if device in devices):
        return with_last_resort(_packed(devices, available, chosen, free), size, blocked)
    if len(chosen) + len(free) <= size:
        return with_last_resort(chosen + sorted(free), size, blocked)
    bundles = _bundles(devices, [*chosen, *free])
    if chosen:
        return _Search(bundles, chosen, size).best()[1]
    kinds: dict[_Kind, _Bundle] = {}
    for bundle in bundles:
        kinds.setdefault(_Kind(opened=False, left=len(bundle.ids), place=bundle.place), bundle)
    starts = sorted(kinds.values(), key=lambda bundle: (abs(len(bundle.ids) - size), bundle.ids))
    worth = max(1, min(MAX_STARTS, MAX_SCORES // (len(kinds) * max(size, 1))))
    return min(_Search(bundles, bundle.ids[:size], size).best() for bundle in starts[:worth])[1]


def chosen_and_free(
    available: Iterable[str], must_include: Iterable[str], size: int, blocked: Iterable[str]
) -> tuple[list[str], list[str]]:
    """The IDs that are already decided, and those to choose from, each once. The arguments are those of `prefer`."""
    chosen = list(dict.fromkeys(must_include))[:size]
    excluded = {*chosen, *blocked}
    return chosen, [device for device in dict.fromkeys(available) if device not in excluded]


def with_last_resort(preferred: Sequence[str], size: int, blocked: Iterable[str]) -> list[str]:
    """The preferred IDs, filled up to ``size`` with those that an Allocate would refuse."""
    return list(dict.fromkeys((*preferred, *blocked)))[:size]


class _Search:
    """A greedy search: starts with some IDs, then always takes the bundle that adds the least cost."""

    def __init__(self, bundles: Sequence[_Bundle], chosen: Iterable[str], size: int) -> None:
        self._size = size
        self._taken = list(chosen)
        have = set(self._taken)
        self._nodes: set[int | None] = set()
        self._switches: set[tuple[str, ...]] = set()
        self._broken = 0
        self._kinds: dict[_Kind, list[tuple[str, ...]]] = {}
        """The free IDs of each bundle that has any, the first bundle last."""
        for bundle in reversed(bundles):
            rest = tuple(device for device in bundle.ids if device not in have)
            opened = len(rest) < len(bundle.ids)
            if opened:
                self._visit(bundle.place)
            if rest:
                self._broken += opened
                self._kinds.setdefault(_Kind(opened, len(rest), bundle.place), []).append(rest)

    def best(self) -> tuple[_Score, list[str]]:
        """The cost and the IDs."""
        while len(self._taken) < self._size:
            self._add(min(self._kinds, key=self._score))
        score = _Score(self._broken, len(self._nodes), len(self._switches), 0, tuple(self._taken))
        return score, self._taken

    def _add(self, kind: _Kind) -> None:
        """Add the first bundle of a kind, or as much of it as is still needed."""
        rest = self._kinds[kind].pop()
        if not self._kinds[kind]:
            del self._kinds[kind]
        room = self._size - len(self._taken)
        self._taken.extend(rest[:room])
        self._broken += (room < len(rest)) - kind.opened
        self._visit(kind.place)

    def _visit(self, place: _Place) -> None:
        self._nodes.add(place.numa_node)
        self._switches.add(place.switch)

    def _score(self, kind: _Kind) -> _Score:
        """The cost if this kind is taken from next."""
        room = self._size - len(self._taken)
        ids = self._kinds[kind][-1][:room]
        return _Score(
            self._broken - kind.opened + (len(ids) < kind.left),
            len(self._nodes) + (kind.place.numa_node not in self._nodes),
            len(self._switches) + (kind.place.switch not in self._switches),
            room - len(ids),
            ids,
        )


def _bundles(devices: Mapping[str, Device], ids: Iterable[str]) -> list[_Bundle]:
    """The IDs in bundles that share groups, directly or through other devices (union-find), by lowest ID."""
    root: dict[int, int] = {}
    """For each group one that it is connected with. Connected groups lead to the same one in the end."""

    def find(group: int) -> int:
        while root.setdefault(group, group) != group:
            root[group] = group = root[root[group]]
        return group

    names = sorted(ids)
    for name in names:
        for one, other in pairwise(devices[name].groups if name in devices else ()):
            root[find(other)] = find(one)
    together: dict[object, list[str]] = {}
    for name in names:
        groups = devices[name].groups if name in devices else ()
        together.setdefault(find(min(groups)) if groups else name, []).append(name)
    return [_Bundle(tuple(found), _place(devices.get(found[0]))) for found in together.values()]


def _place(device: Device | None) -> _Place:
    return _Place(None, ()) if device is None else _Place(device.numa_node, device.path[:-1])


def _packed(
    devices: Mapping[str, Device], available: Collection[str], chosen: Sequence[str], free: Sequence[str]
) -> list[str]:
    """The chosen vGPUs, then the free ones, in an order that uses as few cards as possible.

    First come cards that are already in use, then those with vGPUs that already exist, then those with the fewest left,
    then the lowest. Of a card, existing vGPUs come first, then the order of its slots.

    Args:
        devices: of the resource, in the order of their slots; all are vGPUs.
        available: the IDs that the kubelet considers free and healthy.
        chosen, free: from `chosen_and_free`.
    """
    order = {name: number for number, name in enumerate(devices)}
    listed = [name for name in free if name in devices]
    taken = set(devices).difference(available).union(chosen)
    left: dict[str, list[str]] = {}
    for name in listed:
        left.setdefault(devices[name].card, []).append(name)
    used = {devices[name].card for name in taken if name in devices and (devices[name].healthy or devices[name].made)}
    begun = {devices[name].card for name in listed if devices[name].made}
    chosen_cards = {devices[name].card for name in chosen if name in devices}
    cards = sorted(
        left, key=lambda card: (card not in chosen_cards, card not in used, card not in begun, len(left[card]), card)
    )
    picked = [
        name for card in cards for name in sorted(left[card], key=lambda name: (not devices[name].made, order[name]))
    ]
    return [*chosen, *picked, *(name for name in free if name not in devices)]


def spread(
    devices: Collection[str],
    available: Sequence[str],
    must_include: Sequence[str],
    size: int,
    blocked: Sequence[str] = (),
    *,
    packed: bool = False,
) -> list[str]:
    """The ``size`` replicas of ``available`` to take, ``must_include`` first; fewer if there aren't as many.

    Each replica is taken from the card with the fewest users, which is the default of NVIDIA's device plugin; with
    ``packed``, from the card with the most, which is that plugin's policy of this name. Among equals it is the card of
    which this request has the fewest (or the most) replicas, then the lowest ID.

    Args:
        devices: the IDs of the resource.
        available: those that the kubelet considers free and healthy.
        must_include: those of them that the kubelet requires.
        size: how many.
        blocked: those that an Allocate would refuse; taken in this order, when nothing else is left.
        packed: fill the cards one after the other.
    """
    chosen, replicas = chosen_and_free(available, must_include, size, blocked)
    free: dict[str, list[str]] = {}
    for key in sorted(replicas, key=_order, reverse=True):
        free.setdefault(without_replica(key), []).append(key)
    taken = Counter(map(without_replica, devices))
    taken.subtract({card: len(left) for card, left in free.items()})
    picked = Counter(map(without_replica, chosen))
    sign = -1 if packed else 1
    while len(chosen) < size and free:
        card = min(free, key=lambda name: (sign * taken[name], sign * picked[name], name))
        chosen.append(free[card].pop())
        taken[card] += 1
        picked[card] += 1
        if not free[card]:
            del free[card]
    return with_last_resort(chosen, size, blocked)


def prefer_partitions(
    resource: Resource,
    partitions: Collection[frozenset[str]],
    taken: Set[str],
    available: Sequence[str],
    must_include: Sequence[str],
    size: int,
    blocked: Sequence[str] = (),
) -> list[str]:
    """The ``size`` devices of ``available`` to take on an NVSwitch board, ``must_include`` first (K13).

    They are the cards of one fabric partition, or partitions, such that the most larger ones stay whole. If no
    partition fits, the answer is that of `prefer`, and an Allocate is refused.

    Args:
        resource: of cards or VFs of them, with the partitions that the cards form; or of partitions.
        partitions: the IDs of the cards of each partition of the board.
        taken: the IDs of cards that pods have.
        available, must_include, size, blocked: as for `prefer`.
    """
    chosen, rest = chosen_and_free(available, must_include, size, blocked)
    free = frozenset[str]().union(*partitions) - taken
    if resource.cards:
        by_cards = {frozenset(cards_in(key)): key for key in rest}
        while len(chosen) < size and (partition := best_partition(partitions, free, by_cards)) is not None:
            chosen.append(by_cards[frozenset(partition)])
            free -= partition
            by_cards = {cards: key for cards, key in by_cards.items() if cards.isdisjoint(partition)}
        return with_last_resort([*chosen, *rest], size, blocked)
    card_of = {key: resource.card_of.get(key, key) for key in (*rest, *chosen)}
    by_card = {card_of[key]: key for key in (*sorted(rest, reverse=True), *chosen)}
    needed = {card_of[key] for key in chosen}
    partition = best_partition(partitions, free, _fitting(resource, size, needed, by_card.keys()))
    if partition is None:
        return prefer(resource.devices, available, must_include, size, blocked)
    return list(dict.fromkeys([*chosen, *(by_card[card] for card in sorted(partition))]))


def _fitting(resource: Resource, size: int, needed: Set[str], cards: Set[str]) -> list[Set[str]]:
    """The partitions of so many of the cards, with those that are needed; failing ones only if there is no other."""
    fitting: list[Set[str]] = [each for each in resource.sets if len(each) == size and needed <= each <= cards]
    return [each for each in fitting if each not in resource.failing_sets] or fitting


def best_partition(partitions: Iterable[Set[str]], free: Set[str], candidates: Iterable[Set[str]]) -> Set[str] | None:
    """The candidate that leaves the most for others; None if there is none.

    Larger partitions all of whose cards are free are whole; the one that breaks the fewest of them is taken, where a
    larger one counts more than any number of smaller ones. Among equals it is the one with the lowest IDs.

    Args:
        partitions: the IDs of the cards of each partition of the board.
        free: the IDs of cards that no pod has.
        candidates: the sets of IDs to choose from.
    """
    whole = [each for each in partitions if each <= free]
    sizes = sorted({len(each) for each in whole}, reverse=True)

    def cost(candidate: Set[str]) -> tuple[list[int], list[str]]:
        broken = [sum(len(each) == size and not each.isdisjoint(candidate) for each in whole) for size in sizes]
        larger = [number for size, number in zip(sizes, broken, strict=True) if size > len(candidate)]
        return larger, sorted(candidate)

    return min(candidates, key=cost, default=None)


def _order(key: str) -> tuple[str, int, str]:
    """By card, then by number."""
    card, _, number = key.partition("::")
    return card, int(number) if number.isdecimal() else 0, key
