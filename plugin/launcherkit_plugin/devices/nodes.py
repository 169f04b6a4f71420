"""Which of VFIO's device nodes stand for some functions, and which of them a container gets (V2, K2)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from launcherkit.model.address import PciAddress
from launcherkit.model.host import HostFacts
from launcherkit.resolve.vfio import CONTAINER_NODE, IOMMUFD_NODE, cdev_node, group_node
from launcherkit_plugin.model.config import NodeChoice


class NodeSets(NamedTuple):
    """The nodes of some functions, of either kind."""

    groups: tuple[str, ...] | None
    """VFIO's container and all groups; None where one is missing."""
    cdevs: tuple[str, ...] | None
    """iommufd and VFIO's character devices of all functions; None where one is missing."""
    has_iommufd: bool
    """Whether the node has ``/dev/iommu``."""


def node_sets(functions: Sequence[PciAddress], host: HostFacts) -> NodeSets:
    """The nodes of functions as they are on the host. With no ``dev/`` to look at they are taken to be there."""
    groups = [host.functions[member].iommu_group if member in host.functions else None for member in functions]
    cdevs = _complete([IOMMUFD_NODE, *(cdev_node(host.details.get(member)) for member in functions)], host)
    has_iommufd = cdevs is not None if host.nodes is None else IOMMUFD_NODE in host.nodes
    return NodeSets(_complete([CONTAINER_NODE, *map(group_node, groups)], host), cdevs, has_iommufd)


def chosen_nodes(sets: Sequence[NodeSets], choice: NodeChoice) -> tuple[str, ...] | None:
    """The nodes for these together, each once; None where one that is chosen is missing.

    ``auto`` and the single kinds never give a mix: a reader could take the one kind for one device and the other for
    the next (V2). ``both`` is for readers that decide by themselves, and gives those of the groups alone where the
    node has no iommufd.
    """
    groups, cdevs = [each.groups for each in sets], [each.cdevs for each in sets]
    alternatives = {
        "group": [groups],
        "cdev": [cdevs],
        "auto": [groups, cdevs],
        "both": [[*groups, *cdevs] if any(each.has_iommufd for each in sets) else groups],
    }
    for wanted in alternatives[choice]:
        if None not in wanted:
            return tuple(dict.fromkeys(node for nodes in wanted for node in nodes or ()))
    return None


def missing_node(functions: Iterable[PciAddress], host: HostFacts, choice: NodeChoice) -> str:
    """The node that a person would look for first."""
    present = host.nodes or frozenset()
    wanted: list[str] = []
    if choice != "cdev":
        wanted.append(CONTAINER_NODE)
        wanted += [node for member in functions if (node := group_node(host.functions[member].iommu_group))]
    if choice == "cdev" or (choice == "both" and IOMMUFD_NODE in present):
        wanted.append(IOMMUFD_NODE)
        wanted += [
            cdev_node(host.details.get(member)) or f"the character device of {member} below /dev/vfio/devices"
            for member in functions
        ]
    return next((node for node in wanted if node not in present), wanted[0])


def _complete(nodes: Iterable[str | None], host: HostFacts) -> tuple[str, ...] | None:
    wanted = tuple(dict.fromkeys(nodes))
    if None in wanted or not (host.nodes is None or host.nodes.issuperset(wanted)):
        return None
    return tuple(node for node in wanted if node is not None)
