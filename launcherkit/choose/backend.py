"""Decides how QEMU opens each function: through iommufd, or through its group (V2)."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from launcherkit.choose.functions import group_of
from launcherkit.choose.nodes import IOMMUFD_NODE, NodeSet, node_set
from launcherkit.errors import MIXED_BACKENDS, Conflict
from launcherkit.model.address import HostAddress, MdevAddress, PciAddress, UsbAddress
from launcherkit.model.domain import DomainFacts
from launcherkit.model.host import HostFacts
from launcherkit.model.plan import Attachment, GuestDevice, Note
from launcherkit.model.policy import Iommufd


class Backends(NamedTuple):
    """Each function's ``<driver iommufd>``, and the resulting backend."""

    attributes: Mapping[HostAddress, bool]
    """Functions that need the attribute; the others follow the domain's ``<iommufd>``."""
    iommufd: frozenset[HostAddress]
    """Functions that go through iommufd."""
    notes: tuple[Note, ...] = ()
    """Choices that the document doesn't show."""
    errors: tuple[Conflict, ...] = ()
    """If the document itself opens a group both ways."""
    fdgroup: bool = False
    """``/dev/iommu`` is passed in, opened; nobody opens its node."""


def group_nodes(attached: Iterable[HostAddress], host: HostFacts) -> NodeSet:
    """The nodes of the groups of all devices; USB devices have none."""
    return node_set([each for each in attached if isinstance(each, (PciAddress, MdevAddress))], host, iommufd=False)


def decide_backends(
    devices: Sequence[GuestDevice],
    domain: DomainFacts,
    host: HostFacts,
    by_group: NodeSet,
    policy: Iommufd = "auto",
) -> Backends:
    """Choose the backend of all PCI functions that are attached.

    A hostdev's own setting stays, and siblings follow their primary. After that the document's setting for another
    function of the group decides, then the domain's ``<iommufd>``, then the policy, then the nodes: the groups' if all
    of them exist. Nodes don't change what an ``<iommufd fdgroup>`` says.

    Args:
        devices: in the order of the requests.
        domain: the document's settings.
        host: groups and nodes.
        by_group: from `group_nodes`, of all devices.
        policy: the operator's.
    """
    default = domain.iommufd or False
    unasked = not (default or domain.hostdevs or policy == "yes")
    if unasked and host.nodes is not None and by_group.is_complete(host):
        # As for most VMs: nobody asks for iommufd, and the groups' nodes are all there.
        return Backends({}, frozenset())
    fixed, errors = _by_group(devices, domain, host)
    chooser = _Chooser(devices, domain, host, fixed, policy)
    reasons: dict[str, list[str]] = {}
    attributes: dict[HostAddress, bool] = {}
    through: set[HostAddress] = set()
    for device in devices:
        if device.kind != "pci":
            continue
        iommufd, reason = chooser.way(device)
        if reason is not None:
            reasons.setdefault(reason, []).append(str(device.primary.source))
        for source, setting in _settings(device, iommufd if iommufd != default else None, domain):
            if setting is not None and not device.kept:
                attributes[source] = setting
            if default if setting is None else setting:
                through.add(source)
    notes = [Note("iommufd", f"{', '.join(primaries)}: {reason}") for reason, primaries in reasons.items()]
    return Backends(attributes, frozenset(through), tuple(notes), tuple(errors), domain.fdgroup)


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


class _Chooser:
    """Chooses for whole devices of the guest, by the first setting that applies."""

    def __init__(
        self,
        devices: Sequence[GuestDevice],
        domain: DomainFacts,
        host: HostFacts,
        fixed: Mapping[int, tuple[bool, HostAddress]],
        policy: Iommufd,
    ) -> None:
        self._policy = policy
        self._domain = domain
        self._host = host
        self._fixed = fixed
        self._has_mdev = any(device.kind == "mdev" for device in devices)
        self._elsewhere = any(hostdev.iommufd for hostdev in domain.hostdevs)

    def way(self, device: GuestDevice) -> tuple[bool, str | None]:
        """Whether a device goes through iommufd; and why, if the document doesn't say."""
        for attachment in device.attachments:
            if (declared := _declared(attachment, self._domain)) is not None:
                return declared, None
        for attachment in device.attachments if self._fixed else ():
            group = group_of(attachment.source, self._host)
            if group is not None and group in self._fixed:
                return self._fixed[group][0], None
        if device.kept or self._domain.fdgroup:
            return self._domain.iommufd or False, None
        return self._by_nodes([each.source for each in device.attachments if isinstance(each.source, PciAddress)])

    def _by_nodes(self, sources: Sequence[PciAddress]) -> tuple[bool, str | None]:
        """The way that the document prefers, or the other one if only its nodes exist."""
        declared = self._domain.iommufd
        if declared is None and self._has_mdev:
            return False, _BESIDE_MDEV if self._elsewhere or self._policy == "yes" else None
        if declared is None and self._policy != "auto":
            return self._policy == "yes", None
        preferred = self._elsewhere if declared is None else declared
        if self._host.nodes is None or self._complete(sources, preferred) or not self._complete(sources, not preferred):
            return preferred, None
        return not preferred, _GROUP_ONLY if preferred else _IOMMUFD_ONLY

    def _complete(self, sources: Sequence[PciAddress], iommufd: bool) -> bool:
        return node_set(sources, self._host, iommufd=iommufd).is_complete(self._host)


_BESIDE_MDEV = "through the group, as a mediated device goes, though other hostdevs or the policy ask for iommufd"
_GROUP_ONLY = "through the group, although the domain asks for iommufd: only the group's nodes are present"
_IOMMUFD_ONLY = (
    "through iommufd, because only its nodes are present; <driver iommufd='yes'/> needs libvirt 12.1 or later"
)


def nodes_of(
    attached: Sequence[HostAddress], backends: Backends, host: HostFacts, by_group: NodeSet
) -> tuple[str, ...]:
    """The device nodes that QEMU opens, each once; none for unknown functions. ``by_group``: see `decide_backends`."""
    through = [source for source in attached if isinstance(source, PciAddress) and source in backends.iommufd]
    by_iommufd = node_set(through, host, iommufd=True).nodes
    nodes = [node for node in by_iommufd if node != IOMMUFD_NODE or not backends.fdgroup]
    nodes += by_group.of({source for source in attached if source not in backends.iommufd}).nodes
    nodes += [source.node for source in attached if isinstance(source, UsbAddress)]
    return tuple(dict.fromkeys(nodes))
