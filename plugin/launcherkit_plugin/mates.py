"""Devices of one IOMMU group never go to two pods (K3)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import TypeAlias

from launcherkit_plugin.errors import GroupSplit
from launcherkit_plugin.model.device import Device, Problem, Resource
from launcherkit_plugin.model.usage import Holder, Usage

IsFresh: TypeAlias = Callable[[str, str], bool]
"""Whether a device of a resource was given away a moment ago (`launcherkit_plugin.booking`)."""


class Mates:
    """Who has what, by IOMMU group, for one look at usage."""

    def __init__(self, resources: Mapping[str, Resource], usage: Usage, is_fresh: IsFresh) -> None:
        self._resources = resources
        self._usage = usage
        self._is_fresh = is_fresh
        self._takers: dict[int, list[tuple[str, str, Holder]]] = {}
        for name, devices in usage.held.items():
            known = resources[name].devices if name in resources else {}
            for device, holder in devices.items():
                for group in known[device].groups if device in known else ():
                    self._takers.setdefault(group, []).append((name, device, holder))

    def in_the_way(self, resource: Resource, device: Device, beside: Collection[str] = ()) -> str | None:
        """Why a device can't go to a pod that has none of its group: in words, None if it can.

        Args:
            resource: of the device.
            device: what is asked for.
            beside: IDs of the same resource that go to the same container.
        """
        own = self._usage.holder(resource.name, device.id)
        for group in sorted(device.groups):
            for name, other, holder in self._takers.get(group, ()):
                if (name, other) == (resource.name, device.id) or (name == resource.name and other in beside):
                    continue
                if own is not None and own.pod == holder.pod:
                    continue  # both are in one pod
                if self._goes_with(resource, name) and self._is_fresh(name, other):
                    continue
                return f"{holder} has {other}, which shares IOMMU group {group}"
        return None

    def _goes_with(self, resource: Resource, other: str) -> bool:
        """Whether one of two resources is that of companions, which are asked for beside the card that they are of."""
        return other != resource.name and (resource.companion or self._resources[other].companion)


def with_mates(resources: Iterable[Resource], usage: Usage, is_fresh: IsFresh) -> tuple[Resource, ...]:
    """Resources with the mates of what pods have made Unhealthy; what a pod has itself stays as it is (K4)."""
    by_name = {resource.name: resource for resource in resources}
    mates = Mates(by_name, usage, is_fresh)
    return tuple(
        resource._replace(devices={device.id: device for device in _overlaid(resource, mates, usage)})
        for resource in by_name.values()
    )


def _overlaid(resource: Resource, mates: Mates, usage: Usage) -> Iterator[Device]:
    for device in resource.devices.values():
        if device.healthy and device.groups and usage.holder(resource.name, device.id) is None:
            why = mates.in_the_way(resource, device)
            if why is not None:
                yield device._replace(problem=Problem("mate-in-use", f"{device.id}: {why}"))
                continue
        yield device


def refuse_split(
    resource: Resource, ids: Sequence[str], resources: Mapping[str, Resource], usage: Usage, is_fresh: IsFresh
) -> None:
    """See that no device goes to a pod while another pod has one of its group.

    Raises:
        GroupSplit: names both devices, the group and the pod.
    """
    mates = Mates(resources, usage, is_fresh)
    for device in ids:
        why = mates.in_the_way(resource, resource.devices[device], ids)
        if why is not None:
            raise GroupSplit(
                f"{resource.name}: {device} can't be given away: {why}",
                "Ask for all devices of the group in one container, wait until that pod has ended, or give the cards "
                "groups of their own, by another PCIe slot or ACS.",
            )
