"""Converts devices to the specs of ResourceSlices, within the limits of ``resource.k8s.io/v1`` (D5)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, TypeVar

from launcherkit_plugin.dra.counters import CounterUse
from launcherkit_plugin.dra.device_state import FAILED, READY
from launcherkit_plugin.dra.inventory import DraDevice, quantity

MAX_DEVICES = 128
"""The limit devices of a slice without taints and counters."""
MAX_WITH_TAINTS = 64
"""The limit devices of any other slice."""
SHARES = "launcherkit.io/shares"
"""The capacity of a card that several claims can have, of which each consumes (KEP-5075)."""
MAX_SETS = 8
"""The limit counter sets of a slice; it then has no devices."""


def slices(devices: Sequence[DraDevice], driver: str) -> list[dict[str, Any]]:
    """The specs of one pool, without its node and name. Deterministic.

    Args:
        devices: sorted by name.
        driver: the name of the driver.
    """
    sets = [{"name": name, "counters": _amounts(totals)} for name, totals in sorted(_totals(devices).items())]
    return [
        *({"driver": driver, "sharedCounters": part} for part in _parts_of(sets, MAX_SETS)),
        *({"driver": driver, "devices": list(map(_device, part))} for part in _fitting(devices)),
    ]


def slice_list(specs: Sequence[Mapping[str, Any]], node: str) -> dict[str, Any]:
    """The slices of a new pool as a Kubernetes List; the API server completes their names."""
    pool = {"name": node, "generation": 1, "resourceSliceCount": len(specs)}
    items = [
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceSlice",
            "metadata": {"generateName": f"{index:x}-{spec['driver']}-{node}-"},
            "spec": {"driver": spec["driver"], "nodeName": node, "pool": pool, **spec},
        }
        for index, spec in enumerate(specs)
    ]
    return {"apiVersion": "v1", "kind": "List", "items": items}


def _totals(devices: Iterable[DraDevice]) -> dict[str, dict[str, int]]:
    totals: dict[str, dict[str, int]] = {}
    for device in devices:
        for use in device.counters:
            totals.setdefault(use.set, {})[use.counter] = use.total
    return totals


def _fitting(devices: Sequence[DraDevice]) -> Iterable[Sequence[DraDevice]]:
    """The devices of each slice. If a taint makes a slice too large, only this slice is halved."""
    for part in _parts_of(devices, MAX_DEVICES):
        plain = not any(device.taints or device.counters for device in part)
        yield from _parts_of(part, MAX_DEVICES if plain else MAX_WITH_TAINTS)


_T = TypeVar("_T")


def _parts_of(values: Sequence[_T], limit: int) -> Iterable[Sequence[_T]]:
    return (values[at : at + limit] for at in range(0, len(values), limit))


def _device(device: DraDevice) -> dict[str, Any]:
    entry: dict[str, Any] = {"name": device.name}
    if device.attributes:
        entry["attributes"] = device.attributes
    if device.capacity:
        entry["capacity"] = {name: _value(text) for name, text in sorted(device.capacity.items())}
    if device.shares:
        entry |= {"allowMultipleAllocations": True, "capacity": {SHARES: _shares(device.shares, device.most_shares)}}
    if device.counters:
        entry["consumesCounters"] = _consumed(device.counters)
    if device.taints:
        entry["taints"] = [{key: text for key, text in taint._asdict().items() if text} for taint in device.taints]
    if device.awaited:
        entry |= {"bindsToNode": True, "bindingConditions": [READY], "bindingFailureConditions": [FAILED]}
    return entry


@lru_cache(maxsize=1024)
def _shares(number: int, most: int) -> Mapping[str, Any]:
    """The capacity of a shared card: a request takes one share, or as many as it says. It is the only one, since one
    without a policy would be consumed as a whole by the first claim."""
    taken = {"min": "1", "max": quantity(most), "step": "1"}
    return {"value": quantity(number), "requestPolicy": {"default": "1", "validRange": taken}}


@lru_cache(maxsize=1024)
def _value(text: str) -> Mapping[str, str]:
    return {"value": text}


@lru_cache(maxsize=8192)
def _consumed(counters: tuple[CounterUse, ...]) -> Sequence[Mapping[str, Any]]:
    """What a device consumes, by counter set. Cached: devices of one group share it."""
    uses: dict[str, dict[str, int]] = {}
    for use in counters:
        uses.setdefault(use.set, {})[use.counter] = use.amount
    return [{"counterSet": name, "counters": _amounts(each)} for name, each in sorted(uses.items())]


def _amounts(counters: Mapping[str, int]) -> dict[str, Mapping[str, str]]:
    return {name: _value(quantity(amount)) for name, amount in sorted(counters.items())}
