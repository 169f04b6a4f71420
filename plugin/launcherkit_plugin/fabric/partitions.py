"""Partitions of an NVSwitch board as values: which cards they have, which overlap, and which one a pod should get."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence, Set
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

    @property
    def cards(self) -> frozenset[PciAddress]:
        """The addresses of its cards, as far as they are known."""
        return frozenset(gpu.address for gpu in self.gpus if gpu.address is not None)


class Board(NamedTuple):
    """All partitions, with the cards that were found for their modules."""

    partitions: tuple[Partition, ...] = ()
    unmatched: tuple[int, ...] = ()
    """The modules whose PCI addresses nobody knows."""

    @property
    def cards(self) -> frozenset[PciAddress]:
        """All cards of the board."""
        return frozenset[PciAddress]().union(*(each.cards for each in self.partitions))

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
        partitions: as they were read.
        modules: the configured addresses, by module ID.
    """
    completed = tuple(
        partition._replace(
            gpus=tuple(gpu._replace(address=gpu.address or modules.get(gpu.module)) for gpu in partition.gpus)
        )
        for partition in partitions
    )
    unmatched = {gpu.module for each in completed for gpu in each.gpus if gpu.address is None}
    return Board(completed, tuple(sorted(unmatched)))


def best(partitions: Iterable[Set[str]], free: Set[str], candidates: Iterable[Set[str]]) -> Set[str] | None:
    """The candidate that leaves the most for others; None if there is none.

    Larger partitions all of whose cards are free are whole; the one that breaks the fewest of them is taken, where a
    larger one counts more than any number of smaller ones. Among equals it is the one with the lowest IDs.

    Args:
        partitions: the IDs of the cards of each partition of the board.
        free: the IDs of cards that no pod has.
        candidates: the sets of IDs to choose from.
    """
    whole = [each for each in partitions if each <= free]
    sizes = sorted({len(each) for each in whole}, reverse=True)

    def cost(candidate: Set[str]) -> tuple[list[int], list[str]]:
        broken = [sum(len(each) == size and not each.isdisjoint(candidate) for each in whole) for size in sizes]
        larger = [number for size, number in zip(sizes, broken, strict=True) if size > len(candidate)]
        return larger, sorted(candidate)

    return min(candidates, key=cost, default=None)
