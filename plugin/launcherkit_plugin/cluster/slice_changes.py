"""Compares the existing ResourceSlices of a node with the wanted ones, and decides which to write.

Readers of a pool use its highest generation, and only once they have all of its slices. So any change increments the
generation of every slice; a slice that is merely missing is created again as it was (D12). Additions and conversions by
the server are no change: the time when a taint was added, or a quantity 1024Mi that it writes as 1Gi. Nor is a field
that it drops because the feature gate is off.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from launcherkit.model.quantity import amount_of
from launcherkit_plugin.cluster.api import Json, part

_AMOUNTS = {"capacity", "counters"}
"""Fields that map names to quantities: ``{"value": "80Gi"}``."""
_GATED = {"sharedCounters", "consumesCounters", "taints"}
"""Fields that a server may drop; before Kubernetes 1.36 it does unless their feature gates are on."""


class SlicePool(NamedTuple):
    """The pool of a driver on a node; its name is the node's."""

    driver: str
    node: str


class SliceChange(NamedTuple):
    kind: Literal["create", "replace", "delete"]
    body: Json


class SliceChanges(NamedTuple):
    """The changes to make, in this order."""

    changes: tuple[SliceChange, ...]
    generation: int
    foreign: bool
    """Whether existing slices differ from the wanted ones; False if some are merely missing."""


def slice_changes(
    pool: SlicePool, specs: Sequence[Mapping[str, Any]], there: Iterable[Json], without: Collection[str] = ()
) -> SliceChanges:
    """Compare the wanted slices with the existing ones.

    Args:
        pool: of the slices.
        specs: the ``spec`` of each wanted slice, without ``driver``, ``nodeName`` and ``pool``.
        there: the existing ResourceSlices of the driver on the node.
        without: fields that the server drops; see `dropped`.

    Raises:
        ApiProblem: the server sent something other than ResourceSlices.
    """
    found = sorted(there, key=_name)
    by_index: dict[int, Json] = {}
    for item in found:
        by_index.setdefault(_index(item), item)
    kept = {index: item for index, item in by_index.items() if 0 <= index < len(specs)}
    leftover_files = [item for item in found if all(item is not each for each in kept.values())]
    generation = max((_generation(item) for item in found), default=1)
    wanted = [_complete(pool, spec, generation, len(specs)) for spec in specs]
    skipped = {"timeAdded", *without}
    differ = any(_plain(part(item, "spec"), skipped) != _plain(wanted[index], skipped) for index, item in kept.items())
    if differ:
        generation += 1
        wanted = [_complete(pool, spec, generation, len(specs)) for spec in specs]
    begun = _taints(found)
    changes = [
        SliceChange("create", _made(pool, index, spec))
        if index not in kept
        else SliceChange("replace", {**kept[index], "spec": _since(spec, begun)})
        for index, spec in enumerate(wanted)
        if index not in kept or differ
    ]
    changes += [SliceChange("delete", item) for item in leftover_files]
    return SliceChanges(tuple(changes), generation, differ or bool(leftover_files))


def _complete(pool: SlicePool, spec: Mapping[str, Any], generation: int, count: int) -> Json:
    of_pool = {"name": pool.node, "generation": generation, "resourceSliceCount": count}
    return {**spec, "driver": pool.driver, "nodeName": pool.node, "pool": of_pool}


def _made(pool: SlicePool, index: int, spec: Json) -> Json:
    """A new slice. Its name begins with its index in the pool."""
    metadata = {"generateName": f"{index:x}-{pool.driver}-{pool.node}-"}
    return {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": metadata, "spec": spec}


def _name(item: Json) -> str:
    return str(part(item, "metadata").get("name", ""))


def _index(item: Json) -> int:
    """The index of a slice in its pool, -1 if it has none. Its name begins with it: the server may truncate the end."""
    head = re.match(r"([0-9a-f]{1,8})-", _name(item))
    return int(head[1], 16) if head else -1


def _generation(item: Json) -> int:
    generation = part(item, "spec", "pool").get("generation")
    return generation if isinstance(generation, int) else 1


def dropped(written: Json, stored: Json) -> set[str]:
    """The fields of a slice that the server didn't keep.

    Args:
        written: the slice.
        stored: the server's answer.
    """
    return _GATED & _fields(written) - _fields(stored)


def _fields(item: Json) -> set[str]:
    spec = part(item, "spec")
    return {key for each in (spec, *(spec.get("devices") or ())) for key, value in each.items() if value}


def _plain(value: Any, skipped: Collection[str], field: str = "") -> Any:
    """A value in a form that can be compared: without the server's additions, and with quantities as numbers."""
    if isinstance(value, Mapping):
        plain = {key: _plain(item, skipped, key) for key, item in value.items() if key not in skipped}
        if field in _AMOUNTS:
            plain = {name: _amount(amount) for name, amount in plain.items()}
        return {key: item for key, item in plain.items() if item is not None and item not in ({}, [])}
    return [_plain(item, skipped) for item in value] if isinstance(value, list | tuple) else value


def _amount(entry: Mapping[str, Any]) -> Mapping[str, Any]:
    """The entry with its quantity as a number; unchanged if it isn't a quantity."""
    number = amount_of(entry.get("value"))
    return entry if number is None else {**entry, "value": number}


def _taints(found: Iterable[Json]) -> dict[tuple[object, ...], str]:
    """When the existing taints were added."""
    return {
        _taint(device, taint): taint["timeAdded"]
        for item in found
        for device in part(item, "spec").get("devices") or ()
        for taint in device.get("taints") or ()
        if "timeAdded" in taint
    }


def _taint(device: Mapping[str, Any], taint: Mapping[str, Any]) -> tuple[object, ...]:
    return device["name"], taint["key"], taint.get("value"), taint["effect"]


def _since(spec: Json, begun: Mapping[tuple[object, ...], str]) -> Json:
    """The spec with the times when its continuing taints were added."""
    if not begun or not spec.get("devices"):
        return spec

    def dated(device: Mapping[str, Any]) -> Mapping[str, Any]:
        if not device.get("taints"):
            return device
        taints = [
            {**taint, "timeAdded": begun[_taint(device, taint)]} if _taint(device, taint) in begun else taint
            for taint in device["taints"]
        ]
        return {**device, "taints": taints}

    return {**spec, "devices": [dated(device) for device in spec["devices"]]}
