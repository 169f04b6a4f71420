"""Which of the free devices a container should rather get: whole groups on one NUMA node (K3), packed vGPUs (G1)."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import pairwise

from launcherkit.model.value import NamedTuple
from launcherkit_plugin.model.device import Device


class _Bundle(NamedTuple):
    """Devices that share IOMMU groups; who takes one makes the others useless to the rest."""

    ids: tuple[str, ...]
    place: _Place


class _Place(NamedTuple):
    """Where a device is."""

    numa_node: int | None
    switch: tuple[str, ...]
    """The path down to it."""


class _Kind(NamedTuple):
    """What makes bundles cost the same: of one kind only the first is looked at."""

    opened: bool
    """A part of it is taken already."""
    left: int
    """How many devices are free."""
    place: _Place


MOST_STARTS = 32
"""Kinds of bundles from which a search begins. A node has fewer switches than that."""

MOST_SCORES = 100_000
"""Choices that are weighed for one answer: a tenth of a second. Only a request for hundreds of devices out of thousands
gets there, and has fewer starts then."""


class _Score(NamedTuple):
    """What a choice costs, the worst first; less is better."""

    broken: int
    """Groups of which a part is taken."""
    nodes: int
    switches: int
    left: int
    """Devices still to be found: who takes more at a time is done sooner."""
    ids: tuple[str, ...]
    """For the same answer every time."""


def prefer(
    devices: Mapping[str, Device],
    available: Sequence[str],
    must_include: Sequence[str],
    size: int,
    blocked: Sequence[str] = (),
) -> list[str]:
    """The ``size`` devices of ``available`` to take, ``must_include`` first; fewer where there aren't as many.

    vGPUs are packed (`launcherkit_plugin.allocation.preference`). For others the order of preference is:
    nothing that would be refused, no group broken up, few NUMA nodes, few switches, the lowest IDs. The search
    starts once from each kind of bundle, and goes on with what adds least: good, and not exhaustive.

    Args:
        devices: of the resource; an ID that isn't among them is taken last.
        available: the kubelet's free and healthy devices.
        must_include: those of them that it has decided upon.
        size: how many.
        blocked: those that an Allocate would refuse, for a pod has their group; taken in this order, when nothing else
            is left.
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
    worth = max(1, min(MOST_STARTS, MOST_SCORES // (len(kinds) * max(size, 1))))
    return min(_Search(bundles, bundle.ids[:size], size).best() for bundle in starts[:worth])[1]


def chosen_and_free(
    available: Iterable[str], must_include: Iterable[str], size: int, blocked: Iterable[str]
) -> tuple[list[str], list[str]]:
    """What a preference begins with, and from what it goes on; each ID once. The arguments are those of `prefer`."""
    chosen = list(dict.fromkeys(must_include))[:size]
    excluded = {*chosen, *blocked}
    return chosen, [device for device in dict.fromkeys(available) if device not in excluded]


def with_last_resort(found: Sequence[str], size: int, blocked: Iterable[str]) -> list[str]:
    """What a preference has found, followed by what an Allocate would refuse, as far as that is needed."""
    return list(dict.fromkeys((*found, *blocked)))[:size]


class _Search:
    """Goes on from a beginning, always with what adds least."""

    def __init__(self, bundles: Sequence[_Bundle], chosen: Iterable[str], size: int) -> None:
        self._size = size
        self._taken = list(chosen)
        have = set(self._taken)
        self._nodes: set[int | None] = set()
        self._switches: set[tuple[str, ...]] = set()
        self._broken = 0
        self._kinds: dict[_Kind, list[tuple[str, ...]]] = {}
        """What is free of each bundle, the first one last; of those of which nothing is, none."""
        for bundle in reversed(bundles):
            rest = tuple(device for device in bundle.ids if device not in have)
            opened = len(rest) < len(bundle.ids)
            if opened:
                self._visit(bundle.place)
            if rest:
                self._broken += opened
                self._kinds.setdefault(_Kind(opened, len(rest), bundle.place), []).append(rest)

    def best(self) -> tuple[_Score, list[str]]:
        """The IDs, and what they cost."""
        while len(self._taken) < self._size:
            self._take(min(self._kinds, key=self._score))
        score = _Score(self._broken, len(self._nodes), len(self._switches), 0, tuple(self._taken))
        return score, self._taken

    def _take(self, kind: _Kind) -> None:
        """From the first bundle of a kind: all of it, or as much as is still wanted."""
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
        """What it would cost to take from this kind next."""
        room = self._size - len(self._taken)
        wanted = self._kinds[kind][-1][:room]
        return _Score(
            self._broken - kind.opened + (len(wanted) < kind.left),
            len(self._nodes) + (kind.place.numa_node not in self._nodes),
            len(self._switches) + (kind.place.switch not in self._switches),
            room - len(wanted),
            wanted,
        )


def _bundles(devices: Mapping[str, Device], ids: Iterable[str]) -> list[_Bundle]:
    """The IDs by the groups that they share, directly or through others; in the order of their lowest."""
    root: dict[int, int] = {}
    """For each group another that it is connected with; followed to its end, the same one for all connected groups."""

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
    """The chosen vGPUs, then the free ones, so that as few cards as can be are taken from.

    First come cards of which something is taken, then those with vGPUs that are made, then those with the least left,
    then the lowest. Of a card first what is made, then in the order of its slots.

    Args:
        devices: of the resource, in the order of their slots; all are vGPUs.
        available: the kubelet's free and healthy devices.
        chosen, free: as of `chosen_and_free`.
    """
    order = {name: number for number, name in enumerate(devices)}
    known = [name for name in free if name in devices]
    taken = set(devices).difference(available).union(chosen)
    left: dict[str, list[str]] = {}
    for name in known:
        left.setdefault(devices[name].card, []).append(name)
    used = {devices[name].card for name in taken if name in devices and (devices[name].healthy or devices[name].made)}
    begun = {devices[name].card for name in known if devices[name].made}
    wanted = {devices[name].card for name in chosen if name in devices}
    cards = sorted(
        left, key=lambda card: (card not in wanted, card not in used, card not in begun, len(left[card]), card)
    )
    found = [
        name for card in cards for name in sorted(left[card], key=lambda name: (not devices[name].made, order[name]))
    ]
    return [*chosen, *found, *(name for name in free if name not in devices)]
