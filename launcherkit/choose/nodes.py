"""The device nodes by which QEMU opens what VFIO passes through (V2).

VFIO offers each function in two ways, and each way takes two nodes, one that all devices share and one of the device's
own:

* by its IOMMU group: `CONTAINER_NODE`, and ``/dev/vfio/<group>``;
* through iommufd: `IOMMUFD_NODE`, and the function's character device, ``/dev/vfio/devices/vfioN``.

A mediated device is only opened by its group, and all functions of a group are opened the same way: the kernel refuses
the second one as busy. So whoever hands out nodes gives a container those of one way for everything in it. Which way a
function of a VM goes is decided in `launcherkit.choose.backends`.
"""

from collections.abc import Collection, Container, Iterable, Iterator, Mapping
from typing import NamedTuple, TypeAlias

from launcherkit.errors import NODE_MISSING, NotOnHost
from launcherkit.model.address import HostAddress, MdevAddress, PciAddress
from launcherkit.model.host import HostFacts, PciDetail, bound_to_vfio, group_of
from launcherkit.model.plan import TouchedGroup

CONTAINER_NODE = "/dev/vfio/vfio"
IOMMUFD_NODE = "/dev/iommu"
CDEVS = "/dev/vfio/devices/"
"""The directory of VFIO's character devices."""

VfioDevice: TypeAlias = PciAddress | MdevAddress


class NodeSet(NamedTuple):
    """The device nodes that some devices need to be opened in one way."""

    shared: str
    """`CONTAINER_NODE` or `IOMMUFD_NODE`, which all of them need."""
    own: Mapping[VfioDevice, str | None]
    """The node of each device; None if it can't be opened in this way, or isn't known."""

    @property
    def iommufd(self) -> bool:
        """Whether they are opened through iommufd."""
        return self.shared == IOMMUFD_NODE

    @property
    def nodes(self) -> tuple[str, ...]:
        """All nodes, each once, the shared one first; none without devices."""
        own = dict.fromkeys([node for node in self.own.values() if node is not None])
        return (self.shared, *own) if self.own else ()

    def of(self, devices: Collection[HostAddress]) -> "NodeSet":
        """The nodes of those of the devices that are among these."""
        return NodeSet(self.shared, {device: node for device, node in self.own.items() if device in devices})

    def is_complete(self, host: HostFacts) -> bool:
        """Whether every device has a node, and all nodes exist; without facts about ``/dev`` they are assumed to."""
        return None not in self.own.values() and (host.nodes is None or host.nodes.issuperset(self.nodes))


def node_set(devices: Iterable[VfioDevice], host: HostFacts, *, iommufd: bool) -> NodeSet:
    """The device nodes of some devices, whether or not they exist.

    Args:
        devices: functions and mediated devices.
        host: their groups, and the names of their character devices.
        iommufd: whether they are opened through iommufd, not by their groups.
    """
    own = {device: _node_of(device, host, iommufd) for device in devices}
    return NodeSet(IOMMUFD_NODE if iommufd else CONTAINER_NODE, own)


def _node_of(device: VfioDevice, host: HostFacts, iommufd: bool) -> str | None:
    if not iommufd:
        return group_node(group_of(device, host))
    return cdev_node(host.details.get(device)) if isinstance(device, PciAddress) else None


def group_node(group: int | None) -> str | None:
    """``/dev/vfio/<group>``."""
    return None if group is None else f"/dev/vfio/{group}"


def cdev_node(detail: PciDetail | None) -> str | None:
    """``/dev/vfio/devices/vfioN``; None without iommufd."""
    return None if detail is None or detail.vfio_dev is None else f"{CDEVS}{detail.vfio_dev}"


def own_nodes(device: VfioDevice, host: HostFacts) -> list[str]:
    """A device's own nodes of both ways: if one of them is open, somebody has the device."""
    nodes = [_node_of(device, host, iommufd) for iommufd in (False, True)]
    return [node for node in nodes if node is not None]


def needed_nodes(devices: Iterable[VfioDevice], host: HostFacts, iommufd: bool) -> NodeSet:
    """The nodes for devices that are all opened in one way: by their groups, unless only iommufd's are complete.

    Args:
        devices: what will be attached; a mediated device forces the way by the groups.
        host: facts about it.
        iommufd: whether the document asks for iommufd: then it isn't by the groups.
    """
    by_group = node_set(devices, host, iommufd=False)
    exist = host.nodes is None or host.nodes.issuperset(by_group.nodes)
    if any(isinstance(device, MdevAddress) for device in by_group.own) or (exist and not iommufd):
        return by_group
    through = node_set(by_group.own, host, iommufd=True)
    return through if iommufd or through.is_complete(host) else by_group


def nodes_to_come(groups: Iterable[TouchedGroup], managed: Container[HostAddress], host: HostFacts) -> frozenset[str]:
    """The nodes that need not exist yet: those of groups of which libvirt itself binds a member."""
    nodes = [
        group_node(group.number)
        for group in groups
        for member in group.members
        if member.address in managed
        and not bound_to_vfio(host.functions[member.address], host.details.get(member.address))
    ]
    return frozenset([node for node in nodes if node is not None])


def check_nodes(nodes: Iterable[str], host: HostFacts) -> Iterator[NotOnHost]:
    """An error for each missing VFIO node; USB nodes are not among the facts."""
    if host.nodes is None:
        return
    for node in nodes:
        if node not in host.nodes and not node.startswith("/dev/bus/usb/"):
            yield NODE_MISSING(
                f"the device node {node} is missing",
                "The device plugin must hand it to this container; outside a pod: modprobe vfio-pci. "
                "If the VM runs elsewhere: the policy `nodeCheck: never`.",
                file=node,
            )


def check_cdevs(
    devices: Iterable[HostAddress], host: HostFacts, managed: Container[HostAddress] = ()
) -> Iterator[NotOnHost]:
    """An error for each function that is to go through iommufd and has no character device.

    None if the nodes aren't among the facts, as with `check_nodes`, and none for ``managed`` functions that libvirt is
    yet to bind.
    """
    for device in devices if host.nodes is not None else ():
        detail = host.details.get(device) if isinstance(device, PciAddress) else None
        if isinstance(device, PciAddress) and detail is not None and detail.vfio_dev is None:
            if device in managed and not bound_to_vfio(host.functions[device], detail):
                continue
            yield NODE_MISSING(
                f"{device} has no character device of VFIO, through which iommufd would open it",
                "Bind it to a VFIO driver; the kernel needs CONFIG_VFIO_DEVICE_CDEV (Linux 6.6). Or let its group be "
                "opened: `iommufd: no`, and no <iommufd enabled='yes'/> or <driver iommufd='yes'/> in the document.",
                device=str(device),
                file=f"/sys/bus/pci/devices/{device}/vfio-dev",
            )


def check_node_set(needed: NodeSet, host: HostFacts) -> Iterator[NotOnHost]:
    """An error for each node of a set that is missing."""
    yield from check_nodes(needed.nodes, host)
    yield from check_cdevs(needed.own if needed.iommufd else (), host)
