"""The values of a host's tree, from which every picture is made."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from launcherkit.model.address import PciAddress, PciSlot
from launcherkit.model.function import PciLink
from launcherkit.model.plan import Role, Window
from launcherkit.model.readiness import Blocker, ReadyState


@dataclass(frozen=True, slots=True)
class VirtualFunctions:
    """Similar VFs of one physical function."""

    addresses: tuple[PciAddress, ...]
    ids: str
    driver: str | None
    state: ReadyState
    type: str | None
    """The vGPU type that is set: its name, or its number if it has no name."""
    groups: tuple[int, ...]
    """Their IOMMU groups, sorted."""
    blockers: tuple[Blocker, ...]

    def share(self, group: int | None) -> bool:
        """Whether one of them is in this IOMMU group."""
        return group in self.groups


@dataclass(frozen=True, slots=True)
class MdevSlots:
    """Mediated devices of one type on one parent: the existing ones, and how many more are possible."""

    type: str
    uuids: tuple[str, ...]
    possible: int | None


@dataclass(frozen=True, slots=True)
class TreeFunction:
    """An endpoint with its VFs."""

    address: PciAddress
    ids: str
    """Vendor and device ID: ``10de:2204``."""
    kind: str
    """Its class in words."""
    name: str | None
    """Names of vendor and device, if pci.ids has them."""
    driver: str | None
    group: int | None
    state: ReadyState
    blockers: tuple[Blocker, ...]
    link: PciLink | None
    wider: int | None
    """The lanes that its link could have, if it has fewer; by the limits of the function and the port above."""
    bars: tuple[int, ...]
    """Sizes of its memory BARs in bytes."""
    vfs: tuple[VirtualFunctions, ...]
    possible_vfs: int | None
    mdevs: tuple[MdevSlots, ...]


@dataclass(frozen=True, slots=True)
class TreeSlot:
    """A card, or other functions with the same domain, bus and device."""

    slot: PciSlot
    functions: tuple[TreeFunction, ...]


@dataclass(frozen=True, slots=True)
class TreeBridge:
    """A root port, a port of a switch, or a bridge, with everything behind it."""

    address: str
    """As in the device path."""
    kind: str
    """``root port``, ``switch``, ``switch port`` or ``bridge``."""
    link: PciLink | None
    bridges: tuple[TreeBridge, ...]
    slots: tuple[TreeSlot, ...]


@dataclass(frozen=True, slots=True)
class RootComplex:
    """A root complex: everything behind a host bridge."""

    name: str | None
    """``pci0000:e0``; None if the device path isn't known."""
    bridges: tuple[TreeBridge, ...]
    slots: tuple[TreeSlot, ...]


@dataclass(frozen=True, slots=True)
class TreeNode:
    """A NUMA node with its root complexes."""

    number: int | None
    """None for functions without a known node."""
    cpus: str
    """``0-31,64-95``; empty if unknown."""
    complexes: tuple[RootComplex, ...]


@dataclass(frozen=True, slots=True)
class TreeGroup:
    """An IOMMU group with at least one shown member."""

    number: int
    members: tuple[PciAddress, ...]
    """Without bridges."""
    blockers: tuple[Blocker, ...]
    """What keeps the whole group from guests (V1); empty if it is viable."""


@dataclass(frozen=True, slots=True)
class GuestFunction:
    """A function or mediated device of a guest, and its place."""

    source: str
    """Its address on the host, or the UUID of a mediated device."""
    request: str
    """The name of the request that it, or its primary, answers."""
    role: Role
    why: str
    """Why it is attached, in words."""
    guest: str | None
    """Its address in the guest; None if libvirt chooses it, or the guest doesn't see it."""


@dataclass(frozen=True, slots=True)
class GuestBridge:
    """A PCI controller of a guest that leads to its devices."""

    index: int
    model: str
    bus_number: int | None
    cell: int | None
    """The guest's NUMA cell, for a root bus."""
    bridges: tuple[GuestBridge, ...]
    functions: tuple[GuestFunction, ...]


@dataclass(frozen=True, slots=True)
class Stayed:
    """A function of a card that the guest doesn't get."""

    address: PciAddress
    why: str


@dataclass(frozen=True, slots=True)
class TreeGuest:
    """A VM's devices."""

    name: str
    bridges: tuple[GuestBridge, ...]
    unplaced: tuple[GuestFunction, ...]
    """Devices that libvirt places, those behind ports that libvirt places, and those that the guest doesn't see."""
    stayed: tuple[Stayed, ...]
    window: Window | None
    """The 64-bit PCI window that is needed, and what is written for it; None if the default has room (P5)."""

    def functions(self) -> Iterator[GuestFunction]:
        """All its devices."""
        for bridge in self.bridges:
            yield from _functions_of(bridge)
        yield from self.unplaced


def _functions_of(bridge: GuestBridge) -> Iterator[GuestFunction]:
    yield from bridge.functions
    for below in bridge.bridges:
        yield from _functions_of(below)


@dataclass(frozen=True, slots=True)
class HeldDevice:
    """A device that a pod holds, or that is prepared for a ResourceClaim."""

    device: str
    """Its address on the host, or the UUID of a mediated device."""
    resource: str
    """The device plugin's name, such as ``nvidia.com/GA102``; empty for a device of a claim."""
    pod: str
    """``namespace/name``; empty if only the claim is known."""
    container: str
    """The pod's container; empty if unknown."""
    claim: str
    """``namespace/name``; empty for a device of a device plugin."""
    vm: str | None
    """The name of the pod's VM, in the pod's namespace; None for a pod without a VM."""


@dataclass(frozen=True, slots=True)
class TreePlace:
    """A slot and the path to it."""

    node: int | None
    way: tuple[str | None, ...]
    """The root complex, then each bridge below it."""
    slot: TreeSlot


@dataclass(frozen=True, slots=True)
class HostTopology:
    """A host as a tree."""

    nodes: tuple[TreeNode, ...]
    groups: tuple[TreeGroup, ...]
    """By number."""
    left_out: int
    """How many endpoints are not shown."""
    guest: TreeGuest | None = None
    """The VM's guest, if a VM was given."""
    held: tuple[HeldDevice, ...] | None = None
    """The held devices; None if nobody was asked."""

    def in_the_way(self) -> Iterator[tuple[Blocker, int | None]]:
        """Each blocker once, with the IOMMU group that it keeps from guests."""
        for group in self.groups:
            yield from ((blocker, group.number) for blocker in group.blockers)
        for place in self.places():
            for function in place.slot.functions:
                yield from ((blocker, None) for blocker in function.blockers if not blocker.whole)

    def places(self) -> Iterator[TreePlace]:
        """All slots, in the order of the tree."""
        for node in self.nodes:
            for root in node.complexes:
                yield from _places(root, node.number, (root.name,))


def _places(branch: RootComplex | TreeBridge, node: int | None, way: tuple[str | None, ...]) -> Iterator[TreePlace]:
    yield from (TreePlace(node, way, slot) for slot in branch.slots)
    for bridge in branch.bridges:
        yield from _places(bridge, node, (*way, bridge.address))
