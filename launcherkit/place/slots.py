"""One guest slot a physical device (P1-P3, P6)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from launcherkit.errors import Collector, NoRoom, SlotTaken
from launcherkit.model.address import GuestAddress, HostAddress, PciAddress, PciSlot
from launcherkit.model.domain import DomainFacts
from launcherkit.model.note import Note
from launcherkit.model.plan import Attachment, GuestPlace, Unit
from launcherkit.model.value import NamedTuple

_HIGHEST_BUS = 255
_FIRST_SLOT, _LAST_SLOT = 0x01, 0x1F


class Placement(NamedTuple):
    """Where each function goes that doesn't leave it to libvirt, and the root ports that this needs."""

    guests: dict[HostAddress, GuestPlace]
    root_ports: tuple[int, ...]


def place_units(units: Sequence[Unit], domain: DomainFacts, errors: Collector, notes: list[Note]) -> Placement:
    """Give the functions of each physical device one guest slot.

    Args:
        units: in order.
        domain: the machine's topology and what is in use.
        errors: takes `SlotTaken` where siblings can't join a function that has an address, `NoRoom` where nothing
            is free.
        notes: takes what is left to libvirt although it has several functions.
    """
    room = _Room(domain)
    guests: dict[HostAddress, GuestAddress] = {}
    for unit in units:
        for attachment in unit.attachments:
            if attachment.hostdev is not None and (guest := domain.hostdevs[attachment.hostdev].guest) is not None:
                guests[attachment.source] = guest
        if len(unit.attachments) > 1:
            for card in _by_host_slot(unit.attachments):
                _place_card(card, domain, room, guests, errors, notes)
    return Placement(_share_slots(guests), tuple(room.root_ports))


def _by_host_slot(attachments: Sequence[Attachment]) -> Iterable[list[Attachment]]:
    """The functions of one unit by physical card; with ``siblings: group`` there may be several."""
    cards: dict[PciSlot, list[Attachment]] = {}
    for attachment in attachments:
        if isinstance(attachment.source, PciAddress):
            cards.setdefault(attachment.source.slot, []).append(attachment)
    return cards.values()


def _place_card(
    card: list[Attachment],
    domain: DomainFacts,
    room: _Room,
    guests: dict[HostAddress, GuestAddress],
    errors: Collector,
    notes: list[Note],
) -> None:
    """Put all functions of a card that have no place yet into one slot, at their numbers (P1)."""
    fixed = [attachment for attachment in card if _fixed(attachment, domain)]
    if len(card) < 2 or len(fixed) == len(card):
        return
    elsewhere = next((attachment.source for attachment in fixed if attachment.source not in guests), None)
    if elsewhere is not None:
        notes.append(Note("not-placed", f"{elsewhere} has no PCI address in the guest, so its siblings can't join it"))
        return
    if domain.topology == "other":
        names = ", ".join(str(attachment.source) for attachment in card)
        notes.append(Note("not-placed", f"{domain.machine}: libvirt places {names}; one slot is not asked for there"))
        return
    base = guests[fixed[0].source] if fixed else room.free_slot()
    if base is None:
        errors.add(_no_room(card, domain))
        return
    domain_, bus, slot, _ = base
    functions = {
        guests[attachment.source].function for attachment in fixed if guests[attachment.source][:3] == base[:3]
    }
    for source, number in _guest_numbers(card):
        if source in guests:
            continue
        guest = GuestAddress(domain_, bus, slot, number)
        if number in functions or guest in room.taken:
            errors.add(_slot_taken(source, base, f"{guest} is in use"))
        functions.add(number)
        room.taken.add(guest)
        guests[source] = guest
    if 0 not in functions:
        errors.add(
            _slot_taken(card[0].source, base, "its function 0 would not be one of them, and guests look there first")
        )


def _fixed(attachment: Attachment, domain: DomainFacts) -> bool:
    """The document says where it is; at a PCI address, or at none, as ``unassigned`` does."""
    return attachment.hostdev is not None and domain.hostdevs[attachment.hostdev].placed


def _guest_numbers(card: Sequence[Attachment]) -> Iterable[tuple[HostAddress, int]]:
    """The host's function numbers if the lowest is 0, else counted from 0 (P1)."""
    sources = sorted(attachment.source for attachment in card if isinstance(attachment.source, PciAddress))
    if sources[0].function == 0:
        return [(source, source.function) for source in sources]
    return [(source, number) for number, source in enumerate(sources)]


def _share_slots(guests: dict[HostAddress, GuestAddress]) -> dict[HostAddress, GuestPlace]:
    """Say where multifunction stands: on guest function 0 of a slot that hostdevs share, and only there (P1)."""
    mates: dict[tuple[int, ...], int] = {}
    for guest in guests.values():
        slot = guest[:3]
        mates[slot] = mates.get(slot, 0) + 1
    return {
        source: GuestPlace(guest, guest.function == 0 if mates[guest[:3]] > 1 else None)
        for source, guest in guests.items()
    }


class _Room:
    """What is still free in the guest: bus numbers for root ports, or slots of bus 0 (P2)."""

    def __init__(self, domain: DomainFacts) -> None:
        self._domain = domain
        self.root_ports: list[int] = []
        self.taken = set(domain.guest_addresses)
        indices = [controller.number or 0 for controller in domain.controllers]
        buses = [address.bus for address in domain.guest_addresses]
        self._highest_bus = max([0, *indices, *buses])
        self._used = {address.slot for address in domain.guest_addresses if address.domain == 0 and address.bus == 0}
        self._places_for_ports = _places_for_ports(domain, self._used)

    def free_slot(self) -> GuestAddress | None:
        """An empty slot of its own for a device; None where there is no more room."""
        return self._root_port() if self._domain.topology == "pcie" else self._slot_of_bus_0()

    def _root_port(self) -> GuestAddress | None:
        """Slot 0 behind a new root port, whose index is above every index and bus in use."""
        if self._highest_bus >= _HIGHEST_BUS or len(self.root_ports) >= self._places_for_ports:
            return None
        self._highest_bus += 1
        self.root_ports.append(self._highest_bus)
        return GuestAddress(0, self._highest_bus, 0, 0)

    def _slot_of_bus_0(self) -> GuestAddress | None:
        """From the top, so that what libvirt places from the bottom stays where guests know it."""
        slot = next((slot for slot in range(_LAST_SLOT, 2, -1) if slot not in self._used), None)
        if slot is None:
            return None
        self._used.add(slot)
        return GuestAddress(0, 0, slot, 0)


def _places_for_ports(domain: DomainFacts, used: set[int]) -> int:
    """How many root ports libvirt can put on the root: eight in a free slot, or beside other ports."""
    ports: dict[int, int] = {}
    for controller in domain.controllers:
        if controller.model == "pcie-root-port" and controller.guest is not None and controller.guest.bus == 0:
            ports[controller.guest.slot] = ports.get(controller.guest.slot, 0) + 1
    free = sum(slot not in used for slot in range(_FIRST_SLOT, _LAST_SLOT))
    return free * 8 + sum(8 - count for count in ports.values())


def _slot_taken(source: HostAddress, base: GuestAddress, why: str) -> SlotTaken:
    slot = str(base).rpartition(".")[0]
    return SlotTaken(
        f"the guest slot {slot} can't take {source} with its siblings: {why}",
        "Move the device that is in the way to another guest slot, take the address out of the hostdev, or use "
        "siblings: none.",
    )


def _no_room(card: Sequence[Attachment], domain: DomainFacts) -> NoRoom:
    where = "no bus for another pcie-root-port" if domain.topology == "pcie" else "no free slot on PCI bus 0"
    return NoRoom(
        f"{domain.machine}: {where}, which {card[0].source} and its siblings need",
        "Take addresses or devices out of the domain; q35 has room for 255 buses where pc has 31 slots.",
    )
