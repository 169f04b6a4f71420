"""Mediated devices as vGPUs of a pool: existing ones, and slots for those that could be created (G1-G3)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from launcherkit.choose.nodes import node_set
from launcherkit.model.address import MdevAddress
from launcherkit.model.host import HostFacts, PciFunction
from launcherkit_plugin.model.config import VgpuRule
from launcherkit_plugin.model.device import Device, Usage
from launcherkit_plugin.model.errors import UNKNOWN_DEVICE
from launcherkit_plugin.vgpu.cards import Instance, NameOf, cards, rule_for
from launcherkit_plugin.vgpu.mdev_slots import (
    MdevSlot,
    Place,
    capacity,
    device_of,
    find_slot,
    places,
    slot_devices,
    slot_of,
)
from launcherkit_plugin.vgpu.pool import Candidate, Present, Target
from launcherkit_plugin.vgpu.writer import VgpuWriter

_MAX_FOUND = 1024


class MdevKind:
    """See `launcherkit_plugin.vgpu.pool.VgpuKind`.

    Args:
        rules: the first that matches a type applies.
        name_of: returns the names of resources for rules without a name.
        writer: creates and removes mdevs.
    """

    noun = "mdev "
    iommufd = False

    def __init__(self, rules: Sequence[VgpuRule], name_of: NameOf, writer: VgpuWriter) -> None:
        self.rules = tuple(rules)
        self._name_of = name_of
        self._writer = writer
        self._capacities: dict[tuple[str, str], int] = {}
        self._found: dict[str, MdevSlot | None] = {}
        self._searched: frozenset[tuple[str, str]] = frozenset()

    def wants(self, function: PciFunction) -> bool:  # noqa: ARG002  # other kinds need it
        """See `VgpuKind.wants`: mdevs need no details of functions."""
        return False

    # What is advertised

    def candidates(self, host: HostFacts, usage: Usage) -> Iterator[Candidate]:
        """See `VgpuKind.candidates`."""
        held = usage.held_ids
        rooms: dict[tuple[str, str], int] = {}
        for place in places(host):
            rule = rule_for(self.rules, (place.parent.name, place.card.name), place.kind.id, place.kind.name)
            if rule is not None:
                function = host.functions.get(place.parent.address) if place.parent.address else None
                vendor = None if function is None else function.vendor
                name = rule.name or self._name_of(place.type_name, vendor)
                for candidate in self._devices(place, rule, host, held, rooms):
                    device = candidate._replace(
                        vgpu_types=(place.type_name,),
                        per_card=self._per_card(place) if rule.mode == "dynamic" else 0,
                        place=place.parent.name if place.is_vf else "",
                    )
                    vgpu = Instance(device.id, *place.key, place.type_name)
                    target = Target(vgpu, place.card.name, place.key, rule.mode == "dynamic")
                    yield Candidate(name, rule, device, target, device.id in host.mdevs)

    def _devices(
        self, place: Place, rule: VgpuRule, host: HostFacts, held: frozenset[str], rooms: dict[tuple[str, str], int]
    ) -> Iterator[Device]:
        if rule.mode == "static":
            yield from (device_of(mdev, place, host) for mdev in place.made)
            return
        slots = self._capacities[place.key] = capacity(place, self._capacities.get(place.key, 0))
        room = place.available
        if place.is_vf and place.per_card is not None:
            # Each VF reports room for one as long as the card has any; together they would promise too many.
            left = rooms.setdefault((place.card.name, place.kind.id), max(0, place.per_card - place.on_card))
            room = min(room, left)
            rooms[place.card.name, place.kind.id] = left - room
        yield from slot_devices(place, slots, held, host, room)

    def _per_card(self, place: Place) -> int:
        """How many of the type fit on an empty card, as far as known; a VF has room for one."""
        return place.per_card or (len(place.card.parents) if place.is_vf else self._capacities[place.key])

    def present(self, host: HostFacts, usage: Usage, targets: Mapping[tuple[str, str], Target]) -> Present:
        """See `VgpuKind.present`: only mdevs that were created for pods are removable."""
        owners = {parent.name: card.name for card in cards(host) for parent in card.parents}

        def target(uuid: str, parent: str, type_id: str, type_name: str) -> Target:
            return Target(
                Instance(uuid, parent, type_id, type_name), owners.get(parent, parent), (parent, type_id), True
            )

        ours: dict[str, Target] = {}
        for uuid, mdev in host.mdevs.items():
            slot = slot_of(mdev.uuid, mdev.parent, mdev.type_id)
            if slot is not None and slot.purpose == "pods":
                ours[uuid] = target(uuid, mdev.parent, mdev.type_id, mdev.type_name or mdev.type_id)
        by_device = {each.vgpu.device: each for each in targets.values()}
        nodes = {
            uuid: node_set([MdevAddress(uuid)], host, iommufd=False).nodes
            for uuid, mdev in host.mdevs.items()
            if uuid in by_device and mdev.iommu_group is not None
        }
        missing = sorted(usage.held_ids.difference(host.mdevs))
        names = {place.key: place.type_name for place in places(host)} if missing else {}
        lost: list[Target] = []
        for uuid in missing:
            if uuid in by_device:
                lost += [by_device[uuid]] if by_device[uuid].dynamic else []
            elif slot := self._find(uuid, host):
                key = slot.parent, slot.type_id
                lost.append(target(uuid, *key, names.get(key, slot.type_id)))
        return Present(ours, lost, nodes)

    def _find(self, uuid: str, host: HostFacts) -> MdevSlot | None:
        """The slot of an ID; None if it isn't ours.

        This is needed for IDs of types that no rule permits any more, after a change of the configuration, and at the
        first scan.
        """
        keys = frozenset((parent.name, kind.id) for parent in host.mdev_parents.values() for kind in parent.types)
        if keys != self._searched:
            self._searched = keys
            self._found.clear()
        if uuid not in self._found and len(self._found) < _MAX_FOUND:
            self._found[uuid] = find_slot(uuid, sorted(keys))
        return self._found.get(uuid)

    # In a thread

    def ensure(self, target: Target) -> bool:
        """See `VgpuKind.ensure`: creates the mdev of a slot (G2)."""
        vgpu = target.vgpu
        if target.dynamic:
            return self._writer.create(vgpu)
        mdev = self._writer.maker.mdev(vgpu.device)
        if mdev is None or (mdev.parent, mdev.type_id) != target.key:
            raise UNKNOWN_DEVICE(
                f"mdev {vgpu.device} of type {vgpu.type_name} on {vgpu.parent} no longer exists",
                "Somebody has removed it: in static mode mdevs must be created before pods can use them.",
                device=vgpu.device,
            )
        return False

    def remove(self, target: Target) -> bool:
        """See `VgpuKind.remove`."""
        return self._writer.remove(target.vgpu)
