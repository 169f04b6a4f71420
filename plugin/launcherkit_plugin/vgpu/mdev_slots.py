"""The slots of mdevs. UUIDs are derived from slots, which also tells which mdevs are ours; no state can get lost (G2).

A UUID depends only on the parent's name, the type, the slot's number and the purpose, so it is the same on every node.
"""

import re
from collections.abc import Collection, Iterable, Iterator
from functools import lru_cache
from typing import Literal, NamedTuple, TypeAlias
from uuid import UUID, uuid5

from launcherkit.choose.nodes import group_node
from launcherkit.choose.viability import check_isolation
from launcherkit.model.address import MdevAddress
from launcherkit.model.host import HostFacts, Mdev, MdevParent, MdevType
from launcherkit_plugin.model.device import Device, Problem
from launcherkit_plugin.vgpu.cards import Instance, VgpuCard, cards

Purpose: TypeAlias = Literal["pods", "layout"]
"""What an mdev was created for: ``pods``: a pod to which its slot was allocated; it is removed after the pod has ended
(G3). ``layout``: a layout (G5); it stays until the layout changes."""

PURPOSES: tuple[Purpose, ...] = ("pods", "layout")

MAX = 512
"""The most slots of a type on a parent."""

_NAMESPACE = UUID("f3741647-b238-5e5f-b5bd-2a869a41e169")
"""The uuid5 of the domain name ``vgpu.launcherkit.io``. Computing it would import hashlib, with a library of 5 MB."""


class MdevSlot(NamedTuple):
    """A place for one mdev of a type on a parent."""

    parent: str
    type_id: str
    number: int
    purpose: Purpose = "pods"

    @property
    def uuid(self) -> str:
        """The UUID of the mdev in this slot."""
        return _uuid_of(self)


@lru_cache(maxsize=8192)
def _uuid_of(slot: MdevSlot) -> str:
    return _derived(slot)


def _derived(slot: MdevSlot) -> str:
    return str(uuid5(_NAMESPACE, f"{slot.purpose}/{slot.parent}/{slot.type_id}/{slot.number}"))


@lru_cache(maxsize=1024)
def slot_of(uuid: str, parent: str, type_id: str) -> MdevSlot | None:
    """The slot of an mdev, given its parent and type; None if it isn't ours."""
    if uuid[14:15] != "5":  # the version; UUIDs of other software are mostly random, version 4
        return None
    slots = (MdevSlot(parent, type_id, number, purpose) for number in range(MAX) for purpose in PURPOSES)
    return next((slot for slot in slots if _derived(slot) == uuid), None)


def made_for(instance: Instance) -> Purpose | None:
    """What an mdev of ours was created for; None for VFs and for others' mdevs."""
    slot = slot_of(instance.device, instance.parent, instance.type_id)
    return None if slot is None else slot.purpose


def find_slot(uuid: str, places: Iterable[tuple[str, str]]) -> MdevSlot | None:
    """The slot of a UUID among those of several (parent, type ID); None if it is in none."""
    return next((slot for place in places if (slot := slot_of(uuid, *place)) is not None), None)


_MAX_INSTANCES = re.compile(r"\bmax_instance\s*=\s*(\d{1,4})\b")


class Place(NamedTuple):
    """A type on a parent."""

    card: VgpuCard
    parent: MdevParent
    kind: MdevType
    made: tuple[Mdev, ...]
    """The existing mdevs of that type on that parent, ours or not, sorted by UUID."""
    others: tuple[str, ...]
    """The names of the other types that exist on the card."""
    on_card: int
    """How many of the type exist on all parents of the card."""

    @property
    def key(self) -> tuple[str, str]:
        return self.parent.name, self.kind.id

    @property
    def type_name(self) -> str:
        """The name of the type, or its ID if it has none."""
        return self.kind.name or self.kind.id

    @property
    def is_vf(self) -> bool:
        """Whether the parent is one of the card's VFs, each of which has room for one mdev."""
        return self.parent.address is not None and self.parent.address != self.card.address

    @property
    def available(self) -> int:
        """How many more this parent has room for now."""
        return self.kind.available_instances or 0

    @property
    def per_card(self) -> int | None:
        """How many the whole card can have; None if the driver doesn't say."""
        limit = _MAX_INSTANCES.search(self.kind.description or "")
        return int(limit[1]) if limit else None


def places(host: HostFacts) -> Iterator[Place]:
    """Every type on every parent, by card."""
    made: dict[str, list[Mdev]] = {}
    for _, mdev in sorted(host.mdevs.items()):
        made.setdefault(mdev.parent, []).append(mdev)
    for card in cards(host):
        on_card = [mdev for parent in card.parents for mdev in made.get(parent.name, ())]
        for parent in card.parents:
            for kind in parent.types:
                yield Place(
                    card,
                    parent,
                    kind,
                    tuple(mdev for mdev in made.get(parent.name, ()) if mdev.type_id == kind.id),
                    tuple(sorted({mdev.type_name or mdev.type_id for mdev in on_card if mdev.type_id != kind.id})),
                    sum(mdev.type_id == kind.id for mdev in on_card),
                )


def capacity(place: Place, remembered: int) -> int:
    """How many slots a place has: the largest possible number, so that the list of slots is stable.

    Args:
        place: as it is now.
        remembered: the largest capacity that was seen before. If the driver doesn't report it, it can only be seen
            while vGPUs of other types don't use the room.
    """
    described = 0 if place.is_vf else place.per_card or 0
    return min(MAX, max(described, place.available + len(place.made), remembered))


def own_slots(place: Place) -> dict[str, MdevSlot]:
    """The slots of the mdevs that were created for pods in a place, by UUID."""
    slots = {mdev.uuid: slot_of(mdev.uuid, *place.key) for mdev in place.made}
    return {uuid: slot for uuid, slot in slots.items() if slot is not None and slot.purpose == "pods"}


def slot_devices(place: Place, slots: int, held: Collection[str], host: HostFacts, room: int) -> Iterator[Device]:
    """The devices of a place in dynamic mode: its slots, whether their mdevs exist or not (G1).

    Args:
        place: a type on a parent.
        slots: its capacity.
        held: IDs of devices that pods have. If room is short, missing ones among these come first.
        host: facts, for device nodes and NUMA nodes.
        room: how many more could be created, considering the card's other parents.
    """
    own = own_slots(place)
    numbers = {*range(slots), *(slot.number for slot in own.values())}
    made = {mdev.uuid: mdev for mdev in place.made}
    missing: list[MdevSlot] = []
    for slot in (MdevSlot(*place.key, number) for number in sorted(numbers)):
        if slot.uuid in made:
            yield device_of(made[slot.uuid], place, host, f", slot {slot.number}")
        else:
            missing.append(slot)
    missing.sort(key=lambda slot: (slot.uuid not in held, slot.number))
    for position, slot in enumerate(missing):
        problem = None if position < room else _no_room(place)
        text = _shown(place, f", slot {slot.number}")
        yield Device(slot.uuid, _numa_node(place, host), problem, description=text)


def device_of(mdev: Mdev, place: Place, host: HostFacts, which: str = "") -> Device:
    """The device of an existing mdev."""
    problem = None
    for error in check_isolation((MdevAddress(mdev.uuid),), host):
        problem = Problem("no-group", error.message)
    if problem is None and host.nodes is not None and (node := group_node(mdev.iommu_group)) not in host.nodes:
        problem = Problem("node", f"the device node {node} of mdev {mdev.uuid} is not there")
    groups = frozenset(() if mdev.iommu_group is None else (mdev.iommu_group,))
    return Device(mdev.uuid, _numa_node(place, host), problem, groups, description=_shown(place, which))


def _no_room(place: Place) -> Problem:
    if place.others and place.on_card == 0:
        return Problem("other-type", f"{place.card.name} has vGPUs of type {', '.join(place.others)}")
    return Problem("no-room", f"{place.parent.name} has no room for another {place.type_name}")


def _numa_node(place: Place, host: HostFacts) -> int | None:
    function = host.functions.get(place.parent.address) if place.parent.address else None
    return None if function is None else function.numa_node


def _shown(place: Place, which: str) -> str:
    return f"{place.type_name} on {place.parent.name}{which}"
