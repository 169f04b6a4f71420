"""Partitions of an NVSwitch board as values: which cards they have, and which overlap."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from launcherkit.model.address import PciAddress


class BoardCard(NamedTuple):
    """A card of a partition, as Fabric Manager describes it."""

    module: int
    """NVIDIA's module ID, from 1; the modules are not in the order of PCI addresses."""
    uuid: str = ""
    address: PciAddress | None = None
    """None if Fabric Manager doesn't know it: on H100 boards and later ones it reports only the module."""


class Partition(NamedTuple):
    """A partition that the board supports. Its cards reach each other by NVLink, and no others, while it is active."""

    number: int
    """Its ID, which the board gives."""
    gpus: tuple[BoardCard, ...]
    active: bool = False
    cards: frozenset[PciAddress] = frozenset()
    """The addresses of its cards, as far as they are known."""


class Board(NamedTuple):
    """All partitions, with the cards that were found for their modules."""

    partitions: tuple[Partition, ...] = ()
    unmatched: tuple[int, ...] = ()
    """The modules whose PCI addresses nobody knows."""
    cards: frozenset[PciAddress] = frozenset()
    """All cards of the board."""
    answer: str = ""
    """What was read: the same state is the same text."""

    @property
    def active(self) -> list[Partition]:
        """The active partitions."""
        return [each for each in self.partitions if each.active]

    def numbered(self, number: int) -> Partition | None:
        """The partition with this ID."""
        return next((each for each in self.partitions if each.number == number), None)

    def is_active(self, partition: Partition) -> bool:
        """Whether a partition is active here, whatever it was when it was read."""
        return any(each.number == partition.number for each in self.active)

    def exactly(self, cards: Collection[PciAddress]) -> Partition | None:
        """The partition with these cards and no others."""
        exact = frozenset(cards)
        return next((each for each in self.whole() if each.cards == exact), None)

    def overlapping(self, cards: Collection[PciAddress]) -> list[Partition]:
        """The partitions that have any of these cards."""
        return [each for each in self.partitions if not each.cards.isdisjoint(cards)]

    def whole(self) -> list[Partition]:
        """The partitions of which all cards are known."""
        return [each for each in self.partitions if each.gpus and len(each.cards) == len(each.gpus)]


def matched(partitions: Sequence[Partition], modules: Mapping[int, PciAddress]) -> Board:
    """The board: each module has the address that Fabric Manager gives, or else the configuration.

    Args:
        partitions: as they were read, without ``cards``.
        modules: the configured addresses, by module ID.
    """
    completed = []
    for partition in partitions:
        gpus = tuple(gpu._replace(address=gpu.address or modules.get(gpu.module)) for gpu in partition.gpus)
        cards = frozenset(gpu.address for gpu in gpus if gpu.address is not None)
        completed.append(partition._replace(gpus=gpus, cards=cards))
    unmatched = {gpu.module for each in completed for gpu in each.gpus if gpu.address is None}
    all_cards = frozenset[PciAddress]().union(*(each.cards for each in completed))
    return Board(tuple(completed), tuple(sorted(unmatched)), all_cards)
