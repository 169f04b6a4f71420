"""Decides which sibling functions are attached with a primary, and which are not (S1, S1a, S2, C5)."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from launcherkit.choose.nodes import CONTAINER_NODE, IOMMUFD_NODE, group_node, node_set, own_nodes
from launcherkit.model.address import HostAddress, PciAddress, PciSlot, card_of
from launcherkit.model.domain import DomainFacts, ExistingHostdev
from launcherkit.model.host import (
    HostFacts,
    PciFunction,
    bound_to_vfio,
    group_of,
    is_bridge,
    is_chipset,
    is_vgpu_vf,
    primary_rank,
)
from launcherkit.model.plan import Attachment, GuestDevice, Match, NotAttached, Role
from launcherkit.model.policy import Siblings
from launcherkit.model.request import kind_of


def assemble_devices(
    matches: Sequence[Match],
    siblings: Siblings,
    host: HostFacts,
    *,
    own_nodes: bool,
    domain: DomainFacts | None = None,
    listed: Collection[HostAddress] = (),
    carried: Mapping[HostAddress, HostAddress] = {},
    managed: bool = False,
) -> tuple[GuestDevice, ...]:
    """Make a device of the guest of each answered request, with its siblings, in the order of the requests.

    A request for a function that is another one's sibling becomes part of its device (C5). Only the best function of a
    slot brings siblings (S1a).

    Args:
        matches: the answered requests.
        siblings: the policy's.
        host: facts about the functions, their slots and groups.
        own_nodes: whether every visible device node was given to this container, or will be to one (S2).
        domain: its hostdevs (X2), and functions that it uses otherwise, which can't be siblings; None if there is none.
        listed: addresses that count as listed (S1): those in the used variables or, without any, the document's.
        carried: hostdevs of the document that an earlier run attached as siblings, with their primaries.
        managed: whether libvirt binds what is added (X1), so that a sibling needs no VFIO driver yet (S2).
    """
    choice = _Choice(matches, siblings, host, domain, listed, carried, managed=managed, own_nodes=own_nodes)
    attached: set[HostAddress] = set()
    devices: dict[HostAddress, GuestDevice] = {}
    for match in choice.in_order(matches):
        if match.primary not in attached:
            device = devices[match.primary] = choice.device(match, attached)
            attached.update([attachment.source for attachment in device.attachments])
    return tuple([devices.pop(match.primary) for match in matches if match.primary in devices])


def _declared_managed(hostdevs: Iterable[ExistingHostdev]) -> dict[HostAddress, bool]:
    """Whether libvirt binds the document's hostdevs that say so themselves; siblings follow their primary (X1)."""
    return {each.source: each.managed == "yes" for each in hostdevs if each.source and each.managed}


def managed_functions(
    devices: Sequence[GuestDevice], domain: DomainFacts, host: HostFacts, *, by_policy: bool
) -> frozenset[HostAddress]:
    """Functions that libvirt binds (X1): by their own hostdev, else the primary's hostdev, else the policy.

    The policy is not for the VF of a vGPU: on vfio-pci it would be none, so it stays on its vendor's driver (G4).
    """
    declared = _declared_managed(domain.hostdevs)
    managed: set[HostAddress] = set()
    for device in devices if by_policy or declared else ():
        primary = device.primary.source
        vgpu = isinstance(primary, PciAddress) and is_vgpu_vf(host.details.get(primary))
        default = declared.get(primary, by_policy and not device.kept and not vgpu)
        managed.update([each.source for each in device.attachments if declared.get(each.source, default)])
    return frozenset(managed)


class _Choice:
    """Chooses the siblings of each primary, with what follows from all matches together."""

    def __init__(
        self,
        matches: Sequence[Match],
        siblings: Siblings,
        host: HostFacts,
        domain: DomainFacts | None,
        listed: Collection[HostAddress],
        carried: Mapping[HostAddress, HostAddress],
        *,
        managed: bool,
        own_nodes: bool,
    ) -> None:
        self._siblings = siblings
        self._host = host
        self._listed = listed
        self._carried = carried
        self._managed = managed
        self._own_nodes = own_nodes
        hostdevs = () if domain is None else domain.hostdevs
        self._taken = frozenset[PciAddress]() if domain is None else domain.taken
        self._existing = {} if domain is None else domain.index_of
        # The guest sees what the document gives a guest address, whatever the policy (X2).
        self._visible = {each.source for each in hostdevs if each.source and each.guest is not None}
        self._declared = _declared_managed(hostdevs)
        self._match_of = {match.primary: match for match in matches}  # each address answers one request (C5)
        self._in_slot = _by_slot(self._match_of, listed, host)
        self._best = {primary: _best_of_slot(primary, self._in_slot, host) for primary in self._match_of}
        self._role: Role = "reserved" if siblings == "reserve" else "sibling"
        # With ``group`` candidates are also of other slots, and those of these come with the device of their own slot.
        leading = [] if siblings != "group" else [at for at, best in self._best.items() if best == at]
        self._led_slots = frozenset([card_of(primary) for primary in leading if primary not in carried])

    def in_order(self, matches: Sequence[Match]) -> list[Match]:
        """The matches in the order in which they get their siblings."""
        return _best_of_slot_first(matches, self._carried, self._best, self._host)

    def device(self, match: Match, attached: Collection[HostAddress]) -> GuestDevice:
        """The device of a match, without what is attached already."""
        primary, index_of = match.primary, self._existing.get
        attachments = [Attachment(primary, "primary", _asked(match), match, index_of(primary))]
        not_attached: list[NotAttached] = []
        own = self._host.functions.get(primary) if isinstance(primary, PciAddress) else None
        for candidate in self._candidates(primary, own) if isinstance(primary, PciAddress) else ():
            if candidate in attached:
                continue
            other = self._match_of.get(candidate)
            if self._best[primary] == primary:
                comes, reason = self._decide(own, candidate, other)
            else:
                comes, reason = False, _why_alone(candidate, self._best[primary])
            if comes:
                role: Role = "sibling" if candidate in self._visible else self._role
                attachments.append(Attachment(candidate, role, reason, other, index_of(candidate)))
            else:
                not_attached.append(NotAttached(candidate, reason))
        return GuestDevice(kind_of(primary), tuple(attachments), tuple(not_attached))

    def _candidates(self, primary: PciAddress, own: PciFunction | None) -> list[PciAddress]:
        """The possible siblings of a primary that don't belong to another device."""
        candidates = self._possible(primary, own)
        return [candidate for candidate in candidates if not self._is_elsewhere(candidate, primary, own)]

    def _is_elsewhere(self, candidate: PciAddress, primary: PciAddress, own: PciFunction | None) -> bool:
        """Whether a candidate comes with another primary, or is a device of its own."""
        carried, host = self._carried, self._host
        if self._led_slots and candidate.slot != primary.slot and candidate.slot in self._led_slots:
            return True  # it comes with the device of its own slot (S1, C5)
        if candidate in carried:
            return carried[candidate] != primary
        if candidate in self._match_of and _has_model_of(own, candidate, host):
            return True  # another port of the card is a device of its own (C2)
        # So is what is asked for by name where siblings are not shown, and its ports (S1).
        return self._role == "reserved" and _is_separate(candidate, self._match_of, self._in_slot, host)

    def _possible(self, primary: PciAddress, own: PciFunction | None) -> Iterable[PciAddress]:
        """The possible siblings by the policy (S1): endpoints, never bridges, VFs or others of the primary's model."""
        host, policy = self._host, self._siblings
        if policy == "none" or (own is not None and own.is_vf):
            return ()
        if own is None:  # without host facts, what is listed in its slot (C3)
            return [address for address in self._in_slot.get(primary.slot, ()) if address != primary and not host.known]
        by_group = policy == "group" and own.iommu_group is not None
        addresses = _group_members(own, host) if by_group else self._in_slot[primary.slot]
        others = [other for address in addresses if (other := host.functions[address]) is not own]
        return [other.address for other in others if can_be_sibling(other, host) and self._is_permitted(other, own)]

    def _is_permitted(self, other: PciFunction, own: PciFunction) -> bool:
        """Whether the policy permits a function as a sibling."""
        if self._siblings == "group":
            return True
        return other.model != own.model and (self._siblings != "listed" or other.address in self._listed)

    def _decide(self, own: PciFunction | None, candidate: PciAddress, match: Match | None) -> tuple[bool, str]:
        """Whether a candidate is attached, and why (S2)."""
        host = self._host
        if candidate in self._taken:
            return False, "used by another device of the domain"
        if match is not None:
            return True, _asked(match)
        if candidate in self._existing:
            return True, "it is in the domain"
        other = host.functions.get(candidate)
        if own is None or other is None:
            return True, "listed with it; without host facts nothing more is known"
        group = own.iommu_group
        if group is None or other.iommu_group != group:
            return self._decide_other_group(other)
        where = f"in the same IOMMU group {group}"
        if other.driver in (None, "pci-stub", "pcieport") and not self._declared.get(own.address, self._managed):
            state = "has no driver" if other.driver is None else f"bound to {other.driver}"
            return False, (
                f"{where}, but {state}, and with managed='no' libvirt takes only what a VFIO driver has; to bind it on "
                f"the node: `launcherkit-plugin bind {candidate}`"
            )
        return True, where

    def _decide_other_group(self, function: PciFunction) -> tuple[bool, str]:
        """Whether a function of another group than the primary's is attached: only if it was allocated (S2)."""
        host, candidate = self._host, function.address
        where = "in no IOMMU group" if function.iommu_group is None else f"in IOMMU group {function.iommu_group}"
        if not bound_to_vfio(function, host.details.get(candidate)):
            return False, f"{where}, bound to {function.driver or 'no driver'}, not to a VFIO driver"
        if candidate in self._listed:
            return True, f"{where}, bound to {function.driver}, and a variable lists it"
        if host.nodes is None or host.nodes.isdisjoint(own_nodes(candidate, host)):
            return False, f"{where}, whose device node is missing"
        if not self._own_nodes:
            return False, (
                f"{where}, and nothing shows that it was allocated: no variable lists it, and a "
                "visible device node proves nothing on a host or in a pod that sees other nodes than its own"
            )
        return True, f"{where}, bound to {function.driver}, and this container was given its node"


def is_best_of_slot(function: PciFunction, host: HostFacts) -> bool:
    """Whether a function brings siblings: it is the best of its slot, in the order of C2 (S1a)."""
    in_slot = {function.address.slot: [each.address for each in host.slot_functions(function.address)]}
    return _best_of_slot(function.address, in_slot, host) == function.address


def _best_of_slot(
    primary: HostAddress, in_slot: Mapping[PciSlot, Iterable[PciAddress]], host: HostFacts
) -> HostAddress | None:
    """The best physical function of a primary's slot, in the order of C2.

    Bridges and the chipset's, which no guest gets, don't count. Without facts it is the lowest that is listed (C3). A
    VF, and what isn't a PCI function, is its own best. None if one that can't be read may be the best (T2), or if there
    is nothing but these.
    """
    if not isinstance(primary, PciAddress):
        return primary
    own = host.functions.get(primary)
    if own is not None and own.is_vf:
        return primary
    if any(address.slot == primary.slot for address in host.unknown):
        return None
    beside = in_slot.get(primary.slot, ())
    if own is None:
        return min((*beside, primary)) if not host.known else primary
    best: PciAddress | None = None
    lowest = 0
    for address in beside:  # in order
        function = host.functions.get(address)
        if function is not None:
            rank = primary_rank(function)
            if (best is None or rank < lowest) and can_be_sibling(function, host):
                best, lowest = address, rank
    return best


def _why_alone(candidate: PciAddress, best: HostAddress | None) -> str:
    """Why a function of the slot doesn't come with one that isn't the best (S1a)."""
    if best is None:
        return "not known to be its sibling: that has a bridge in its slot, or a function that can't be read"
    if candidate == best:
        return "the main function of its slot, and was not asked for"
    if card_of(candidate) != card_of(best):
        return f"of another card, and comes only with {best}, the main function of the slot that was asked for"
    return f"a sibling of {best}, and comes only with that"


def _asked(match: Match) -> str:
    if match.origin == "vmi":
        return f"requested as {match.section} {match.name!r}, answered by {match.variable}"
    if match.origin == "domain":
        return "it is in the domain"
    return f"every device of a variable is a request, answered by {match.variable}"


def _best_of_slot_first(
    matches: Sequence[Match],
    carried: Collection[HostAddress],
    best: Mapping[HostAddress, HostAddress | None],
    host: HostFacts,
) -> list[Match]:
    """The matches in the order in which they get their siblings.

    Primaries that bring none come last: each may be a sibling of an earlier one (C5, S1a). Otherwise slots are in the
    order of the requests, and the functions of a slot in that of their class and number.
    """
    if not carried and all(best[match.primary] == match.primary for match in matches):
        return list(matches)
    first: dict[PciSlot, int] = {}

    def rank_of(numbered: tuple[int, Match]) -> tuple[bool, bool, int, int, HostAddress]:
        position, match = numbered
        address = match.primary
        if not isinstance(address, PciAddress):
            return False, False, position, 0, address
        function = host.functions.get(address)
        rank = primary_rank(function) if function else 0
        brings_none = best[address] != address
        return address in carried, brings_none, first.setdefault(address.slot, position), rank, address

    return [match for _, match in sorted(enumerate(matches), key=rank_of)]


def _by_slot(
    primaries: Collection[HostAddress], listed: Iterable[HostAddress], host: HostFacts
) -> dict[PciSlot, list[PciAddress]]:
    """The functions in the primaries' slots, by slot and in order; other slots may be among them.

    If the host is unknown, these are the functions that are listed (C3).
    """
    addresses: Iterable[PciAddress]
    if not host.known:
        addresses = [address for address in listed if isinstance(address, PciAddress)]
    elif len(host.functions) <= 8 * len(primaries):
        addresses = host.functions
    else:  # a host may have thousands
        slots = [host.slot_functions(primary) for primary in primaries if isinstance(primary, PciAddress)]
        addresses = {function.address for slot in slots for function in slot}
    in_slot: dict[PciSlot, list[PciAddress]] = {}
    for address in sorted(addresses, key=tuple):  # plain tuples are quicker to compare
        in_slot.setdefault(address.slot, []).append(address)
    return in_slot


def _group_members(own: PciFunction, host: HostFacts) -> list[PciAddress]:
    """The members of a function's group, its own slot first, so that -fn1 is its own function 1, not another card's."""
    members = [] if own.iommu_group is None else host.groups.get(own.iommu_group, ())
    functions = [address for address in members if address in host.functions]
    return sorted(functions, key=lambda address: address.slot != own.address.slot)


def can_be_sibling(function: PciFunction, host: HostFacts) -> bool:
    """Whether a function can be a sibling at all: an endpoint that is neither a VF nor part of the chipset (S1)."""
    if function.physfn is not None or is_chipset(function):
        return False
    return not is_bridge(function, host.details.get(function.address))


def _has_model_of(own: PciFunction | None, candidate: PciAddress, host: HostFacts) -> bool:
    other = host.functions.get(candidate)
    return own is not None and other is not None and own.model == other.model


def _is_separate(
    candidate: PciAddress,
    match_of: Mapping[HostAddress, Match],
    in_slot: Mapping[PciSlot, list[PciAddress]],
    host: HostFacts,
) -> bool:
    """Whether a function is asked for by name, or is of the model of one in its slot that is."""
    asked = [each for each in in_slot.get(candidate.slot, ()) if each in match_of]
    return candidate in asked or any(_has_model_of(host.functions.get(each), candidate, host) for each in asked)


def sees_only_own_nodes(addresses: Iterable[HostAddress], host: HostFacts) -> bool:
    """Whether the visible VFIO nodes are exactly those that were given to this container (S2).

    That is so if ``/dev`` is a container's, and every node in ``/dev/vfio`` belongs to one of these cards. Privileged
    containers and hosts have the host's ``/dev``; a ``/dev/vfio`` that is mounted as a whole has nodes of others.

    Args:
        addresses: what was allocated, and what the document has; other functions of their slots count, too.
        host: facts about these.
    """
    if not host.container_dev or host.nodes is None:
        return False
    slots: set[PciSlot] = set()
    groups: set[int | None] = set()
    for address in addresses:
        if isinstance(address, PciAddress):
            slots.add(address.slot)
        else:
            groups.add(group_of(address, host))
    own = [address for address in host.functions if address.slot in slots]
    groups.update([host.functions[address].iommu_group for address in own])
    others = host.nodes.difference((CONTAINER_NODE, IOMMUFD_NODE), map(group_node, groups))
    return not others or others.issubset(node_set(own, host, iommufd=True).nodes)
