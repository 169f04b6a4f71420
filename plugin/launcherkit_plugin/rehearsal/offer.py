"""What a node has to give: what its daemon advertises, and who has what of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from launcherkit.model.address import PciAddress
from launcherkit.model.host import HostFacts
from launcherkit.model.value import NamedTuple
from launcherkit.sources.host import Host
from launcherkit_plugin.model.config import NodeChoice
from launcherkit_plugin.model.device import Resource, Usage

NOBODY = Usage("pod-resources", {})
"""As if no pod had anything."""


class NodeOffer(NamedTuple):
    """A node by what its daemon knows at one moment."""

    name: str
    facts: HostFacts
    resources: Sequence[Resource]
    usage: Usage = NOBODY
    nodes: NodeChoice = "auto"
    """Which device nodes containers get."""
    left_out: Mapping[str, Sequence[PciAddress]] = {}
    """Functions that would be devices if they were bound to a VFIO driver, by their resources' names."""


def with_topology(offer: NodeOffer, host: Host) -> NodeOffer:
    """With what a daemon doesn't need itself: the host's NUMA nodes, and all about what is advertised (P4, P5)."""
    devices = [device for resource in offer.resources for device in resource.devices.values()]
    found = host.facts([function for device in devices for function in device.functions], topology=True)
    return offer._replace(facts=offer.facts._replace(details={**offer.facts.details, **found.details}, numa=found.numa))


def free(resource: Resource, usage: Usage) -> list[str]:
    """The IDs of the devices that the kubelet could allocate."""
    held = held_ids(usage.kept.values())
    return [device.id for device in resource.devices.values() if device.healthy and device.id not in held]


def held_ids(held: Iterable[Mapping[str, object]]) -> frozenset[str]:
    """Whatever a resource was called when a pod got a device of it, nobody else gets the device."""
    return frozenset(device for devices in held for device in devices)
