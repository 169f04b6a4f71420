"""The device nodes by which QEMU opens what VFIO passes through (V2).

VFIO offers each function in two ways, and each way takes two nodes, one that all devices share and one of the device's
own:

* by its IOMMU group: `CONTAINER_NODE`, and ``/dev/vfio/<group>``;
* through iommufd: `IOMMUFD_NODE`, and the function's character device, ``/dev/vfio/devices/vfioN``.

A mediated device is only opened by its group, and all functions of a group are opened the same way: the kernel refuses
the second one as busy. So whoever hands out nodes gives a container those of one way for everything in it, and the way
of each function is chosen here.
"""

from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeAlias

from launcherkit.errors import MIXED_BACKENDS, NODE_MISSING, Conflict, NotOnHost
from launcherkit.model.address import HostAddress, MdevAddress, PciAddress, UsbAddress
from launcherkit.model.domain import DomainFacts
from launcherkit.model.host import HostFacts, PciDetail, bound_to_vfio, group_of
from launcherkit.model.plan import Attachment, GuestDevice, Note, TouchedGroup
from launcherkit.model.policy import Iommufd

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


# How QEMU opens each function: through iommufd, or through its group.


class _Linked(NamedTuple):
    """What is known together of functions that go the same way: they share groups, directly or by way of others."""

    fixed: bool | None
    """How the document opens one of the groups: whether through iommufd; None if it doesn't say."""
    possible: frozenset[bool]
    """The ways of which all nodes are present, as far as nodes are known: whether through iommufd."""


class Backends:
    """How QEMU opens what is attached: through iommufd, or through groups.

    A hostdev's own setting stays, and siblings follow their primary. After that the document's setting for another
    function of the group decides, then the domain's ``<iommufd>``, then the policy, then the nodes: the groups' if all
    of them exist and everything can go that way. Nodes don't change what an ``<iommufd fdgroup>`` says. Devices that
    share a group, also by way of a third one, go the same way.

    Args:
        devices: in the order of the requests.
        domain: the document's settings.
        host: groups and nodes.
        policy: the operator's.
    """

    def __init__(
        self, devices: Sequence[GuestDevice], domain: DomainFacts, host: HostFacts, policy: Iommufd = "auto"
    ) -> None:
        self._domain = domain
        self._host = host
        self._policy = policy
        self.attributes: dict[HostAddress, bool] = {}
        """Functions that need ``<driver iommufd>``; the others follow the domain's ``<iommufd>``."""
        self.through: set[HostAddress] = set()
        """Functions that go through iommufd."""
        self.notes: list[Note] = []
        """Choices that the document doesn't show."""
        self.errors: list[Conflict] = []
        """If the document itself opens a group both ways."""
        by_group = _group_nodes(devices, host)
        unasked = not (domain.iommufd or domain.hostdevs or policy == "yes")
        if not (unasked and host.nodes is not None and by_group.is_complete(host)):
            self._choose(devices)  # for few VMs: somebody asks for iommufd, or a group's node isn't there
        self.nodes = _nodes_of(devices, self.through, domain, host, by_group)
        """The device nodes that QEMU opens, each once; none for unknown functions, and for what the guest doesn't see.
        """

    def _choose(self, devices: Sequence[GuestDevice]) -> None:
        default = self._domain.iommufd or False
        self._fixed, self.errors = _by_group(devices, self._domain, self._host)
        self._linked = self._link_all(devices)
        self._has_mdev = any(device.kind == "mdev" for device in devices)
        self._elsewhere = any(hostdev.iommufd for hostdev in self._domain.hostdevs)
        # The others go with a device that can go no other way, as they would when a second run reads the document.
        self._forced = not self._elsewhere and any(
            self._only_by_iommufd(device) for device in devices if device.kind == "pci"
        )
        reasons: dict[str, list[str]] = {}
        for device in devices:
            if device.kind != "pci":
                continue
            iommufd, reason = self._way(device)
            if reason is not None:
                reasons.setdefault(reason, []).append(str(device.primary.source))
            for source, setting in _settings(device, iommufd if iommufd != default else None, self._domain):
                if setting is not None and not device.kept:
                    self.attributes[source] = setting
                if default if setting is None else setting:
                    self.through.add(source)
        self.notes = [Note("iommufd", f"{', '.join(primaries)}: {reason}") for reason, primaries in reasons.items()]

    def _way(self, device: GuestDevice) -> tuple[bool, str | None]:
        """Whether a device goes through iommufd; and why, if the document doesn't say."""
        linked = self._linked_with(device)
        said = self._said(device, linked)
        return self._by_nodes(linked.possible) if said is None else (said, None)

    def _said(self, device: GuestDevice, linked: _Linked) -> bool | None:
        """What the document says of a device, or of one that goes the same way; None if the nodes decide."""
        for attachment in device.attachments:
            if (declared := _declared(attachment, self._domain)) is not None:
                return declared
        for group in _groups(device, self._host) if self._fixed else ():
            if group in self._fixed:
                return self._fixed[group][0]
        if linked.fixed is not None:
            return linked.fixed
        return self._domain.iommufd or False if device.kept or self._domain.fdgroup else None

    def _linked_with(self, device: GuestDevice) -> _Linked:
        groups = _groups(device, self._host)
        return self._linked[groups[0]] if groups else self._link((), _functions(device))

    def _link_all(self, devices: Sequence[GuestDevice]) -> dict[int, _Linked]:
        by_group: dict[int, _Linked] = {}
        for groups, functions in _linked_functions(devices, self._host):
            by_group |= dict.fromkeys(groups, self._link(groups, functions))
        return by_group

    def _link(self, groups: Iterable[int], functions: Collection[PciAddress]) -> _Linked:
        fixed = next((self._fixed[group][0] for group in groups if group in self._fixed), None)
        ways = (way for way in (False, True) if node_set(functions, self._host, iommufd=way).is_complete(self._host))
        return _Linked(fixed, frozenset(ways))

    def _only_by_iommufd(self, device: GuestDevice) -> bool:
        """Whether a device of which nothing is said can go through iommufd, and not through its groups."""
        linked = self._linked_with(device)
        return self._host.nodes is not None and linked.possible == {True} and self._said(device, linked) is None

    def _by_nodes(self, possible: Collection[bool]) -> tuple[bool, str | None]:
        """The way that the document prefers, or the other one if only its nodes exist."""
        declared = self._domain.iommufd
        if declared is None and self._has_mdev:
            return False, _BESIDE_MDEV if self._elsewhere or self._policy == "yes" else None
        if declared is None and self._policy != "auto":
            return self._policy == "yes", None
        if declared is None and self._forced:
            iommufd, _ = self._with_nodes(possible, True)
            return iommufd, (_WITH_OTHERS if False in possible else _IOMMUFD_ONLY) if iommufd else _WITHOUT_OTHERS
        return self._with_nodes(possible, self._elsewhere if declared is None else declared)

    def _with_nodes(self, possible: Collection[bool], preferred: bool) -> tuple[bool, str | None]:
        if self._host.nodes is None or preferred in possible or not possible:
            return preferred, None
        return not preferred, _GROUP_ONLY if preferred else _IOMMUFD_ONLY


def _linked_functions(devices: Iterable[GuestDevice], host: HostFacts) -> Iterator[tuple[list[int], list[PciAddress]]]:
    """The groups and functions of devices that are linked by their groups."""
    joined: dict[int, int] = {}
    """For each group a lower one to which it is linked, or itself."""

    def lowest(group: int) -> int:
        while joined[group] != group:
            joined[group] = group = joined[joined[group]]
        return group

    of_devices = [(groups, _functions(device)) for device in devices if (groups := _groups(device, host))]
    for groups, _ in of_devices:
        for group in groups:
            joined.setdefault(group, group)
        for group in groups[1:]:
            low, high = sorted((lowest(groups[0]), lowest(group)))
            joined[high] = low
    together: dict[int, tuple[list[int], list[PciAddress]]] = {group: ([], []) for group in joined}
    for group in joined:
        together[lowest(group)][0].append(group)
    for groups, functions in of_devices:
        together[lowest(groups[0])][1].extend(functions)
    yield from (each for each in together.values() if each[0])


def _functions(device: GuestDevice) -> list[PciAddress]:
    return [each.source for each in device.attachments if isinstance(each.source, PciAddress)]


def _groups(device: GuestDevice, host: HostFacts) -> list[int]:
    groups = (group_of(source, host) for source in _functions(device))
    return [group for group in groups if group is not None]


def _settings(
    device: GuestDevice, needed: bool | None, domain: DomainFacts
) -> Iterator[tuple[HostAddress, bool | None]]:
    """The ``<driver iommufd>`` of each function: its own, else its primary's, else what its device needs."""
    primary = _declared(device.primary, domain)
    for attachment in device.attachments:
        settings = (_declared(attachment, domain), primary, needed)
        yield attachment.source, next((each for each in settings if each is not None), None)


def _declared(attachment: Attachment, domain: DomainFacts) -> bool | None:
    return None if attachment.hostdev is None else domain.hostdevs[attachment.hostdev].iommufd


def _by_group(
    devices: Sequence[GuestDevice], domain: DomainFacts, host: HostFacts
) -> tuple[dict[int, tuple[bool, HostAddress]], list[Conflict]]:
    """How the document opens each group, with the first hostdev that says so; and errors for those that differ."""
    fixed: dict[int, tuple[bool, HostAddress]] = {}
    errors: list[Conflict] = []
    for device in devices:
        for attachment in device.attachments:
            if attachment.hostdev is None or device.kind != "pci":
                continue
            says = _declared(attachment, domain)
            if says is None:
                says = False if device.kept and domain.iommufd is None else domain.iommufd
            group = None if says is None else group_of(attachment.source, host)
            if says is None or group is None:
                continue
            way, first = fixed.setdefault(group, (says, attachment.source))
            if way != says:
                errors.append(_mixed(group, *((first, attachment.source) if way else (attachment.source, first))))
    return fixed, errors


def _mixed(group: int, by_iommufd: HostAddress, by_group: HostAddress) -> Conflict:
    return MIXED_BACKENDS(
        f"IOMMU group {group} would be opened both ways: {by_iommufd} through iommufd, {by_group} through the group",
        "The kernel refuses the second one as busy. Give all hostdevs of the group the same <driver iommufd='yes'/> or "
        "'no'; a hostdev without one follows the domain's <iommufd enabled>.",
        group=group,
    )


_BESIDE_MDEV = "through the group, as a mediated device goes, though other hostdevs or the policy ask for iommufd"
_GROUP_ONLY = "through the group, although the domain asks for iommufd: only the group's nodes are present"
_WITHOUT_OTHERS = "through the group, whose nodes alone are present, although another device has to go through iommufd"
_NEEDS = "<driver iommufd='yes'/> needs libvirt 12.1 or later"
_IOMMUFD_ONLY = f"through iommufd, because only its nodes are present; {_NEEDS}"
_WITH_OTHERS = f"through iommufd, as another device has to; {_NEEDS}"


def _group_nodes(devices: Iterable[GuestDevice], host: HostFacts) -> NodeSet:
    """The nodes of the groups of all functions and mediated devices; USB devices have none."""
    sources = [attachment.source for device in devices for attachment in device.attachments]
    return node_set([each for each in sources if isinstance(each, (PciAddress, MdevAddress))], host, iommufd=False)


def _nodes_of(
    devices: Iterable[GuestDevice],
    through: Collection[HostAddress],
    domain: DomainFacts,
    host: HostFacts,
    by_group: NodeSet,
) -> tuple[str, ...]:
    """See `Backends.nodes`; ``through`` are the functions that go through iommufd."""
    opened = [each.source for device in devices for each in device.attachments if each.role != "reserved"]
    by_iommufd = node_set(
        [each for each in opened if isinstance(each, PciAddress) and each in through], host, iommufd=True
    )
    nodes = [node for node in by_iommufd.nodes if node != IOMMUFD_NODE or not domain.fdgroup]
    nodes += by_group.of({source for source in opened if source not in through}).nodes
    nodes += [source.node for source in opened if isinstance(source, UsbAddress)]
    return tuple(dict.fromkeys(nodes))
