"""The values of a host's tree, from which every picture is made, and who holds which of its devices."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from launcherkit.choose.readiness import Blocker, ReadyState
from launcherkit.model.address import MdevAddress, PciAddress, PciSlot
from launcherkit.model.candidate import WithheldDevice
from launcherkit.model.host import PciLink
from launcherkit.show.guest import TreeGuest


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
    withheld: tuple[WithheldDevice, ...] = ()
    """The devices that the device plugin gives to nobody now; empty if it wasn't asked, or isn't here."""

    def blockers(self) -> Iterator[tuple[Blocker, int | None]]:
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


_LAUNCHER = re.compile("virt-launcher-(.+)-[a-z0-9]{5}")
_LONGEST_NAME = 63
"""Kubernetes cuts the part before its own five characters: a name of this length may lack some of the VM's."""
_OF_CLAIM = re.compile(r"(?:.*-)?([0-9a-f]{4,8})-([0-9a-f]{2})-([01][0-9a-f])-([0-7])")
_MDEV_OF_CLAIM = re.compile("mdev-([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})")


def vm_of(pod: str) -> str | None:
    """The VM of a KubeVirt launcher pod, by the pod's ``namespace/name``; None if that doesn't tell."""
    name = pod.rpartition("/")[2]
    launcher = _LAUNCHER.fullmatch(name)
    return launcher[1] if launcher and len(name) < _LONGEST_NAME else None


def with_holders(topology: HostTopology, held: Iterable[HeldDevice]) -> HostTopology:
    """A tree with the holders of its devices; devices that aren't PCI are left out.

    Args:
        topology: the host's.
        held: devices by the kubelet's IDs: an address, a UUID, or the number of an IOMMU group, as in KubeVirt's own
            plugin and in NVIDIA's up to 1.4; for a claim, the name in the pool, if it contains the address.
    """
    placed = (replace(each, device=device) for each in held for device in _devices(each, topology))
    return replace(topology, held=tuple(sorted(dict.fromkeys(placed), key=lambda holder: (holder.device, holder.pod))))


def _devices(held: HeldDevice, topology: HostTopology) -> Iterator[str]:
    text = held.device.lower()
    if held.claim:
        mdev, function = _MDEV_OF_CLAIM.fullmatch(text), _OF_CLAIM.fullmatch(text)
        text = mdev[1] if mdev else "{}:{}:{}.{}".format(*function.groups()) if function else ""
    if text.isascii() and text.isdecimal():
        yield from _of_group(int(text), topology)
        return
    for kind in (PciAddress, MdevAddress):
        try:
            yield str(kind.parse(text))
        except ValueError:
            continue


def _of_group(number: int, topology: HostTopology) -> Iterator[str]:
    """A number is a group's only if guests can have the whole group: other plugins number devices from 0."""
    functions = [each for place in topology.places() for each in place.slot.functions if each.group == number]
    if functions and all(each.state == "ready" for each in functions):
        yield from (str(each.address) for each in functions)
