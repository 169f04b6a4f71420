"""Requests by DRA claim: which device each of them gets (E5)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from launcherkit.model.address import HostAddress
from launcherkit.model.request import Allocation, Request


def for_each_device(requests: Iterable[Request], allocations: Mapping[str, Allocation]) -> tuple[Request, ...]:
    """Requests as many as devices: one whose claim has several devices gets all of them, as ``gpu1``, ``gpu1-2``..."""
    listed = list(requests)
    found: list[Request] = []
    for request in listed:
        devices = allocations[request.key].devices
        alone = sum(request.claim == other.claim for other in listed) == 1
        found.append(request)
        if request.claim is not None and alone:
            found += [request._replace(name=f"{request.name}-{number}") for number in range(2, len(devices) + 1)]
    return tuple(found)


def claimed_devices(requests: Sequence[Request], allocations: Mapping[str, Allocation]) -> dict[Request, HostAddress]:
    """What a claim names is for its requests alone, whatever a variable holds (C5): the device of each."""
    found: dict[Request, HostAddress] = {}
    given: dict[str, int] = {}
    for request in requests:
        if request.claim is not None:
            position = given[request.key] = given.get(request.key, -1) + 1
            if position < len(devices := allocations[request.key].devices):
                found[request] = devices[position]
    return found
