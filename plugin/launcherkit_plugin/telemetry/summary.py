"""What a node has for pods, in one line: for the log and an Event of every node, also of one that has nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from launcherkit.errors import counted
from launcherkit.model.host import HostFacts, PciFunction, describe, is_gpu
from launcherkit_plugin.model.device import Resource

NAMED = 5
"""The most GPUs that are named."""


class Summary(NamedTuple):
    """A line and the reason of its Event, in CamelCase."""

    reason: str
    text: str


def summary(host: HostFacts, resources: Sequence[Resource]) -> Summary:
    """What is advertised, which GPUs are not, and whether there is an IOMMU.

    Health isn't part of it: that has reports of its own.
    """
    counts = [f"{len(each.devices)} of {each.name}" for each in resources if each.devices]
    if counts:
        parts = [f"advertised: {', '.join(counts)}"]
    else:
        parts = [f"nothing to advertise among {counted(len(host.functions), 'PCI function')}"]
    if others := other_gpus(host, resources):
        parts.append(f"not advertised: {others}")
    if not host.groups.keys() - host.noiommu:
        parts.append("there are no IOMMU groups, so the IOMMU is off or missing")
    return Summary("DevicesFound" if counts else "NothingToAdvertise", "; ".join(parts))


def other_gpus(host: HostFacts, resources: Sequence[Resource] = ()) -> str:
    """The GPUs and accelerators that no resource has, with their drivers; empty if there are none."""
    advertised = set(_addresses(resources))
    others = [
        _with_driver(function)
        for address, function in sorted(host.functions.items())
        if is_gpu(function) and str(address) not in advertised and not function.physfn
    ]
    more = len(others) - NAMED
    return ", ".join(others[:NAMED]) + (f" and {more} more" if more > 0 else "")


def _addresses(resources: Sequence[Resource]) -> Iterator[str]:
    for resource in resources:
        for device in resource.devices.values():
            yield from map(str, device.functions)
            yield device.card


def _with_driver(function: PciFunction) -> str:
    return f"{describe(function)} ({f'driver {function.driver}' if function.driver else 'no driver'})"
