"""The values for placement by NUMA cell and root complex (P4)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from launcherkit.errors import LauncherkitError
from launcherkit.model.address import GuestAddress, PciAddress
from launcherkit.model.note import Note

ROOT_BUS = -1


class Card(NamedTuple):
    """A card whose place in the guest matters."""

    first: PciAddress
    """Its lowest attached function."""
    guest: GuestAddress | None
    """Its address in the document; None if it can go anywhere."""


class Affinity(NamedTuple):
    """The place in the guest's tree where a card belongs."""

    cell: int
    """The guest's; -1 for the guest's own root bus, if no cell is wanted."""
    root_complex: str
    """The host's, such as ``pci0000:e0``: cards of two are kept apart even on one node. Empty if unknown."""
    switch: str
    """The upstream port of the host switch that it shares with another card; empty if it shares none."""
    alone: bool = False
    """Whether no other card may be below its expander (P7)."""


class Alignment(NamedTuple):
    """The affinities of cards, by first function; cards without one are placed as if the guest had no cells."""

    affinities: Mapping[PciAddress, Affinity]
    notes: tuple[Note, ...] = ()
    errors: tuple[LauncherkitError, ...] = ()
    """`NotAligned` under ``topology: strict``, `NoInitiators`."""
    nodesets: Mapping[PciAddress, frozenset[int]] = {}
    """The cells of each function that is a generic initiator (P7)."""
    cells: tuple[int, ...] = ()
    """Those of these cells that must be added to the guest."""
