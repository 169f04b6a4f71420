"""What is known about a host: functions, groups, mediated devices, VFIO nodes."""

from collections.abc import Mapping
from typing import NamedTuple

from launcherkit.model.address import PciAddress
from launcherkit.model.function import PciDetail, PciFunction


class MdevType(NamedTuple):
    """A type that an mdev parent offers.

    Attributes:
        id: Its directory under ``mdev_supported_types``, such as ``nvidia-222``.
        name: Such as ``GRID T4-1Q``; None if the driver has no name file.
        device_api: ``vfio-pci``, ``vfio-ap`` or ``vfio-ccw``.
        available_instances: How many more can be created.
        description: The driver's description.
    """

    id: str
    name: str | None
    device_api: str | None
    available_instances: int | None
    description: str | None


class MdevParent(NamedTuple):
    """A device on which mediated devices can be created; not always a PCI device.

    Attributes:
        name: Its directory in ``/sys/class/mdev_bus``.
        address: None if it isn't a PCI device.
        types: The types that it offers.
    """

    name: str
    address: PciAddress | None
    types: tuple[MdevType, ...]


class Mdev(NamedTuple):
    """A mediated device that exists.

    Attributes:
        uuid: In lower case.
        parent: The name of the device on which it was created.
        type_id: Such as ``nvidia-222``.
        type_name: Such as ``GRID T4-1Q``; None if the driver has no name file.
        device_api: ``vfio-pci``, ``vfio-ap`` or ``vfio-ccw``: the hostdev's ``model`` (X3).
        iommu_group: None if it is in none.
    """

    uuid: str
    parent: str
    type_id: str
    type_name: str | None
    device_api: str | None
    iommu_group: int | None


class NumaNode(NamedTuple):
    """A NUMA node of the host.

    Attributes:
        cpus: Empty for a node with only memory.
        distances: To each node including itself, which is 10.
    """

    cpus: frozenset[int]
    distances: Mapping[int, int]


class HostFacts(NamedTuple):
    """Frozen facts about a host, or about the part that was asked for.

    Attributes:
        known: False if nothing at all is known (C3); then every mapping is empty.
        functions: By address.
        details: The other facts about functions, by address; possibly only for some functions.
        groups: The members of each IOMMU group, by number.
        mdevs: By UUID.
        mdev_parents: By name.
        nodes: Paths of VFIO's device nodes; None if the source can't tell.
        container_dev: ``/dev`` is a container's, without the nodes that every host has and no container gets
            (S2). If facts were read by need, it has no VFIO nodes besides ``nodes`` either.
        recorded: Whether it is a snapshot or a recording, made earlier and maybe on another machine.
        unknown: Functions that exist and can't be read, and why (T2). They are not in ``functions``, but among
            the members of their groups if those can be listed.
        noiommu: Those of ``groups`` that are no IOMMU's: VFIO made them in its unsafe no-IOMMU mode, with the
            nodes ``/dev/vfio/noiommu-N`` (V1).
        numa: The host's NUMA nodes; empty if they were not asked for, or the host has none (P4).
        events: How many uevents the kernel had sent before reading began; None if they aren't counted.
    """

    known: bool
    functions: Mapping[PciAddress, PciFunction]
    details: Mapping[PciAddress, PciDetail]
    groups: Mapping[int, tuple[PciAddress, ...]]
    mdevs: Mapping[str, Mdev]
    mdev_parents: Mapping[str, MdevParent]
    nodes: frozenset[str] | None
    container_dev: bool = False
    recorded: bool = False
    unknown: Mapping[PciAddress, str] = {}
    noiommu: frozenset[int] = frozenset()
    numa: Mapping[int, NumaNode] = {}
    events: bytes | None = None

    def physical_function(self, address: PciAddress) -> PciAddress:
        """The physical function of a VF; any other function is its own."""
        function = self.functions.get(address)
        return address if function is None or function.physfn is None else function.physfn

    def slot_functions(self, address: PciAddress) -> list[PciFunction]:
        """The known functions of an address's slot, by function number."""
        (domain, bus, device, _), get = address, self.functions.get
        return [
            function for number in range(8) if (function := get(PciAddress(domain, bus, device, number))) is not None
        ]


NO_FACTS = HostFacts(False, {}, {}, {}, {}, {}, None)
"""The facts of `Host.none`."""
