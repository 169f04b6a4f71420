"""What is known of a host: functions, groups, mediated devices, VFIO nodes."""

from collections.abc import Mapping

from launcherkit.model.address import PciAddress
from launcherkit.model.function import PciDetail, PciFunction
from launcherkit.model.value import NamedTuple


class MdevType(NamedTuple):
    """A type that an mdev parent offers."""

    id: str
    """Directory name under ``mdev_supported_types``: ``nvidia-222``."""
    name: str | None
    """``GRID T4-1Q``; some drivers have no name file."""
    device_api: str | None
    available_instances: int | None
    description: str | None


class MdevParent(NamedTuple):
    """A device that mediated devices can be made on; not always a PCI device."""

    name: str
    address: PciAddress | None
    types: tuple[MdevType, ...]


class Mdev(NamedTuple):
    """A mediated device that exists."""

    uuid: str
    parent: str
    type_id: str
    type_name: str | None
    device_api: str | None
    """``vfio-pci``, ``vfio-ap`` or ``vfio-ccw``: the hostdev's ``model`` (X3)."""
    iommu_group: int | None


class NumaNode(NamedTuple):
    """A NUMA node of the host."""

    cpus: frozenset[int]
    """Empty for a node that has memory alone."""
    distances: Mapping[int, int]
    """To each node, itself included; 10 is its own."""


class HostFacts(NamedTuple):
    """Frozen facts about a host, or about as much of it as was asked for.

    ``known`` is False where nothing is known at all (C3); then every mapping is empty.
    ``nodes`` holds the paths of VFIO's device nodes, or None where the source can't tell.
    """

    known: bool
    functions: Mapping[PciAddress, PciFunction]
    details: Mapping[PciAddress, PciDetail]
    groups: Mapping[int, tuple[PciAddress, ...]]
    mdevs: Mapping[str, Mdev]
    mdev_parents: Mapping[str, MdevParent]
    nodes: frozenset[str] | None
    container_dev: bool = False
    """``/dev`` is a container's, without the nodes that every host has and no container is given (S2).

    Where facts were read by need, it has no VFIO nodes besides ``nodes`` either.
    """
    recorded: bool = False
    """Whether it was written down earlier, and maybe on another machine: a snapshot, a recording."""
    unknown: Mapping[PciAddress, str] = {}
    """Functions that are there and can't be read, and why (T2). They are not among ``functions``, but among the members
    of their groups where those can be listed."""
    numa: Mapping[int, NumaNode] = {}
    """The host's NUMA nodes; empty where they were not asked for, or the host has none (P4)."""

    def slot_functions(self, address: PciAddress) -> list[PciFunction]:
        """The known functions of the slot that an address is in, by function number."""
        get, slot = self.functions.get, address[:3]
        return [
            function for number in range(8) if (function := get(tuple.__new__(PciAddress, (*slot, number)))) is not None
        ]


NO_FACTS = HostFacts(False, {}, {}, {}, {}, {}, None)
"""What `Host.none` knows."""
