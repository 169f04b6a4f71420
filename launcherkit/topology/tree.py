"""The tree of a host: values alone, the same behind every picture of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from launcherkit.model.address import PciAddress, PciSlot
from launcherkit.model.function import PciLink
from launcherkit.model.readiness import Blocker, State


@dataclass(frozen=True, slots=True)
class VirtualFunctions:
    """VFs of one physical function that are alike."""

    addresses: tuple[PciAddress, ...]
    ids: str
    driver: str | None
    state: State
    type: str | None
    """The vGPU type that is set: its name, or its number where that has none."""
    groups: tuple[int, ...]
    """Their IOMMU groups, sorted."""
    blockers: tuple[Blocker, ...]


@dataclass(frozen=True, slots=True)
class MdevSlots:
    """Mediated devices of one type on one parent: those that there are, and how many more there could be."""

    type: str
    uuids: tuple[str, ...]
    possible: int | None


@dataclass(frozen=True, slots=True)
class Function:
    """An endpoint; its VFs are told with it."""

    address: PciAddress
    ids: str
    """``10de:2204``."""
    kind: str
    """Its class in words."""
    name: str | None
    """Vendor and device, where pci.ids knows them."""
    driver: str | None
    group: int | None
    state: State
    blockers: tuple[Blocker, ...]
    link: PciLink | None
    wider: int | None
    """The lanes that its link could have, where it has fewer; by what it and the port above it can."""
    bars: tuple[int, ...]
    """Sizes of its memory BARs in bytes."""
    vfs: tuple[VirtualFunctions, ...]
    possible_vfs: int | None
    mdevs: tuple[MdevSlots, ...]


@dataclass(frozen=True, slots=True)
class Slot:
    """A card, or what else shares domain, bus and device."""

    slot: PciSlot
    functions: tuple[Function, ...]


@dataclass(frozen=True, slots=True)
class Bridge:
    """A root port, a switch's port or a bridge, with what is behind it."""

    address: str
    """As the device path has it."""
    kind: str
    """``root port``, ``switch``, ``switch port`` or ``bridge``."""
    link: PciLink | None
    bridges: tuple[Bridge, ...]
    slots: tuple[Slot, ...]


@dataclass(frozen=True, slots=True)
class RootComplex:
    """What a host bridge leads to."""

    name: str | None
    """``pci0000:e0``; None where the device path isn't known."""
    bridges: tuple[Bridge, ...]
    slots: tuple[Slot, ...]


@dataclass(frozen=True, slots=True)
class Node:
    """A NUMA node with its root complexes."""

    number: int | None
    """None for what the kernel knows no node of."""
    cpus: str
    """``0-31,64-95``; empty where they are not known."""
    complexes: tuple[RootComplex, ...]


@dataclass(frozen=True, slots=True)
class Group:
    """An IOMMU group of which something is shown."""

    number: int
    members: tuple[PciAddress, ...]
    """Without bridges."""
    blockers: tuple[Blocker, ...]
    """What keeps all of it from guests (V1); empty for a viable one."""


@dataclass(frozen=True, slots=True)
class Topology:
    """A host as a tree."""

    nodes: tuple[Node, ...]
    groups: tuple[Group, ...]
    """By number."""
    left_out: int
    """How many endpoints are not shown."""

    def slots(self) -> Iterator[Slot]:
        """All slots, in the order of the tree."""
        for node in self.nodes:
            for root in node.complexes:
                yield from slots_of(root)


def slots_of(branch: RootComplex | Bridge) -> Iterator[Slot]:
    """All slots behind a bridge or root complex, in the order of the tree."""
    yield from branch.slots
    for bridge in branch.bridges:
        yield from slots_of(bridge)
