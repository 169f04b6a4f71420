"""Requests by DRA claim, and the device that each of them gets (E5)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from launcherkit.model.address import HostAddress
from launcherkit.model.request import Allocation, Request


def for_each_device(requests: Iterable[Request], allocations: Mapping[str, Allocation]) -> tuple[Request, ...]:
    """One request for each device: if a claim has several, its request becomes ``gpu1``, ``gpu1-2``..."""
    listed = list(requests)
    found: list[Request] = []
    for request in listed:
        devices = allocations[request.key].devices
        alone = sum(request.dra_claim == other.dra_claim for other in listed) == 1
        found.append(request)
        if request.dra_claim is not None and alone:
            found += [request._replace(name=f"{request.name}-{number}") for number in range(2, len(devices) + 1)]
    return tuple(found)


def claimed_devices(requests: Sequence[Request], allocations: Mapping[str, Allocation]) -> dict[Request, HostAddress]:
    """The device of each request by claim; it is only for that request, whatever a variable holds (C5)."""
    found: dict[Request, HostAddress] = {}
    given: dict[str, int] = {}
    for request in requests:
        if request.dra_claim is not None:
            position = given[request.key] = given.get(request.key, -1) + 1
            if position < len(devices := allocations[request.key].devices):
                found[request] = devices[position]
    return found
