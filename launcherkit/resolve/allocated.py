"""Decides whether a visible device node was given to this container (S2)."""

from __future__ import annotations

from collections.abc import Iterable

from launcherkit.model.address import HostAddress, PciAddress, PciSlot
from launcherkit.model.host import HostFacts
from launcherkit.resolve.vfio import cdev_node, group_node, group_of


def sees_own_nodes_alone(addresses: Iterable[HostAddress], host: HostFacts) -> bool:
    """Whether the visible VFIO nodes are exactly those that were given to this container.

    That is so if ``/dev`` is a container's, and every node in ``/dev/vfio`` belongs to one of these cards. Privileged
    containers and hosts have the host's ``/dev``; a ``/dev/vfio`` that is mounted as a whole has nodes of others.

    Args:
        addresses: what was allocated, and what the document has; other functions of their slots count, too.
        host: facts about these.
    """
    if not host.container_dev or host.nodes is None:
        return False
    own: set[str | None] = {"/dev/vfio/vfio", "/dev/iommu"}
    slots: set[PciSlot] = set()
    for address in addresses:
        if isinstance(address, PciAddress):
            slots.add(address.slot)
        else:
            own.add(group_node(group_of(address, host)))
    for address, function in host.functions.items():
        if address.slot in slots:
            own.add(group_node(function.iommu_group))
            own.add(cdev_node(host.details.get(address)))
    return host.nodes <= own
