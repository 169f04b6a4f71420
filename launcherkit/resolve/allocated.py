"""Decides whether a visible device node was given to this container (S2)."""

from __future__ import annotations

from collections.abc import Iterable

from launcherkit.model.address import HostAddress, PciAddress, PciSlot
from launcherkit.model.host import HostFacts
from launcherkit.resolve.vfio import CONTAINER_NODE, IOMMUFD_NODE, cdev_node, group_node, group_of


def sees_only_own_nodes(addresses: Iterable[HostAddress], host: HostFacts) -> bool:
    """Whether the visible VFIO nodes are exactly those that were given to this container.

    That is so if ``/dev`` is a container's, and every node in ``/dev/vfio`` belongs to one of these cards. Privileged
    containers and hosts have the host's ``/dev``; a ``/dev/vfio`` that is mounted as a whole has nodes of others.

    Args:
        addresses: what was allocated, and what the document has; other functions of their slots count, too.
        host: facts about these.
    """
    if not host.container_dev or host.nodes is None:
        return False
    slots: set[PciSlot] = set()
    groups: set[int | None] = set()
    for address in addresses:
        if isinstance(address, PciAddress):
            slots.add(address.slot)
        else:
            groups.add(group_of(address, host))
    own = [function for address, function in host.functions.items() if address.slot in slots]
    groups.update([function.iommu_group for function in own])
    others = host.nodes.difference((CONTAINER_NODE, IOMMUFD_NODE), map(group_node, groups))
    return not others or others.issubset([cdev_node(host.details.get(function.address)) for function in own])
