"""Builds the root complexes and switches that are added to the guest, with the ports below them (P4)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from launcherkit.model.address import GuestAddress, PciAddress
from launcherkit.model.domain import PCIE_EXPANDER, ROOT_BUS, Affinity, Controller

_SLOTS = 32
_ROOT_PORT = "pcie-root-port"
_UPSTREAM, _DOWNSTREAM = "pcie-switch-upstream-port", "pcie-switch-downstream-port"


def build_hierarchies(
    affinities: Mapping[PciAddress, Affinity],
    first: int,
    top: int,
    expander_slots: Iterator[GuestAddress],
    port_slots: Iterator[GuestAddress],
) -> tuple[tuple[Controller, ...], Mapping[PciAddress, GuestAddress], int] | None:
    """Build an expander for each cell and root complex, and ports below it in the order of the host's slots.

    Args:
        affinities: by the first function of each card.
        first: the lowest free controller index.
        top: the lowest bus number of the expanders, which are numbered from the top; 256 if there are none.
        expander_slots: whole slots of the root bus.
        port_slots: addresses for root ports on the root bus.

    Returns:
        The controllers to add; function 0 of each card's guest slot, by the card's first function; and the lowest
        number of an expander's bus, below which all other buses are. None if they don't fit: there are too few slots on
        the root bus, or too few bus numbers.
    """
    builder = _Builder(first)
    by_complex: dict[tuple[int, str, str], list[PciAddress]] = {}
    for card in sorted(affinities):
        cell, root_complex, _, alone = affinities[card]
        by_complex.setdefault((cell, root_complex, str(card) if alone else ""), []).append(card)
    try:
        for (cell, _, _), cards in sorted(by_complex.items()):
            if cell == ROOT_BUS:
                builder.add_ports(cards, affinities, port_slots)
                continue
            place = next(expander_slots)
            expander = builder.add(PCIE_EXPANDER, place)
            builder.add_ports(cards, affinities, _addresses(expander))
            top -= builder.index - expander  # a number for its own bus, and for each below it
            at = expander - first
            builder.controllers[at] = Controller(expander, PCIE_EXPANDER, place, top, cell)
    except StopIteration:
        return None
    return None if builder.index > top else (tuple(builder.controllers), builder.places, top)


class _Builder:
    """Adds controllers with consecutive indices."""

    def __init__(self, first: int) -> None:
        self._first = first
        self.controllers: list[Controller] = []
        self.places: dict[PciAddress, GuestAddress] = {}

    @property
    def index(self) -> int:
        """The next controller's."""
        return self._first + len(self.controllers)

    def add(self, model: str, place: GuestAddress) -> int:
        """Add a controller; returns its index, which is the number of the bus behind it."""
        index = self.index
        self.controllers.append(Controller(index, model, place))
        return index

    def add_ports(
        self, cards: Iterable[PciAddress], affinities: Mapping[PciAddress, Affinity], ports: Iterator[GuestAddress]
    ) -> None:
        """Add a root port for each card; cards of one host switch share one, with a switch behind it."""
        switches: dict[str | PciAddress, list[PciAddress]] = {}
        for card in cards:
            switches.setdefault(affinities[card].switch or card, []).append(card)
        for switch, below in switches.items():
            port = self.add(_ROOT_PORT, next(ports))
            if isinstance(switch, PciAddress):
                self.places[switch] = GuestAddress(0, port, 0, 0)
                continue
            upstream = self.add(_UPSTREAM, GuestAddress(0, port, 0, 0))
            for card, place in zip(below, _addresses(upstream), strict=False):
                self.places[card] = GuestAddress(0, self.add(_DOWNSTREAM, place), 0, 0)


def _addresses(bus: int) -> Iterator[GuestAddress]:
    """Addresses for ports on a bus: function 0 of every slot, then function 1, and so on."""
    return (GuestAddress(0, bus, slot, function) for function in range(8) for slot in range(_SLOTS))
