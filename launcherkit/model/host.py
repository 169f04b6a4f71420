"""What is known of a host: functions, groups, mediated devices, VFIO nodes."""

from collections.abc import Mapping

from launcherkit.model.address import PciAddress
from launcherkit.model.function import PciDetail, PciFunction
from launcherkit.model.value import NamedTuple, documented


@documented(
    id="Directory name under ``mdev_supported_types``: ``nvidia-222``.",
    name="``GRID T4-1Q``; some drivers have no name file.",
    device_api="``vfio-pci``, ``vfio-ap`` or ``vfio-ccw``.",
    available_instances="How many more of it can be made.",
    description="The driver's words.",
)
class MdevType(NamedTuple):
    """A type that an mdev parent offers."""

    id: str
    name: str | None
    device_api: str | None
    available_instances: int | None
    description: str | None


@documented(
    name="Of its directory in ``/sys/class/mdev_bus``.",
    address="None where it is no PCI device.",
    types="Those that it offers.",
)
class MdevParent(NamedTuple):
    """A device that mediated devices can be made on; not always a PCI device."""

    name: str
    address: PciAddress | None
    types: tuple[MdevType, ...]


@documented(
    uuid="In lower case.",
    parent="The name of the device that it was made on.",
    type_id="``nvidia-222``.",
    type_name="``GRID T4-1Q``; None where the driver has no name file.",
    device_api="``vfio-pci``, ``vfio-ap`` or ``vfio-ccw``: the hostdev's ``model`` (X3).",
    iommu_group="None where it is in none.",
)
class Mdev(NamedTuple):
    """A mediated device that exists."""

    uuid: str
    parent: str
    type_id: str
    type_name: str | None
    device_api: str | None
    iommu_group: int | None


@documented(
    cpus="Empty for a node that has memory alone.",
    distances="To each node, itself included; 10 is its own.",
)
class NumaNode(NamedTuple):
    """A NUMA node of the host."""

    cpus: frozenset[int]
    distances: Mapping[int, int]


@documented(
    known="False where nothing is known at all (C3); then every mapping is empty.",
    functions="By address.",
    details="The rest about functions, by address; not of all where little was asked for.",
    groups="The members of each IOMMU group, by number.",
    mdevs="By UUID.",
    mdev_parents="By name.",
    nodes="Paths of VFIO's device nodes; None where the source can't tell.",
    container_dev=(
        "``/dev`` is a container's, without the nodes that every host has and no container is given (S2). "
        "Where facts were read by need, it has no VFIO nodes besides ``nodes`` either."
    ),
    recorded="Whether it was written down earlier, and maybe on another machine: a snapshot, a recording.",
    unknown=(
        "Functions that are there and can't be read, and why (T2). They are not among ``functions``, but "
        "among the members of their groups where those can be listed."
    ),
    numa="The host's NUMA nodes; empty where they were not asked for, or the host has none (P4).",
    events="How many uevents the kernel had sent before all was read; None where nobody counts them.",
)
class HostFacts(NamedTuple):
    """Frozen facts about a host, or about as much of it as was asked for."""

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
    numa: Mapping[int, NumaNode] = {}
    events: bytes | None = None

    def physical_function(self, address: PciAddress) -> PciAddress:
        """The one that a VF is of; any other function is its own."""
        function = self.functions.get(address)
        return address if function is None or function.physfn is None else function.physfn

    def slot_functions(self, address: PciAddress) -> list[PciFunction]:
        """The known functions of the slot that an address is in, by function number."""
        get, slot = self.functions.get, address[:3]
        return [
            function for number in range(8) if (function := get(tuple.__new__(PciAddress, (*slot, number)))) is not None
        ]


NO_FACTS = HostFacts(False, {}, {}, {}, {}, {}, None)
"""What `Host.none` knows."""
