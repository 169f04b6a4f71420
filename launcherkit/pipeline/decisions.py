"""The second step: the siblings of each device, and the attributes of each hostdev (S1, S2, X1, X3).

It also checks whether the kernel would let QEMU have the functions, and through which nodes (V1-V3).
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from launcherkit.choose.aliases import assign_aliases, find_carried_siblings, name_matches
from launcherkit.choose.nodes import Backends, check_nodes, decide_backends, group_nodes, nodes_of, nodes_to_come
from launcherkit.choose.retarget import notes_on, reuse
from launcherkit.choose.siblings import Context, assemble_devices, sees_only_own_nodes
from launcherkit.choose.viability import check_isolation, check_viability, notes_on_drivers, touched_groups
from launcherkit.errors import LauncherkitError
from launcherkit.model.address import HostAddress, PciAddress
from launcherkit.model.domain import DomainFacts
from launcherkit.model.host import HostFacts, PciFunction, describe, is_gpu
from launcherkit.model.plan import Attachment, GuestDevice, Match, Note, Shown, TouchedGroup
from launcherkit.model.policy import Policy
from launcherkit.model.request import DisplayOptions
from launcherkit.pipeline.resolution import Resolved

# Notes on what is not attached, and on what may surprise the request's author (C1, C4, S2).


def notes_about(
    devices: Sequence[GuestDevice],
    not_attached: Iterable[tuple[str, HostAddress]],
    gpus: Collection[str],
    host: HostFacts,
) -> Iterator[Note]:
    """Notes on what is attached and on what is not.

    Args:
        devices: everything that is attached.
        not_attached: primaries beyond the requests, with their variables.
        gpus: names of the VMI's gpus.
        host: facts about both.
    """
    attached = {attachment.source for device in devices for attachment in device.attachments}
    rest: dict[str, list[str]] = {}
    for variable, primary in not_attached:
        if primary not in attached:
            rest.setdefault(variable, []).append(str(primary))
    for variable, primaries in rest.items():
        yield Note("left-alone", f"{variable} holds more than was requested; left alone: {', '.join(primaries)}")
    for device in devices:
        for absent in device.not_attached:
            yield Note("stayed", f"{absent.address} is not attached with {device.primary.source}: it is {absent.why}")
        for attachment in device.attachments:
            yield from _about(attachment, device, gpus, host)


def _about(attachment: Attachment, device: GuestDevice, gpus: Collection[str], host: HostFacts) -> Iterator[Note]:
    source, match = attachment.source, attachment.match
    if not host.known or not isinstance(source, PciAddress):
        return
    function = host.functions.get(source)
    if function is None:
        yield Note("not-on-host", f"{source} is in the domain, but is not on this host")
    elif attachment.role == "sibling" and match is not None and _misnamed(match, function, gpus):
        yield Note(
            "companion",
            f"gpu {match.name!r} of the domain is {describe(function)}, a companion of {device.primary.source}: the "
            "guest gets one GPU there, not two. Use a device plugin that lists only primaries, or translate where the "
            "variables are",
        )


def _misnamed(match: Match, function: PciFunction, gpus: Collection[str]) -> bool:
    """Whether KubeVirt, which pairs by position, took a companion for a GPU because the plugin lists both (C1)."""
    return match.origin == "domain" and match.section == "gpus" and match.name in gpus and not is_gpu(function)


class Decided(NamedTuple):
    """All decisions about what is attached, except its place in the guest and its way through VFIO."""

    devices: tuple[GuestDevice, ...]
    aliases: Mapping[HostAddress, str]
    shown: Mapping[HostAddress, Shown]
    managed: frozenset[HostAddress]
    """Functions that libvirt itself binds to vfio-pci."""
    notes: tuple[Note, ...]
    errors: tuple[LauncherkitError, ...]
    domain: DomainFacts
    """The document's facts, with the sources that its hostdevs will have (X2)."""
    removed: tuple[tuple[int, HostAddress], ...] = ()
    """Index and source of each hostdev that is removed: former siblings of a device that another replaces (X2)."""

    @property
    def attached(self) -> list[HostAddress]:
        """Every function that the domain gets."""
        return [attachment.source for device in self.devices for attachment in device.attachments]

    @property
    def reserved(self) -> set[HostAddress]:
        """Functions that the guest doesn't see."""
        return {each.source for device in self.devices for each in device.attachments if each.role == "reserved"}


def decide(resolved: Resolved, policy: Policy) -> Decided:
    """Group siblings with their primaries, and decide aliases, displays and ``managed``."""
    facts, existing, prefixes, domain = resolved.facts, resolved.existing, policy.alias_prefixes, resolved.domain
    named = name_matches(resolved.matches, domain, prefixes)
    carried = find_carried_siblings(resolved.matches, named, domain)
    listed = resolved.listed
    own_nodes = sees_only_own_nodes((*listed, *existing), facts)
    if not resolved.allocated:
        listed = frozenset(existing) if facts.known else frozenset()
    visible = frozenset([each.source for each in domain.hostdevs if each.source and each.guest is not None])
    declared = {each.source: each.managed == "yes" for each in domain.hostdevs if each.source and each.managed}
    context = Context(
        policy.siblings,
        facts,
        listed,
        existing,
        domain.taken,
        carried,
        own_nodes,
        visible,
        managed=policy.managed,
        declared=declared,
    )
    devices = assemble_devices(resolved.matches, context)
    removed: tuple[tuple[int, HostAddress], ...] = ()
    replaced: Sequence[Note] = ()
    if resolved.moved is not None and resolved.moved.primaries:
        moved, devices = reuse(resolved.moved, devices)
        domain, removed, replaced = moved.domain, moved.removed, notes_on(moved, devices)
    options = {request.name: request.display for request in resolved.requests if request.section == "gpus"}
    shown, notes, errors = _displays(devices, options, domain, facts)
    aliases = assign_aliases(devices, named, domain, prefixes)
    managed = _managed(devices, declared, by_policy=policy.managed)
    return Decided(devices, aliases, shown, managed, (*replaced, *notes), errors, domain, removed)


class Checked(NamedTuple):
    """The check of groups and nodes."""

    groups: tuple[TouchedGroup, ...]
    backends: Backends
    nodes: tuple[str, ...]
    """Device nodes that QEMU will open."""
    notes: tuple[Note, ...]
    errors: tuple[LauncherkitError, ...]


def check(resolved: Resolved, decided: Decided, policy: Policy) -> Checked:
    """Check the groups and nodes of everything that is attached; add notes on what is not."""
    notes: list[Note] = []
    domain = decided.domain
    facts, devices, managed = resolved.facts, decided.devices, decided.managed
    if resolved.not_attached or resolved.existing or any(device.not_attached for device in devices):
        gpus = {request.name for request in resolved.requests if request.section == "gpus"}
        notes += notes_about(devices, resolved.not_attached, gpus, facts)
    attached = decided.attached
    groups = touched_groups(attached, facts)
    by_group = group_nodes(attached, facts)
    backends = decide_backends(devices, domain, facts, by_group, policy.iommufd)
    notes += (*notes_on_drivers(groups, managed, facts), *backends.notes)
    unisolated = [*check_isolation(attached, facts)]
    errors = [*unisolated, *check_viability(groups, managed, facts), *backends.errors]
    reserved = decided.reserved if policy.siblings == "reserve" else ()
    nodes = nodes_of([source for source in attached if source not in reserved], backends, facts, by_group)
    # Without an IOMMU there are no nodes either: that says nothing more.
    if not unisolated and (policy.node_check == "always" or (policy.node_check == "auto" and resolved.allocated)):
        to_come = nodes_to_come(groups, managed, facts) if managed else frozenset()
        errors += check_nodes([node for node in nodes if node not in to_come], facts)
    return Checked(groups, backends, nodes, tuple(notes), tuple(errors))


def _displays(
    devices: Sequence[GuestDevice],
    options: Mapping[str, DisplayOptions | None],
    domain: DomainFacts,
    facts: HostFacts,
) -> tuple[Mapping[HostAddress, Shown], tuple[Note, ...], tuple[LauncherkitError, ...]]:
    """Displays, with notes and errors (X3); none for most VMs, whose GPUs are passed through whole."""
    shown = any(hostdev.display or hostdev.ramfb for hostdev in domain.hostdevs)
    mdevs = any(device.kind == "mdev" and not device.kept for device in devices)
    if not shown and not mdevs and not any(options.values()):
        return {}, (), ()
    from launcherkit.choose.display import decide_displays

    return decide_displays([device for device in devices if not device.kept], options, domain, facts)


def _managed(
    devices: Sequence[GuestDevice], declared: Mapping[HostAddress, bool], *, by_policy: bool
) -> frozenset[HostAddress]:
    """Functions that libvirt binds (X1): by their own hostdev, else the primary's hostdev, else the policy."""
    managed: set[HostAddress] = set()
    for device in devices if by_policy or declared else ():
        default = declared.get(device.primary.source, by_policy and not device.kept)
        managed.update([each.source for each in device.attachments if declared.get(each.source, default)])
    return frozenset(managed)
