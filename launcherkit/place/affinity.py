"""The values that placement by NUMA cell and root complex is made of (P4)."""

from __future__ import annotations

from collections.abc import Mapping

from launcherkit.errors import LauncherkitError
from launcherkit.model.address import GuestAddress, PciAddress
from launcherkit.model.note import Note
from launcherkit.model.value import NamedTuple

ROOT_BUS = -1


class Card(NamedTuple):
    """A card whose place in the guest matters."""

    first: PciAddress
    """Its lowest function that is attached."""
    guest: GuestAddress | None
    """Where the document has it; None where it can be put anywhere."""


class Affinity(NamedTuple):
    """Where in the guest's tree a card belongs."""

    cell: int
    """The guest's; -1 for its own root bus, where none is asked for."""
    root_complex: str
    """The host's, ``pci0000:e0``: cards of two are kept apart even on one node. Empty where it isn't known."""
    switch: str
    """The upstream port of the host switch that it shares with another card; empty where it shares none."""
    alone: bool = False
    """No other card is below its expander (P7)."""


class Alignment(NamedTuple):
    """The affinities of cards, by first function; a card without one is placed as if the guest had no cells."""

    affinities: Mapping[PciAddress, Affinity]
    notes: tuple[Note, ...] = ()
    errors: tuple[LauncherkitError, ...] = ()
    """`NotAligned` under ``topology: strict``, `NoInitiators`."""
    nodesets: Mapping[PciAddress, frozenset[int]] = {}
    """The cells of each function that is a generic initiator (P7)."""
    cells: tuple[int, ...] = ()
    """Those of them that are to be added to the guest."""
