"""The tree of a host: values alone, the same behind every picture of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from launcherkit.model.address import PciAddress, PciSlot
from launcherkit.model.function import PciLink
from launcherkit.model.plan import Role, Window
from launcherkit.model.readiness import Blocker, ReadyState


@dataclass(frozen=True, slots=True)
class VirtualFunctions:
    """VFs of one physical function that are alike."""

    addresses: tuple[PciAddress, ...]
    ids: str
    driver: str | None
    state: ReadyState
    type: str | None
    """The vGPU type that is set: its name, or its number where that has none."""
    groups: tuple[int, ...]
    """Their IOMMU groups, sorted."""
    blockers: tuple[Blocker, ...]

    def share(self, group: int | None) -> bool:
        """Whether one of them is in an IOMMU group."""
        return group in self.groups


@dataclass(frozen=True, slots=True)
class MdevSlots:
    """Mediated devices of one type on one parent: those that there are, and how many more there could be."""

    type: str
    uuids: tuple[str, ...]
    possible: int | None


@dataclass(frozen=True, slots=True)
class TreeFunction:
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
    state: ReadyState
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
class TreeSlot:
    """A card, or what else shares domain, bus and device."""

    slot: PciSlot
    functions: tuple[TreeFunction, ...]


@dataclass(frozen=True, slots=True)
class TreeBridge:
    """A root port, a switch's port or a bridge, with what is behind it."""

    address: str
    """As the device path has it."""
    kind: str
    """``root port``, ``switch``, ``switch port`` or ``bridge``."""
    link: PciLink | None
    bridges: tuple[TreeBridge, ...]
    slots: tuple[TreeSlot, ...]


@dataclass(frozen=True, slots=True)
class RootComplex:
    """What a host bridge leads to."""

    name: str | None
    """``pci0000:e0``; None where the device path isn't known."""
    bridges: tuple[TreeBridge, ...]
    slots: tuple[TreeSlot, ...]


@dataclass(frozen=True, slots=True)
class TreeNode:
    """A NUMA node with its root complexes."""

    number: int | None
    """None for what the kernel knows no node of."""
    cpus: str
    """``0-31,64-95``; empty where they are not known."""
    complexes: tuple[RootComplex, ...]


@dataclass(frozen=True, slots=True)
class TreeGroup:
    """An IOMMU group of which something is shown."""

    number: int
    members: tuple[PciAddress, ...]
    """Without bridges."""
    blockers: tuple[Blocker, ...]
    """What keeps all of it from guests (V1); empty for a viable one."""


@dataclass(frozen=True, slots=True)
class GuestFunction:
    """What a guest gets, and where."""

    source: str
    """Its address on the host, or the UUID of a mediated device."""
    request: str
    """The name of the request that it answers, or of whose device it is a sibling."""
    role: Role
    why: str
    """Why it is here, in words."""
    guest: str | None
    """Its address in the guest; None where libvirt chooses it, or the guest isn't shown it."""


@dataclass(frozen=True, slots=True)
class GuestBridge:
    """A PCI controller of a guest that leads to what it gets."""

    index: int
    model: str
    bus_number: int | None
    cell: int | None
    """The guest's NUMA cell of a root bus."""
    bridges: tuple[GuestBridge, ...]
    functions: tuple[GuestFunction, ...]


@dataclass(frozen=True, slots=True)
class Stayed:
    """A function of a card that the guest does not get."""

    address: PciAddress
    why: str


@dataclass(frozen=True, slots=True)
class TreeGuest:
    """What a VM gets of a host."""

    name: str
    bridges: tuple[GuestBridge, ...]
    unplaced: tuple[GuestFunction, ...]
    """What libvirt places, what it isn't shown, and what is behind ports that libvirt places."""
    stayed: tuple[Stayed, ...]
    window: Window | None
    """The 64-bit PCI window that is needed and what is written for it; None where the default has room (P5)."""

    def functions(self) -> Iterator[GuestFunction]:
        """All that it gets."""
        for bridge in self.bridges:
            yield from _functions_of(bridge)
        yield from self.unplaced


def _functions_of(bridge: GuestBridge) -> Iterator[GuestFunction]:
    yield from bridge.functions
    for below in bridge.bridges:
        yield from _functions_of(below)


@dataclass(frozen=True, slots=True)
class HeldDevice:
    """A device that somebody has: a pod, or a ResourceClaim that it was prepared for."""

    device: str
    """Its address on the host, or the UUID of a mediated device."""
    resource: str
    """As a device plugin names it, ``nvidia.com/GA102``; empty for a device of a claim."""
    pod: str
    """``namespace/name``; empty where only the claim is known."""
    container: str
    """Of the pod; empty where it isn't known."""
    claim: str
    """``namespace/name``; empty for a device of a device plugin."""
    vm: str | None
    """The name of the VM that the pod is for, in the pod's namespace; None for another pod."""


@dataclass(frozen=True, slots=True)
class TreePlace:
    """A slot and the way to it."""

    node: int | None
    way: tuple[str | None, ...]
    """The root complex, and each bridge below it."""
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
    """Where it was asked for with a VM."""
    held: tuple[HeldDevice, ...] | None = None
    """Who holds what, by device; None where nobody was asked."""

    def in_the_way(self) -> Iterator[tuple[Blocker, int | None]]:
        """What keeps devices from guests, each once, with the IOMMU group that it keeps from them."""
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
