"""Places the functions of each physical device in one guest slot (P1-P3, P6)."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from launcherkit.errors import NO_ROOM, SLOT_TAKEN, LauncherkitError, NoPlace
from launcherkit.model.address import GuestAddress, HostAddress, MdevAddress, PciAddress, card_of
from launcherkit.model.domain import Affinity, Controller, DomainFacts
from launcherkit.model.host import NO_FACTS, HostFacts
from launcherkit.model.plan import Attachment, GuestDevice, GuestPlace, Note, guest_functions
from launcherkit.model.policy import Topology
from launcherkit.place.room import Buses, NoHierarchies, Room


class Placement(NamedTuple):
    """The places of all functions that aren't left to libvirt, and the PCI controllers that these need."""

    guests: dict[HostAddress, GuestPlace]
    controllers: tuple[Controller, ...]
    notes: tuple[Note, ...] = ()
    """On devices that are left to libvirt although they have several functions."""
    errors: tuple[LauncherkitError, ...] = ()
    """`SLOT_TAKEN` if siblings can't join a function that has an address, `NO_ROOM` if no slot is free."""
    nodesets: Mapping[PciAddress, frozenset[int]] = {}
    """The cells of each function that is a generic initiator (P7)."""
    cells: tuple[int, ...] = ()
    """Empty cells to add to the guest."""


def topology_for(domain: DomainFacts, topology: Topology) -> Topology:
    """The policy for this guest: ``flat`` if it has nothing that its tree could follow (P4)."""
    if topology == "auto":
        return topology if domain.has_several_cells and domain.is_bound else "flat"
    return topology if topology == "switches" or domain.cells else "flat"


def place_devices(
    devices: Sequence[GuestDevice],
    domain: DomainFacts,
    host: HostFacts = NO_FACTS,
    topology: Topology = "flat",
    *,
    generic_initiators: bool = False,
) -> Placement:
    """Give the functions of each physical device one guest slot.

    Args:
        devices: in the order of the plan.
        domain: the machine's topology, and the addresses in use.
        host: NUMA nodes and paths of the functions; not used if the topology is flat.
        topology: from `topology_for`.
        generic_initiators: whether GPUs whose memory the CPUs share get cells for it (P7).
    """
    guests, errors = _declared_places(devices, domain)
    if errors:
        return Placement(_share_slots(guests), (), errors=tuple(errors))
    domain = domain._replace(guest_addresses=domain.guest_addresses.union(guests.values()))
    if topology == "flat" and not generic_initiators:
        return _place(devices, domain, guests, {})

    return _place_as_on_host(devices, domain, guests, host, topology, generic_initiators=generic_initiators)


def _place_as_on_host(
    devices: Sequence[GuestDevice],
    domain: DomainFacts,
    guests: Mapping[HostAddress, GuestAddress],
    host: HostFacts,
    topology: Topology,
    *,
    generic_initiators: bool,
) -> Placement:
    """Place cards by root complex as on the host (P4), and GPUs whose memory the CPUs share by themselves (P7)."""
    # few guests have several NUMA cells
    from launcherkit.place.align import Alignment, Card, align, without_room
    from launcherkit.place.initiators import coherent_gpus, with_initiators

    cards = [
        Card(functions, *_declared_place(card, domain, guests))
        for device in devices
        for card in _by_host_slot(() if device.kept else device.attachments)
        if (functions := tuple(sorted(each.source for each in card if isinstance(each.source, PciAddress))))
    ]
    gpus = coherent_gpus(cards, host) if generic_initiators else []
    alignment = Alignment({})
    if topology != "flat":
        own = {gpu.card.first for gpu in gpus}
        alignment = align([card for card in cards if card.first not in own], domain, host, topology)
    if gpus:
        alignment = with_initiators(alignment, gpus, domain, host)
    try:
        placed = _place(devices, domain, guests, alignment.affinities)
    except NoHierarchies:
        alignment = without_room(alignment, topology)
        placed = _place(devices, domain, guests, alignment.affinities)
    return placed._replace(
        notes=(*alignment.notes, *placed.notes),
        errors=(*alignment.errors, *placed.errors),
        nodesets=alignment.nodesets,
        cells=alignment.cells,
    )


def _declared_places(
    devices: Sequence[GuestDevice], domain: DomainFacts
) -> tuple[dict[HostAddress, GuestAddress], list[NoPlace]]:
    """The addresses that hostdevs have in the document or interfaces ask for; and an error for each that is in use."""
    guests: dict[HostAddress, GuestAddress] = {}
    errors: list[NoPlace] = []
    asked: set[GuestAddress] = set()
    for attachment in [attachment for device in devices for attachment in device.attachments]:
        if attachment.hostdev is not None and (guest := domain.hostdevs[attachment.hostdev].guest) is not None:
            guests[attachment.source] = guest
        elif (guest := _asked_place(attachment, domain)) is not None:
            if guest in domain.guest_addresses or guest in asked:
                errors.append(_asked_place_taken(attachment, guest))
            guests[attachment.source] = guest
            asked.add(guest)
    return guests, errors


def _declared_place(
    card: Sequence[Attachment], domain: DomainFacts, guests: Mapping[HostAddress, GuestAddress]
) -> tuple[bool, GuestAddress | None]:
    """Whether the document gives a card's place, and the place if it is a PCI address."""
    fixed = _fixed(card, domain)
    return bool(fixed), next((guests[source] for source in fixed if source in guests), None)


def _place(
    devices: Sequence[GuestDevice],
    domain: DomainFacts,
    guests: Mapping[HostAddress, GuestAddress],
    affinities: Mapping[PciAddress, Affinity],
) -> Placement:
    """Place everything that isn't left to libvirt.

    Raises:
        NoHierarchies: there is no room for the affinities.
    """
    cards = [
        card
        for device in devices
        for card in _by_host_slot(device.attachments)
        if _needs_a_place(card, domain) or (affinities and _has_affinity(card, affinities))
    ]
    if not cards:
        return Placement(_share_slots(guests), ())
    room = Room(domain, Buses(domain, _joining(cards, domain, affinities)), guests, affinities)
    outcomes = [each for card in cards for each in _place_card(card, domain, room)]
    notes = tuple([each for each in outcomes if isinstance(each, Note)])
    errors = tuple([each for each in outcomes if isinstance(each, LauncherkitError)])
    return Placement(_share_slots(room.guests), room.controllers(), notes, errors)


def _has_affinity(card: Sequence[Attachment], affinities: Mapping[PciAddress, Affinity]) -> bool:
    return any(isinstance(each.source, PciAddress) and each.source in affinities for each in card)


def _by_host_slot(attachments: Sequence[Attachment]) -> Iterable[list[Attachment]]:
    """The functions of a device by physical card, several with ``siblings: group``. An mdev counts as a card."""
    cards: dict[tuple[object, ...], list[Attachment]] = {}
    for attachment in attachments:
        source = attachment.source
        if isinstance(source, (PciAddress, MdevAddress)) and attachment.role != "reserved":
            cards.setdefault(card_of(source), []).append(attachment)
    return cards.values()


def _needs_a_place(card: Sequence[Attachment], domain: DomainFacts) -> bool:
    """Whether it isn't left to libvirt: several functions (P1), or one that would move later devices (P2, P3)."""
    if len(card) == 1:
        left = card[0].hostdev is None and not _fixed(card, domain)
        return left and any(device.after_hostdevs for device in domain.unplaced)
    return len(_fixed(card, domain)) < len(card)


def _joining(
    cards: Iterable[Sequence[Attachment]], domain: DomainFacts, affinities: Mapping[PciAddress, Affinity]
) -> set[int]:
    """The document's hostdevs that don't need the slot that libvirt would give them, because they go elsewhere."""
    joining: set[int] = set()
    for card in cards if domain.hostdevs else ():
        existing = [attachment.hostdev for attachment in card if attachment.hostdev is not None]
        free = [hostdev for hostdev in sorted(existing) if not domain.hostdevs[hostdev].placed]
        stays = len(free) == len(existing) and not (affinities and _has_affinity(card, affinities))
        joining.update(free[1:] if stays else free)
    return joining


def _place_card(card: Sequence[Attachment], domain: DomainFacts, room: Room) -> Iterator[Note | NoPlace]:
    """Put all functions of a card without a place into one slot, at their numbers (P1); yields what prevents it."""
    guests = room.guests
    fixed = _fixed(card, domain)
    for source in fixed:
        if source not in guests:
            yield Note("not-placed", f"{source} has no PCI address in the guest, so its siblings can't join it")
            return
    if domain.pci_root == "other":
        names = ", ".join(str(attachment.source) for attachment in card)
        yield Note(
            "not-placed",
            f"{domain.machine}: libvirt assigns the addresses of {names}; a common slot can't be requested there",
        )
        return
    base = guests[fixed[0]] if fixed else room.slot_for(card)
    if base is None:
        if len(card) > 1:  # for a single function libvirt reports what is missing
            yield _no_room(card, domain)
        return
    domain_, bus, slot, _ = base
    functions = {guests[source].function for source in fixed if guests[source].function_0 == base.function_0}
    for number, source in guest_functions(card):
        if source in guests:
            continue
        guest = GuestAddress(domain_, bus, slot, number) if number != base.function else base
        if number in functions or guest in room.taken:
            yield _slot_taken(source, base, f"{guest} is in use")
        functions.add(number)
        room.taken.add(guest)
        guests[source] = guest
    if 0 not in functions:
        yield _slot_taken(card[0].source, base, "its function 0 would not be one of them, and guests look there first")


def _fixed(card: Sequence[Attachment], domain: DomainFacts) -> list[HostAddress]:
    """The functions whose place the document gives, a PCI address, or none as ``unassigned`` does; or the request."""
    return [
        attachment.source
        for attachment in card
        if (attachment.hostdev is not None and domain.hostdevs[attachment.hostdev].placed)
        or _asked_place(attachment, domain) is not None
    ]


def _asked_place(attachment: Attachment, domain: DomainFacts) -> GuestAddress | None:
    """The ``pciAddress`` of an SR-IOV interface (Q5), unless its hostdev has a place already."""
    match = attachment.match
    if match is None or match.sriov is None or match.origin == "domain":
        return None
    placed = attachment.hostdev is not None and domain.hostdevs[attachment.hostdev].placed
    return None if placed else match.sriov.guest


def _asked_place_taken(attachment: Attachment, guest: GuestAddress) -> NoPlace:
    name = attachment.match.name if attachment.match else ""
    return SLOT_TAKEN(
        f"interfaces {name!r}: its pciAddress {guest} is in use in the guest",
        "Give the interface another pciAddress, or leave it out; or move the device that is there.",
        device=str(attachment.source),
    )


def _share_slots(guests: Mapping[HostAddress, GuestAddress]) -> dict[HostAddress, GuestPlace]:
    """Set multifunction, on guest function 0 of each slot that hostdevs share, and only there (P1)."""
    sharing = Counter([guest.function_0 for guest in guests.values()])
    return {
        source: GuestPlace(guest, guest.function == 0 if sharing[guest.function_0] > 1 else None)
        for source, guest in guests.items()
    }


def _slot_taken(source: HostAddress, base: GuestAddress, reason: str) -> NoPlace:
    slot = str(base).rpartition(".")[0]
    return SLOT_TAKEN(
        f"the guest slot {slot} can't take {source} with its siblings: {reason}",
        "Move the device that is in the way to another guest slot, take the address out of the hostdev, or use "
        "siblings: none.",
        device=str(source),
    )


def _no_room(card: Sequence[Attachment], domain: DomainFacts) -> NoPlace:
    where = "no bus for another pcie-root-port" if domain.pci_root == "pcie" else "no free slot on PCI bus 0"
    return NO_ROOM(
        f"{domain.machine}: {where}, which {card[0].source} and its siblings need",
        "Take addresses or devices out of the domain; q35 has room for 255 buses where pc has 31 slots.",
        device=str(card[0].source),
    )
