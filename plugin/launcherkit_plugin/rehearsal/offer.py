"""What a node offers: the resources that its daemon advertises, and usage."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from launcherkit.host.source import Host
from launcherkit.model.address import PciAddress
from launcherkit.model.host import HostFacts
from launcherkit_plugin.model.config import NodeChoice
from launcherkit_plugin.model.device import Resource, Usage

NOBODY = Usage("pod-resources", {})
"""Usage in which no pod has a device."""


class NodeOffer(NamedTuple):
    """What the daemon of a node knows at one moment."""

    name: str
    facts: HostFacts
    resources: Sequence[Resource]
    usage: Usage = NOBODY
    nodes: NodeChoice = "auto"
    """Which device nodes containers get."""
    left_out: Mapping[str, Sequence[PciAddress]] = {}
    """Functions that would be devices if they were bound to a VFIO driver, by the name of their resource."""


def with_topology(offer: NodeOffer, host: Host) -> NodeOffer:
    """Add facts that a daemon doesn't need itself: NUMA nodes, and all details of advertised functions (P4, P5)."""
    devices = [device for resource in offer.resources for device in resource.devices.values()]
    measured = host.facts([function for device in devices for function in device.functions], topology=True)
    details = {**offer.facts.details, **measured.details}
    return offer._replace(facts=offer.facts._replace(details=details, numa=measured.numa))


def free(resource: Resource, usage: Usage) -> list[str]:
    """The IDs of the devices that the kubelet could allocate."""
    kept = usage.kept_ids
    return [device.id for device in resource.devices.values() if device.healthy and device.id not in kept]
