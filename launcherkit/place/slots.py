"""One guest slot a physical device (P1-P3, P6)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from launcherkit.errors import LauncherkitError, NoRoom, SlotTaken
from launcherkit.model.address import GuestAddress, HostAddress, MdevAddress, PciAddress, PciSlot, card_of
from launcherkit.model.domain import Controller, DomainFacts
from launcherkit.model.note import Note
from launcherkit.model.plan import Attachment, GuestPlace, Unit
from launcherkit.model.value import NamedTuple
from launcherkit.place.buses import HIGHEST_BUS, Buses, foresee_buses

_LAST_SLOT = 0x1F


class Placement(NamedTuple):
    """Where each function goes that isn't left to libvirt, and the PCI controllers that this needs."""

    guests: dict[HostAddress, GuestPlace]
    controllers: tuple[Controller, ...]
    notes: tuple[Note, ...] = ()
    """What is left to libvirt although it has several functions."""
    errors: tuple[LauncherkitError, ...] = ()
    """`SlotTaken` where siblings can't join a function that has an address, `NoRoom` where nothing is free."""


def place_units(units: Sequence[Unit], domain: DomainFacts) -> Placement:
    """Give the functions of each physical device one guest slot.

    Args:
        units: in order.
        domain: the machine's topology and what is in use.
    """
    guests: dict[HostAddress, GuestAddress] = {}
    for unit in units:
        for attachment in unit.attachments:
            if attachment.hostdev is not None and (guest := domain.hostdevs[attachment.hostdev].guest) is not None:
                guests[attachment.source] = guest
    cards = [card for unit in units for card in _by_host_slot(unit.attachments) if _needs_a_place(card, domain)]
    if not cards:
        return Placement(_share_slots(guests), ())
    room = _Room(domain, foresee_buses(domain, _joining(cards, domain)), guests)
    found = [each for card in cards for each in _place_card(card, domain, room)]
    notes = tuple([each for each in found if isinstance(each, Note)])
    errors = tuple([each for each in found if isinstance(each, LauncherkitError)])
    return Placement(_share_slots(room.guests), room.controllers(), notes, errors)


def _by_host_slot(attachments: Sequence[Attachment]) -> Iterable[list[Attachment]]:
    """The functions of one unit by physical card; with ``siblings: group`` there may be several. An mdev is one too."""
    cards: dict[HostAddress | PciSlot, list[Attachment]] = {}
    for attachment in attachments:
        if isinstance(attachment.source, PciAddress | MdevAddress):
            cards.setdefault(card_of(attachment.source), []).append(attachment)
    return cards.values()


def _needs_a_place(card: Sequence[Attachment], domain: DomainFacts) -> bool:
    """Not left to libvirt: several functions (P1), and one that would move what libvirt places after it (P2, P3)."""
    if len(card) == 1:
        return card[0].hostdev is None and any(device.after_hostdevs for device in domain.unplaced)
    return not all(_fixed(attachment, domain) for attachment in card)


def _joining(cards: Iterable[Sequence[Attachment]], domain: DomainFacts) -> set[int]:
    """The document's hostdevs that will be in the slot of another, and leave free what libvirt would give them."""
    joining: set[int] = set()
    for card in cards:
        there = [attachment.hostdev for attachment in card if attachment.hostdev is not None]
        free = [hostdev for hostdev in sorted(there) if not domain.hostdevs[hostdev].placed]
        joining.update(free[1:] if len(free) == len(there) else free)
    return joining


def _place_card(card: Sequence[Attachment], domain: DomainFacts, room: _Room) -> Iterator[Note | SlotTaken | NoRoom]:
    """Put all functions of a card that have no place yet into one slot, at their numbers (P1); tell what keeps them."""
    guests = room.guests
    fixed = [attachment for attachment in card if _fixed(attachment, domain)]
    elsewhere = next((attachment.source for attachment in fixed if attachment.source not in guests), None)
    if elsewhere is not None:
        yield Note("not-placed", f"{elsewhere} has no PCI address in the guest, so its siblings can't join it")
        return
    if domain.topology == "other":
        names = ", ".join(str(attachment.source) for attachment in card)
        yield Note(
            "not-placed",
            f"{domain.machine}: libvirt assigns the addresses of {names}; a common slot can't be requested there",
        )
        return
    base = guests[fixed[0].source] if fixed else room.slot_for(card)
    if base is None:
        if len(card) > 1:  # of a function alone libvirt says what it lacks
            yield _no_room(card, domain)
        return
    domain_, bus, slot, _ = base
    there = [guests[attachment.source] for attachment in fixed]
    functions = {guest.function for guest in there if guest.function_0 == base.function_0}
    for source, number in _guest_numbers(card):
        if source in guests:
            continue
        guest = GuestAddress(domain_, bus, slot, number)
        if number in functions or guest in room.taken:
            yield _slot_taken(source, base, f"{guest} is in use")
        functions.add(number)
        room.taken.add(guest)
        guests[source] = guest
    if 0 not in functions:
        yield _slot_taken(card[0].source, base, "its function 0 would not be one of them, and guests look there first")


def _fixed(attachment: Attachment, domain: DomainFacts) -> bool:
    """The document says where it is; at a PCI address, or at none, as ``unassigned`` does."""
    return attachment.hostdev is not None and domain.hostdevs[attachment.hostdev].placed


def _guest_numbers(card: Sequence[Attachment]) -> Iterable[tuple[HostAddress, int]]:
    """The host's function numbers if the lowest is 0, else counted from 0 (P1)."""
    sources = sorted(attachment.source for attachment in card if isinstance(attachment.source, PciAddress))
    if sources and sources[0].function == 0:
        return [(source, source.function) for source in sources]
    return [(source, number) for number, source in enumerate(sources or [card[0].source])]


def _share_slots(guests: dict[HostAddress, GuestAddress]) -> dict[HostAddress, GuestPlace]:
    """Say where multifunction stands: on guest function 0 of a slot that hostdevs share, and only there (P1)."""
    mates: dict[GuestAddress, int] = {}
    for guest in guests.values():
        first = guest.function_0
        mates[first] = mates.get(first, 0) + 1
    return {
        source: GuestPlace(guest, guest.function == 0 if mates[guest.function_0] > 1 else None)
        for source, guest in guests.items()
    }


class _Room:
    """What has its place in the guest, and what is still free: buses behind root ports, or slots of bus 0 (P2)."""

    def __init__(self, domain: DomainFacts, buses: Buses, guests: Mapping[HostAddress, GuestAddress]) -> None:
        self.guests = {**guests}
        self._domain = domain
        self._buses = buses
        self._root_ports: list[Controller] = []
        self._places_for_ports = _places_for_ports(domain)
        self._placed = False
        self.taken = set(domain.guest_addresses)
        self._used = {address.slot for address in domain.guest_addresses if address.domain == 0 and address.bus == 0}

    def controllers(self) -> tuple[Controller, ...]:
        """What must be written down for the slots that were given away."""
        return (*self._buses.bridges, *self._root_ports) if self._placed else ()

    def slot_for(self, card: Sequence[Attachment]) -> GuestAddress | None:
        """A slot of its own for a device; None where there is no more room."""
        if self._domain.topology != "pcie":
            return self._slot_of_bus_0()
        foreseen = self._buses.hostdevs
        there = next((each.hostdev for each in card if each.hostdev in foreseen), None)
        # What the document has stays where libvirt would put it, behind a port that libvirt makes.
        slot = self._root_port() if there is None else foreseen[there]
        if slot is None or slot.bus > HIGHEST_BUS:
            return None
        self._placed = True
        return slot

    def _root_port(self) -> GuestAddress | None:
        """Slot 0 behind a new root port, above every bus that is there or that libvirt will make."""
        bus = len(self._buses.models) + len(self._root_ports)
        place = next(self._places_for_ports, None)
        if bus > HIGHEST_BUS or place is None:
            return None
        self._root_ports.append(Controller(bus, "pcie-root-port", place))
        return GuestAddress(0, bus, 0, 0)

    def _slot_of_bus_0(self) -> GuestAddress | None:
        """From the top, so that what libvirt places from the bottom stays where guests know it."""
        slot = next((slot for slot in range(_LAST_SLOT, 2, -1) if slot not in self._used), None)
        if slot is None:
            return None
        self._used.add(slot)
        return GuestAddress(0, 0, slot, 0)


def _places_for_ports(domain: DomainFacts) -> Iterator[GuestAddress]:
    """Where root ports can be on the root bus: eight in a free slot, or beside other ports.

    Firmware numbers buses in the order of the ports. libvirt puts its own from the bottom, so ours begin in the middle,
    behind them; what is above 19 libvirt keeps for devices of q35's chipset.
    """
    used = {address for address in domain.guest_addresses if address.domain == address.bus == 0}
    ports = {controller.guest for controller in domain.controllers if controller.model == "pcie-root-port"}
    others = {address.slot for address in used - ports}
    for slot in (*range(0x10, 0x1A), 0x1C, *range(0x0F, 0x00, -1)):
        if slot not in others:
            places = [GuestAddress(0, 0, slot, function) for function in range(8)]
            yield from (place for place in places if place not in used and place not in ports)


def _slot_taken(source: HostAddress, base: GuestAddress, why: str) -> SlotTaken:
    slot = str(base).rpartition(".")[0]
    return SlotTaken(
        f"the guest slot {slot} can't take {source} with its siblings: {why}",
        "Move the device that is in the way to another guest slot, take the address out of the hostdev, or use "
        "siblings: none.",
        device=str(source),
    )


def _no_room(card: Sequence[Attachment], domain: DomainFacts) -> NoRoom:
    where = "no bus for another pcie-root-port" if domain.topology == "pcie" else "no free slot on PCI bus 0"
    return NoRoom(
        f"{domain.machine}: {where}, which {card[0].source} and its siblings need",
        "Take addresses or devices out of the domain; q35 has room for 255 buses where pc has 31 slots.",
        device=str(card[0].source),
    )
