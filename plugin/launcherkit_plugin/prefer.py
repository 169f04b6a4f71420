"""Which of the free devices a container should rather get: whole groups, then one NUMA node, then one switch (K3)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from launcherkit_plugin.model.device import Device


class _Bundle(NamedTuple):
    """Devices that share IOMMU groups; who takes one makes the others useless to the rest."""

    ids: tuple[str, ...]
    numa: int | None
    path: tuple[str, ...]


def prefer(
    devices: Mapping[str, Device], available: Sequence[str], must_include: Sequence[str], size: int
) -> list[str]:
    """The ``size`` devices of ``available`` to take, ``must_include`` first; fewer where there aren't as many.

    What is asked for decides in this order: no group is broken up, few NUMA nodes, few switches, the lowest IDs. The
    search starts once from each kind of bundle, and goes on with what adds least: good, and not exhaustive.

    Args:
        devices: of the resource; an ID that isn't among them is taken last.
        available: the kubelet's free and healthy devices.
        must_include: those of them that it has decided upon.
        size: how many.
    """
    chosen = list(dict.fromkeys(must_include))[:size]
    free = [device for device in dict.fromkeys(available) if device not in chosen]
    if len(chosen) + len(free) <= size:
        return chosen + sorted(free)
    bundles = _bundles(devices, [*chosen, *free])
    started = [bundle for bundle in bundles if not set(chosen).isdisjoint(bundle.ids)]
    if started:
        return _grow(chosen, bundles, size)[1]
    kinds: dict[object, _Bundle] = {}
    for bundle in bundles:
        kinds.setdefault((len(bundle.ids), bundle.numa, bundle.path[:-1]), bundle)
    return min(_grow(bundle.ids[:size], bundles, size) for bundle in kinds.values())[1]


def _grow(chosen: Iterable[str], bundles: Sequence[_Bundle], size: int) -> tuple[tuple[int, ...], list[str]]:
    """Take bundles until there are enough; gives what it costs and the IDs."""
    taken = list(chosen)
    while len(taken) < size:
        _, extra = min(
            (_cost([*taken, *rest[: size - len(taken)]], bundles), rest[: size - len(taken)])
            for rest in ([device for device in bundle.ids if device not in taken] for bundle in bundles)
            if rest
        )
        taken.extend(extra)
    return _cost(taken, bundles), taken


def _cost(taken: Iterable[str], bundles: Sequence[_Bundle]) -> tuple[int, ...]:
    """Broken groups, NUMA nodes, switches; and devices, negative, for what takes more at a time leaves less to go."""
    have = set(taken)
    touched = [bundle for bundle in bundles if not have.isdisjoint(bundle.ids)]
    broken = sum(1 for bundle in touched if not have.issuperset(bundle.ids))
    nodes = {bundle.numa for bundle in touched}
    switches = {bundle.path[:-1] for bundle in touched}
    return broken, len(nodes), len(switches), -len(have)


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
    return _Bundle(ids, None, ()) if device is None else _Bundle(ids, device.numa_node, device.path)
