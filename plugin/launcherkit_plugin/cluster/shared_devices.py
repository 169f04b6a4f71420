"""Devices that several claims can have (KEP-5075), and slices without them.

A server may drop the field which says so. Then each would be one claim's, and everybody would believe that.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from launcherkit_plugin.cluster.api import Json
from launcherkit_plugin.cluster.outbox import Specs

SHARED = "allowMultipleAllocations"
"""The field. It is behind the feature gate DRAConsumableCapacity."""


def _shared(specs: Specs) -> Iterator[Mapping[str, Any]]:
    return (device for spec in specs for device in spec.get("devices") or () if device.get(SHARED))


def sample_of(specs: Specs) -> Json | None:
    """The spec of a slice with one of these devices and no more of it than the field concerns; None if there is none.

    Args:
        specs: of all slices of a pool.
    """
    first = next(_shared(specs), None)
    if first is None:
        return None
    return {"devices": [{key: first[key] for key in ("name", SHARED, "capacity") if key in first}]}


def without_shared(specs: Specs) -> Sequence[Mapping[str, Any]]:
    """The same slices without these devices; one in which there is nothing else is left out."""
    left = []
    for spec in specs:
        devices = spec.get("devices") or ()
        others = [device for device in devices if not device.get(SHARED)]
        if others or not devices:
            left.append(spec if len(others) == len(devices) else {**spec, "devices": others})
    return left
