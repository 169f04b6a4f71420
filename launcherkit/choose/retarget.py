"""Hostdevs of the document that get another source, because their request was allocated another device here (X2)."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from launcherkit.choose.aliases import sibling_stem
from launcherkit.errors import STALE_HOSTDEV, Conflict
from launcherkit.model.address import CardAddress, GuestAddress, HostAddress, PciAddress, PciSlot, UsbModel, card_of
from launcherkit.model.domain import DomainFacts, ExistingHostdev
from launcherkit.model.plan import Attachment, GuestDevice, Match, Note, guest_functions
from launcherkit.model.request import Kind, Request, kind_of


class Retargeted(NamedTuple):
    """The document's hostdevs with the sources that they will have."""

    domain: DomainFacts
    """With new sources, and without the former siblings of hostdevs that get one."""
    was: DomainFacts
    """As the document has them."""
    primaries: Mapping[int, Match] = {}
    """The request of each hostdev that gets another source, by index."""
    siblings: Mapping[int, tuple[int, ...]] = {}
    """The former siblings of each of these, by index."""
    errors: tuple[Conflict, ...] = ()

    @property
    def removed(self) -> tuple[tuple[int, HostAddress], ...]:
        """Index and source of the former siblings."""
        indices = [index for siblings in self.siblings.values() for index in siblings]
        return tuple([(index, source) for index in indices if (source := self.was.hostdevs[index].source)])


def retarget(matches: Sequence[Match], named: Mapping[HostAddress, str], domain: DomainFacts, name: str) -> Retargeted:
    """Give each hostdev under the alias of a request the device that was allocated for it.

    Args:
        matches: the answered requests; none if nothing was allocated here.
        named: their aliases, from `launcherkit.choose.aliases.name_matches`.
        domain: the document's hostdevs.
        name: what messages call the document.
    """
    match_of = {named[match.primary]: match for match in matches}
    asked = {
        index: match_of[hostdev.alias]
        for index, hostdev in enumerate(domain.hostdevs)
        if hostdev.source and hostdev.alias in match_of
    }
    stale = {index: match for index, match in asked.items() if _is_another(domain.hostdevs[index].source, match)}
    if not stale:
        return Retargeted(domain, domain)
    siblings = {index: _siblings_of(index, domain, asked) for index in stale}
    former = {index for indices in siblings.values() for index in indices}
    errors = tuple(_refusals(stale, former, domain, name))
    return Retargeted(_with_sources(domain, stale, former), domain, stale, siblings, errors)


def _with_sources(domain: DomainFacts, stale: Mapping[int, Match], former: Collection[int]) -> DomainFacts:
    """The domain whose stale hostdevs have the sources that were allocated, and whose former siblings are gone."""
    hostdevs = list(domain.hostdevs)
    for index, match in stale.items():
        hostdevs[index] = hostdevs[index]._replace(source=match.primary)
    for index in former:
        hostdevs[index] = _gone(hostdevs[index].kind)
    freed = {domain.hostdevs[index].guest for index in former}
    return domain._replace(hostdevs=tuple(hostdevs), guest_addresses=domain.guest_addresses - freed)


def _is_another(source: HostAddress | None, match: Match) -> bool:
    # A USB device by vendor and product may well be the one that was allocated; it stays as it is.
    return source != match.primary and not isinstance(source, UsbModel)


def _siblings_of(primary: int, domain: DomainFacts, asked: Mapping[int, Match]) -> tuple[int, ...]:
    """The hostdevs that an earlier run attached as siblings of one, by their aliases (X1).

    One of the document's own is one of them if it is of the same card, and in the same slot of the guest.
    """
    first = domain.hostdevs[primary]
    stem, slots = sibling_stem(first.alias or ""), _slots_of(first)
    others = [(index, hostdev) for index, hostdev in enumerate(domain.hostdevs) if index not in asked]
    return tuple(
        [
            index
            for index, hostdev in others
            if hostdev.source
            and ((hostdev.alias or "").rpartition("-fn")[0] == stem or (slots and slots == _slots_of(hostdev)))
        ]
    )


def _slots_of(hostdev: ExistingHostdev) -> tuple[PciSlot, GuestAddress] | None:
    """The slots of a hostdev on the host and in the guest; None if it hasn't both."""
    source, guest = hostdev.source, hostdev.guest
    return (source.slot, guest.function_0) if isinstance(source, PciAddress) and guest is not None else None


def _gone(kind: Kind) -> ExistingHostdev:
    return ExistingHostdev(kind, None, None, None, placed=False, managed=None, display=None, ramfb=None)


def _refusals(
    stale: Mapping[int, Match], former: Collection[int], domain: DomainFacts, name: str
) -> Iterator[Conflict]:
    """The errors for hostdevs that can't get the source that was allocated."""
    kept = {
        hostdev.source: index for index, hostdev in enumerate(domain.hostdevs) if hostdev.source and index not in stale
    }
    for index, match in stale.items():
        other = kept.get(match.primary)
        if other is not None and other not in former:
            reason = f"which hostdev {other + 1} has already"
            remedy = f"Take hostdev {index + 1} and its siblings out of the domain, or hostdev {other + 1}."
        elif kind_of(match.primary) != domain.hostdevs[index].kind:
            reason = "another kind of device"
            remedy = f"Take hostdev {index + 1} out of the domain: the request adds one of its own."
        else:
            kept[match.primary] = index  # another one under the same alias can't have it too
            continue
        problem = f"{match.section} {match.name!r} was allocated {match.primary} here, {reason}"
        yield _stale(index, problem, remedy, domain, name)


def unanswered(alias: str, request: Request, domain: DomainFacts, name: str) -> Conflict | None:
    """The error for a hostdev under the alias of a request that was allocated nothing, where variables are set."""
    for index, hostdev in enumerate(domain.hostdevs):
        if hostdev.alias == alias and hostdev.source is not None:
            problem = f"{request.section} {request.name!r}, whose alias it has, was allocated nothing here"
            remedy = "Let the pod's limits ask for the device, or take the hostdev and its siblings out of the domain."
            return _stale(index, problem, remedy, domain, name)
    return None


def _stale(index: int, problem: str, remedy: str, domain: DomainFacts, name: str) -> Conflict:
    hostdev, key = domain.hostdevs[index], f"hostdev {index + 1}"
    message = f"{name}, {key} ({hostdev.alias}): it has {hostdev.source}, and {problem}"
    return STALE_HOSTDEV(message, remedy, file=name, key=key, device=str(hostdev.source))


def reuse(moved: Retargeted, devices: Sequence[GuestDevice]) -> tuple[Retargeted, tuple[GuestDevice, ...]]:
    """Put new siblings into the hostdevs of former ones of the same function number, which keep all else of theirs.

    Returns:
        What is left of the former siblings, with facts that have the reused hostdevs; and the devices with these.
    """
    if not moved.primaries:
        return moved, tuple(devices)
    was, hostdevs = moved.was.hostdevs, list(moved.domain.hostdevs)
    siblings = {first: list(indices) for first, indices in moved.siblings.items()}
    changed: list[GuestDevice] = []
    for device in devices:
        former = [siblings[each.hostdev] for each in device.attachments if each.hostdev in siblings]
        cards = _former_cards(device, siblings, was)
        number_of = _numbers(device)
        attachments: list[Attachment] = []
        for attachment in device.attachments:
            index = attachment.hostdev
            if index is None:
                index = _remove_same_number(attachment.source, cards, number_of, former, was)
            replaces = None if index is None or was[index].source == attachment.source else was[index].source
            if index is not None and replaces is not None:
                hostdevs[index] = was[index]._replace(source=attachment.source)
            attachments.append(attachment._replace(hostdev=index, replaces=replaces))
        changed.append(device._replace(attachments=tuple(attachments)))
    guests = moved.domain.guest_addresses.union([each.guest for each in hostdevs if each.guest is not None])
    domain = moved.domain._replace(hostdevs=tuple(hostdevs), guest_addresses=guests)
    left = {first: tuple(indices) for first, indices in siblings.items()}
    return moved._replace(domain=domain, siblings=left), tuple(changed)


def _numbers(device: GuestDevice) -> dict[HostAddress, int]:
    """The function number in the guest of each function of a device."""
    cards: dict[HostAddress | PciSlot, list[Attachment]] = {}
    for attachment in device.attachments:
        cards.setdefault(card_of(attachment.source), []).append(attachment)
    return {source: number for card in cards.values() for number, source in guest_functions(card)}


def _former_cards(
    device: GuestDevice, siblings: Mapping[int, Sequence[int]], was: Sequence[ExistingHostdev]
) -> dict[CardAddress, CardAddress]:
    """The former card of each card of a device: that of the hostdev that gets another source, and with ``siblings:
    group`` for each further card, in order, the first that had functions of the same numbers."""
    replaced = [each for each in device.attachments if each.hostdev in siblings]
    cards = {card_of(each.source): card_of(source) for each in replaced if (source := was[each.hostdev or 0].source)}
    before = _numbers_of([was[index].source for each in replaced for index in siblings[each.hostdev or 0]])
    for card, numbers in _numbers_of([each.source for each in device.attachments]).items():
        free = [other for other in before if other not in cards.values() and before[other] == numbers]
        if card not in cards and free:
            cards[card] = free[0]
    return cards


def _numbers_of(sources: Iterable[HostAddress | None]) -> dict[CardAddress, set[int | None]]:
    """The function numbers by card."""
    numbers = dict[CardAddress, set[int | None]]()
    for source in [source for source in sources if source is not None]:
        numbers.setdefault(card_of(source), set()).add(_number(source))
    return numbers


def _remove_same_number(
    source: HostAddress,
    cards: Mapping[CardAddress, CardAddress],
    number_of: Mapping[HostAddress, int],
    former: Sequence[list[int]],
    was: Sequence[ExistingHostdev],
) -> int | None:
    """Remove the hostdev of a former sibling with a new one's function number from ``former``; None if there is none.

    It must be of the former card of the new one's, by ``cards``. One that is where another function of the card will be
    in the guest is left alone.
    """
    card = card_of(source)
    others = {number for other, number in number_of.items() if other != source and card_of(other) == card}
    for indices in former:
        for index in indices:
            guest, before = was[index].guest, was[index].source
            same = before is not None and card_of(before) == cards.get(card)
            if same and _number(before) == _number(source) and (guest is None or guest.function not in others):
                indices.remove(index)
                return index
    return None


def _number(source: HostAddress | None) -> int | None:
    return source.function if isinstance(source, PciAddress) else None


def notes_on(moved: Retargeted, devices: Sequence[GuestDevice]) -> list[Note]:
    """Notes that name both devices."""
    was = moved.was.hostdevs
    notes = [
        Note(
            "replaced",
            f"hostdev {attachment.hostdev + 1} of the domain ({was[attachment.hostdev].alias}) had "
            f"{attachment.replaces} and gets {attachment.source}, which was allocated here",
        )
        for device in devices
        for attachment in device.attachments
        if attachment.hostdev is not None and attachment.replaces is not None
    ]
    return notes + [
        Note(
            "replaced",
            f"hostdev {index + 1} of the domain ({was[index].alias or 'without an alias'}) had {was[index].source} "
            f"and is removed: it was a sibling of {was[first].source}, which {moved.primaries[first].primary} "
            "replaces",
        )
        for first, indices in moved.siblings.items()
        for index in indices
    ]
