"""Which of the free devices a container should rather get: whole groups, then one NUMA node, then one switch (K3)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from launcherkit_plugin.allocation.packing import pack
from launcherkit_plugin.model.device import Device


class _Bundle(NamedTuple):
    """Devices that share IOMMU groups; who takes one makes the others useless to the rest."""

    ids: tuple[str, ...]
    place: tuple[int | None, tuple[str, ...]]
    """NUMA node, and the path down to the switch."""


MOST_STARTS = 32
"""Kinds of bundles from which a search begins. A node has fewer switches than that."""


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
    devices: Mapping[str, Device], available: Sequence[str], must_include: Sequence[str], size: int
) -> list[str]:
    """The ``size`` devices of ``available`` to take, ``must_include`` first; fewer where there aren't as many.

    vGPUs are packed (`launcherkit_plugin.allocation.packing`). Of others
    what is asked for decides in this order: no group is broken up, few NUMA nodes, few switches, the lowest IDs. The
    search starts once from each kind of bundle, and goes on with what adds least: good, and not exhaustive.

    Args:
        devices: of the resource; an ID that isn't among them is taken last.
        available: the kubelet's free and healthy devices.
        must_include: those of them that it has decided upon.
        size: how many.
    """
    if any(devices[device].card for device in available if device in devices):
        return pack(devices, available, must_include, size)
    chosen = list(dict.fromkeys(must_include))[:size]
    free = [device for device in dict.fromkeys(available) if device not in set(chosen)]
    if len(chosen) + len(free) <= size:
        return chosen + sorted(free)
    bundles = _bundles(devices, [*chosen, *free])
    if chosen:
        return _Search(bundles, chosen, size).best()[1]
    kinds: dict[object, _Bundle] = {}
    for bundle in bundles:
        kinds.setdefault((len(bundle.ids), *bundle.place), bundle)
    starts = sorted(kinds.values(), key=lambda bundle: (abs(len(bundle.ids) - size), bundle.ids))[:MOST_STARTS]
    return min(_Search(bundles, bundle.ids[:size], size).best() for bundle in starts)[1]


class _Search:
    """Goes on from a beginning, always with what adds least.

    Bundles of one kind (of one size, below one switch) cost the same: of each only the first that isn't taken is tried.
    """

    def __init__(self, bundles: Sequence[_Bundle], chosen: Iterable[str], size: int) -> None:
        self._size = size
        self._taken = list(chosen)
        have = set(self._taken)
        self._places: set[tuple[int | None, tuple[str, ...]]] = set()
        self._open: list[tuple[_Bundle, tuple[str, ...]]] = []
        """Bundles of which a part is taken, with the rest."""
        self._kinds: dict[object, list[_Bundle]] = {}
        for bundle in reversed(bundles):
            if have.isdisjoint(bundle.ids):
                self._kinds.setdefault((len(bundle.ids), *bundle.place), []).append(bundle)
                continue
            self._places.add(bundle.place)
            if rest := tuple(device for device in bundle.ids if device not in have):
                self._open.append((bundle, rest))

    def best(self) -> tuple[_Score, list[str]]:
        """The IDs, and what they cost."""
        while len(self._taken) < self._size:
            candidates = [(bundle, rest) for bundle, rest in self._open]
            candidates += [(kind[-1], kind[-1].ids) for kind in self._kinds.values() if kind]
            self._take(*min(candidates, key=lambda candidate: self._score(*candidate)))
        return self._score_of(len(self._open), self._places, 0, tuple(self._taken)), self._taken

    def _take(self, bundle: _Bundle, rest: tuple[str, ...]) -> None:
        wanted = rest[: self._size - len(self._taken)]
        self._taken.extend(wanted)
        self._places.add(bundle.place)
        if (bundle, rest) in self._open:
            self._open.remove((bundle, rest))
        else:
            self._kinds[len(bundle.ids), *bundle.place].pop()
        if len(wanted) < len(rest):
            self._open.append((bundle, rest[len(wanted) :]))

    def _score(self, bundle: _Bundle, rest: tuple[str, ...]) -> _Score:
        """What it would cost to take from a bundle next."""
        room = self._size - len(self._taken)
        wanted = rest[:room]
        broken = len(self._open) - (len(rest) < len(bundle.ids)) + (len(wanted) < len(rest))
        return self._score_of(broken, self._places | {bundle.place}, room - len(wanted), wanted)

    @staticmethod
    def _score_of(
        broken: int, places: set[tuple[int | None, tuple[str, ...]]], left: int, ids: tuple[str, ...]
    ) -> _Score:
        return _Score(broken, len({node for node, _ in places}), len({switch for _, switch in places}), left, ids)


def _bundles(devices: Mapping[str, Device], ids: Iterable[str]) -> list[_Bundle]:
    """The IDs by the groups that they share, directly or through others; in the order of their lowest."""
    of_group: dict[int, set[str]] = {}
    whole: dict[str, set[str]] = {}
    for name in sorted(ids):
        bundle = {name}
        for group in devices[name].groups if name in devices else ():
            bundle |= of_group.get(group, set())
        for mate in tuple(bundle):
            bundle |= whole.get(mate, set())
        for mate in bundle:
            whole[mate] = bundle
            for group in devices[mate].groups if mate in devices else ():
                of_group[group] = bundle
    found = {min(bundle): tuple(sorted(bundle)) for bundle in whole.values()}
    return [_bundle(devices.get(first), found[first]) for first in sorted(found)]


def _bundle(device: Device | None, ids: tuple[str, ...]) -> _Bundle:
    return _Bundle(ids, (None, ()) if device is None else (device.numa_node, device.path[:-1]))
