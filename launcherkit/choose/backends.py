"""How QEMU opens each function: through iommufd, or through its IOMMU group (V2)."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeAlias

from launcherkit.choose.nodes import IOMMUFD_NODE, NodeSet, node_set
from launcherkit.errors import MIXED_BACKENDS, Conflict
from launcherkit.model.address import HostAddress, MdevAddress, PciAddress, UsbAddress
from launcherkit.model.domain import DomainFacts
from launcherkit.model.host import HostFacts, group_of
from launcherkit.model.plan import Attachment, GuestDevice, Note, is_seen
from launcherkit.model.policy import Iommufd

_Ways: TypeAlias = dict[bool, HostAddress]
"""The first function that is opened through iommufd, and the first one through the group, as far as there are any."""


class _Linked(NamedTuple):
    """What is known together of functions that go the same way: they share groups, directly or by way of others."""

    said: bool | None
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
        """For groups that would be opened both ways, because the document says so of their functions."""
        by_group = _group_nodes(devices, host)
        unasked = not (domain.iommufd or domain.hostdevs or policy == "yes")
        if not (unasked and host.nodes is not None and by_group.is_complete(host)):
            self._choose(devices)  # for few VMs: somebody asks for iommufd, or a group's node isn't there
        self.by_cdev = [each for device in devices for each in _opened(device, domain) if each in self.through]
        """Those of them that QEMU opens, by their character devices."""
        self.nodes = _nodes_of(devices, self.through, domain, host, by_group)
        """The device nodes that QEMU opens, each once; none for unknown functions, and for what the guest doesn't see.
        """

    def _choose(self, devices: Sequence[GuestDevice]) -> None:
        default = self._domain.iommufd or False
        self._said_of_groups = _said_of_groups(devices, self._domain, self._host)
        self._linked = self._link_all(devices)
        self._has_mdev = any(device.kind == "mdev" for device in devices)
        self._elsewhere = any(hostdev.iommufd for hostdev in self._domain.hostdevs)
        # The others go with a device that can go no other way, as they would when a second run reads the document.
        self._has_iommufd_only = not self._elsewhere and any(
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
        self.errors = [*self._conflicts(_ways_of_groups(devices, self.through, self._domain, self._host))]
        self.notes = [Note("iommufd", f"{', '.join(primaries)}: {reason}") for reason, primaries in reasons.items()]

    def _conflicts(self, ways: Mapping[int, _Ways]) -> Iterator[Conflict]:
        for group in sorted({*ways, *self._said_of_groups}):
            both = ways.get(group, {}) | self._said_of_groups.get(group, {})
            if len(both) > 1:
                yield _mixed(group, both[True], both[False])

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
        for group in _groups(_opened(device, self._domain), self._host) if self._said_of_groups else ():
            if group in self._said_of_groups:
                return next(iter(self._said_of_groups[group]))
        if linked.said is not None:
            return linked.said
        return self._domain.iommufd or False if device.kept or self._domain.fdgroup else None

    def _linked_with(self, device: GuestDevice) -> _Linked:
        groups = _groups(_opened(device, self._domain), self._host)
        return self._linked[groups[0]] if groups else self._link((), _opened(device, self._domain))

    def _link_all(self, devices: Sequence[GuestDevice]) -> dict[int, _Linked]:
        by_group: dict[int, _Linked] = {}
        for groups, functions in _linked_functions(devices, self._domain, self._host):
            by_group |= dict.fromkeys(groups, self._link(groups, functions))
        return by_group

    def _link(self, groups: Iterable[int], functions: Collection[PciAddress]) -> _Linked:
        ways = (self._said_of_groups[group] for group in groups if group in self._said_of_groups)
        said = next((way for of_group in ways for way in of_group), None)
        possible = [
            way for way in (False, True) if node_set(functions, self._host, iommufd=way).is_complete(self._host)
        ]
        return _Linked(said, frozenset(possible))

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
        if declared is None and self._has_iommufd_only:
            iommufd, _ = self._with_nodes(possible, True)
            return iommufd, (_IOMMUFD_ONLY if possible == {True} else _WITH_OTHERS) if iommufd else _WITHOUT_OTHERS
        return self._with_nodes(possible, self._elsewhere if declared is None else declared)

    def _with_nodes(self, possible: Collection[bool], preferred: bool) -> tuple[bool, str | None]:
        if self._host.nodes is None or preferred in possible or not possible:
            return preferred, None
        return not preferred, _GROUP_ONLY if preferred else _IOMMUFD_ONLY


def _linked_functions(
    devices: Iterable[GuestDevice], domain: DomainFacts, host: HostFacts
) -> Iterator[tuple[list[int], list[PciAddress]]]:
    """The groups of devices that are linked by these, and the functions that QEMU opens of them."""
    joined: dict[int, int] = {}
    """For each group a lower one to which it is linked, or itself."""

    def lowest(group: int) -> int:
        while joined[group] != group:
            joined[group] = group = joined[joined[group]]
        return group

    opened = [_opened(device, domain) for device in devices]
    of_devices = [(groups, functions) for functions in opened if (groups := _groups(functions, host))]
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


def _opened(device: GuestDevice, domain: DomainFacts) -> list[PciAddress]:
    """The functions of a device that QEMU opens."""
    seen = (each.source for each in device.attachments if is_seen(each, domain))
    return [source for source in seen if isinstance(source, PciAddress)]


def _groups(functions: Iterable[PciAddress], host: HostFacts) -> list[int]:
    groups = (group_of(each, host) for each in functions)
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


def _said_of_groups(devices: Sequence[GuestDevice], domain: DomainFacts, host: HostFacts) -> dict[int, _Ways]:
    """How the document opens each group: its first hostdev that says so comes first."""
    said: dict[int, _Ways] = {}
    for device in devices:
        for attachment in device.attachments:
            if attachment.hostdev is None or device.kind != "pci" or not is_seen(attachment, domain):
                continue
            says = _declared(attachment, domain)
            if says is None:
                says = False if device.kept and domain.iommufd is None else domain.iommufd
            group = None if says is None else group_of(attachment.source, host)
            if says is not None and group is not None:
                said.setdefault(group, {}).setdefault(says, attachment.source)
    return said


def _ways_of_groups(
    devices: Iterable[GuestDevice], through: Collection[HostAddress], domain: DomainFacts, host: HostFacts
) -> dict[int, _Ways]:
    """How each group is opened in the end."""
    ways: dict[int, _Ways] = {}
    for source in (source for device in devices for source in _opened(device, domain)):
        group = group_of(source, host)
        if group is not None:
            ways.setdefault(group, {}).setdefault(source in through, source)
    return ways


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
    opened = [each.source for device in devices for each in device.attachments if is_seen(each, domain)]
    by_iommufd = node_set(
        [each for each in opened if isinstance(each, PciAddress) and each in through], host, iommufd=True
    )
    nodes = [node for node in by_iommufd.nodes if node != IOMMUFD_NODE or not domain.fdgroup]
    nodes += by_group.of({source for source in opened if source not in through}).nodes
    nodes += [source.node for source in opened if isinstance(source, UsbAddress)]
    return tuple(dict.fromkeys(nodes))
