"""What is still free in the guest: buses behind root ports, or slots of bus 0 (P2)."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence

from launcherkit.model.address import GuestAddress, HostAddress, PciAddress
from launcherkit.model.domain import Affinity, Controller, DomainFacts, Unplaced
from launcherkit.model.plan import Attachment

# The buses that libvirt will make, and those that it will give to hostdevs without an address (P2).

HIGHEST_BUS = 255
_ROOT_PORT, _TO_PCI = "pcie-root-port", "pcie-to-pci-bridge"
_PORTS = (_ROOT_PORT, "pcie-switch-downstream-port")
_BRIDGES = (_TO_PCI, "pci-bridge")
_MAX = 32 * (HIGHEST_BUS + 1)
_FIRST_SLOT = 0x01


class Buses:
    """The buses that the guest would have without launcherkit's controllers, and the places of its hostdevs there.

    libvirt chooses both.

    Args:
        domain: of a PCIe machine.
        joining: indices of hostdevs that need no slot from libvirt.
    """

    def __init__(self, domain: DomainFacts, joining: Container[int] = ()) -> None:
        models = _declared_buses(domain)
        declared = len(models)
        used = {(address.bus, address.slot) for address in domain.guest_addresses if address.domain == 0}
        unplaced = [device for device in domain.unplaced if device.hostdev is None or device.hostdev not in joining]
        del unplaced[_MAX:]  # libvirt refuses such a domain
        _first_free(unplaced, models, used)
        made = [Controller(bus, models[bus], None) for bus in range(declared, len(models))]
        self.bridges = tuple([controller for controller in made if controller.model in _BRIDGES])
        """Controllers other than root ports that the document doesn't have."""
        behind_ports = [Unplaced("pcie") for bridge in self.bridges if bridge.model == _TO_PCI]
        places = _first_free([*behind_ports, *unplaced], models, used)[len(behind_ports) :]
        self.models = tuple(models)
        """The controller of each bus, by index; without the spare root port that libvirt adds if it makes all of them.
        """
        self.hostdevs = {
            device.hostdev: place for device, place in zip(unplaced, places, strict=True) if device.hostdev is not None
        }
        """The addresses that libvirt would give to the document's hostdevs, by index."""


def _declared_buses(domain: DomainFacts) -> list[str]:
    """The buses that the document names by a controller or an address; root ports for indices that it leaves out."""
    models = {controller.number: controller.model for controller in domain.controllers if controller.number is not None}
    for controller in domain.controllers:
        if controller.number is None:  # libvirt gives it the lowest index that is free
            models.setdefault(
                next((free for free in range(1, HIGHEST_BUS) if free not in models), HIGHEST_BUS), controller.model
            )
    buses = [address.bus for address in domain.guest_addresses if address.domain == 0]
    highest = min(max([0, *models, *buses]), HIGHEST_BUS)
    return ["pcie-root", *(models.get(bus, _ROOT_PORT) for bus in range(1, highest + 1))]


def _first_free(unplaced: list[Unplaced], models: list[str], used: Container[tuple[int, int]]) -> list[GuestAddress]:
    """The lowest free slot for each device; missing buses are added to ``models``."""
    for_bridges: set[int] = set()
    free = {"pcie": _free_ports(models, used, for_bridges), "pci": _free_bridge_slots(models, used, for_bridges)}
    return [next(free[device.needs]) for device in unplaced]


def _free_ports(models: list[str], used: Container[tuple[int, int]], for_bridges: set[int]) -> Iterator[GuestAddress]:
    bus = 0
    while True:
        if bus == len(models):
            models.append(_ROOT_PORT)
        if models[bus] in _PORTS and bus not in for_bridges and (bus, 0) not in used:
            yield GuestAddress(0, bus, 0, 0)
        bus += 1


def _free_bridge_slots(
    models: list[str], used: Container[tuple[int, int]], for_bridges: set[int]
) -> Iterator[GuestAddress]:
    bus = 0
    while True:
        if bus == len(models):
            if "dmi-to-pci-bridge" in models or any(bridge in models for bridge in _BRIDGES):
                models.append("pci-bridge")
            else:
                for_bridges.add(bus)
                models += _ROOT_PORT, _TO_PCI
        if models[bus] in _BRIDGES:
            for slot in range(_FIRST_SLOT, _LAST_SLOT + 1):
                if (bus, slot) not in used:
                    yield GuestAddress(0, bus, slot, 0)
        bus += 1


_LAST_SLOT = 0x1F
_ROOT_SLOTS = (*range(0x10, 0x1A), 0x1C, *range(0x0F, 0x00, -1))
"""Slots for root ports on the root bus, in the order in which they are taken.

Firmware numbers buses in the order of the ports. libvirt fills its slots from the bottom, so ours begin in the middle,
after them; 1a, 1b and 1d to 1f are left to libvirt for q35's chipset.
"""


class NoHierarchies(Exception):
    """There are too few slots on the root bus for the expanders and switches, or too few bus numbers."""


class Room:
    """The addresses in use in the guest, and the slots that are still free."""

    def __init__(
        self,
        domain: DomainFacts,
        buses: Buses,
        guests: Mapping[HostAddress, GuestAddress],
        affinities: Mapping[PciAddress, Affinity],
    ) -> None:
        """Add the expanders and switches for all affinities.

        Raises:
            NoHierarchies: they don't fit.
        """
        self.guests = {**guests}
        self.taken = set(domain.guest_addresses)
        self._domain = domain
        self._buses = buses
        self._root_bus = _RootBus(domain)
        self._ports = self._root_bus.ports()
        self._added: list[Controller] = []
        self._places: Mapping[PciAddress, GuestAddress] = {}
        self._top = min([HIGHEST_BUS + 1, *(each.bus_number for each in domain.controllers if each.bus_number)])
        self._placed = bool(affinities)
        if affinities:
            index, slots = len(buses.models), self._root_bus.whole_slots()
            from launcherkit.place.hierarchies import build_hierarchies  # few guests follow the host's tree

            hierarchies = build_hierarchies(affinities, index, self._top, slots, self._ports)
            if hierarchies is None:
                raise NoHierarchies
            added, self._places, self._top = hierarchies
            self._added += added

    def controllers(self) -> tuple[Controller, ...]:
        """The controllers that must be written for the slots that were taken."""
        return (*self._buses.bridges, *self._added) if self._placed else ()

    def slot_for(self, card: Sequence[Attachment]) -> GuestAddress | None:
        """A free slot for a card; None if there is no more room."""
        for attachment in card if self._places else ():
            if isinstance(attachment.source, PciAddress) and attachment.source in self._places:
                return self._places[attachment.source]
        if self._domain.pci_root != "pcie":
            return self._slot_of_bus_0()
        foreseen = self._buses.hostdevs
        slots = [foreseen[attachment.hostdev] for attachment in card if attachment.hostdev in foreseen]
        # A hostdev of the document stays where libvirt would put it, behind a port that libvirt makes.
        slot = slots[0] if slots else self._root_port()
        if slot is None or slot.bus > HIGHEST_BUS:
            return None
        self._placed = True
        return slot

    def _root_port(self) -> GuestAddress | None:
        """Slot 0 behind a new root port, above every bus that exists or that libvirt will make."""
        bus = len(self._buses.models) + len(self._added)
        place = next(self._ports, None)
        if bus >= self._top or place is None:
            return None
        self._added.append(Controller(bus, "pcie-root-port", place))
        return GuestAddress(0, bus, 0, 0)

    def _slot_of_bus_0(self) -> GuestAddress | None:
        """A free slot of bus 0, from the top: libvirt fills them from the bottom, where guests know its devices."""
        return next(self._root_bus.slots_from_the_top(), None)


class _RootBus:
    """The slots of the root bus."""

    def __init__(self, domain: DomainFacts) -> None:
        used = {address for address in domain.guest_addresses if address.domain == address.bus == 0}
        root_ports = [each.guest for each in domain.controllers if each.model == "pcie-root-port"]
        ports = {place for place in root_ports if place is not None and place.domain == place.bus == 0}
        self._used = used | ports
        self._slots = {address.slot for address in self._used}
        self._others = {address.slot for address in used - ports}

    def ports(self) -> Iterator[GuestAddress]:
        """Addresses for root ports: all functions of free slots, and free functions beside other ports."""
        for slot in _ROOT_SLOTS:
            for function in range(8):
                place = GuestAddress(0, 0, slot, function)
                if slot not in self._others and place not in self._used:
                    self._slots.add(slot)
                    yield place

    def whole_slots(self) -> Iterator[GuestAddress]:
        """Addresses for expanders: empty slots, from the top, so that ports stay together."""
        for slot in range(0x19, 0x01, -1):
            if slot not in self._slots:
                self._others.add(slot)
                yield GuestAddress(0, 0, slot, 0)

    def slots_from_the_top(self) -> Iterator[GuestAddress]:
        """Empty slots for devices, on machines without root ports."""
        for slot in range(_LAST_SLOT, 2, -1):
            if slot not in self._slots:
                self._slots.add(slot)
                yield GuestAddress(0, 0, slot, 0)
