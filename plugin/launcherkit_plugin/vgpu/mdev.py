"""Mediated devices as devices of the kubelet: those that exist, and those that could be made (G1-G3)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import NamedTuple

from launcherkit.errors import Collector, LauncherkitError
from launcherkit.model.address import MdevAddress
from launcherkit.model.function import PciFunction
from launcherkit.model.host import HostFacts, Mdev
from launcherkit.resolve.vfio import CONTAINER_NODE
from launcherkit.resolve.viability import check_nodes, needed_nodes
from launcherkit.sources.sysfs import read_needed
from launcherkit_plugin.model.config import MdevRule
from launcherkit_plugin.model.device import Device, Grant, Problem, Resource
from launcherkit_plugin.model.errors import UnknownDevice, VgpuNotMade
from launcherkit_plugin.model.usage import Usage
from launcherkit_plugin.vgpu.failures import Failures
from launcherkit_plugin.vgpu.granted import Nodes
from launcherkit_plugin.vgpu.idle import UNKNOWN_USAGE, due, elsewhere, held_devices, idle_since
from launcherkit_plugin.vgpu.places import Place, capacity, device_of, places, slot_devices
from launcherkit_plugin.vgpu.rules import NameOf, resource_name, rule_for, variable
from launcherkit_plugin.vgpu.slots import Slot, find_slot, slot_of
from launcherkit_plugin.vgpu.stopped import Stopped
from launcherkit_plugin.vgpu.writer import Changes, with_room


class _Target(NamedTuple):
    """What stands behind a device's ID."""

    parent: str
    type_id: str
    what: str
    slot: Slot | None
    """Where it is made when it is asked for; None for one that has to be there."""


class MdevProvider:
    """See `launcherkit_plugin.devices.provider.Provider`.

    Args:
        rules: the first that a type falls under counts.
        name_of: names the resources of rules that don't.
        changes: makes and removes.
        grace_seconds: for how long nobody must have one before it is removed.
        stopped: whose VM has ended.
        nodes: hands them out.
    """

    def __init__(
        self,
        rules: Sequence[MdevRule],
        name_of: NameOf,
        changes: Changes,
        *,
        grace_seconds: float = 60.0,
        stopped: Stopped | None = None,
        nodes: Nodes | None = None,
    ) -> None:
        self._rules = tuple(rules)
        self._name_of = name_of
        self._changes = changes
        self._grace = grace_seconds
        self._stopped = stopped or Stopped()
        self._handed = nodes or Nodes()
        self._targets: Mapping[tuple[str, str], _Target] = {}
        self._capacities: dict[tuple[str, str], int] = {}
        self._strays: dict[str, Slot | None] = {}
        self._searched: frozenset[tuple[str, str]] = frozenset()
        self._idle: Mapping[str, float] = {}
        self._knows_usage = False
        self._failures = Failures()

    def wants(self, function: PciFunction) -> bool:  # noqa: ARG002  # of providers that go by functions
        """Whether details of a function have to be read: what is known of every function is enough."""
        return False

    # What there is

    def resources(self, host: HostFacts, usage: Usage, now: float) -> tuple[Resource, ...]:
        """See `Provider.resources`."""
        self._knows_usage |= usage.known
        held = held_devices(usage)
        devices: dict[str, dict[str, Device]] = {}
        variables: dict[str, str] = {}
        targets: dict[tuple[str, str], _Target] = {}
        rooms: dict[tuple[str, str], int] = {}
        for place, rule, name in self._permitted(host):
            variables.setdefault(name, variable(rule, name))
            found = devices.setdefault(name, {})
            for device, slot in self._devices(place, rule, host, held, rooms, now):
                found[device.id] = device._replace(problem=device.problem or elsewhere(usage, name, device.id))
                targets[name, device.id] = _Target(*place.key, place.what, slot)
        self._keep_held(devices, variables, usage)
        self._targets = targets
        return tuple(Resource(name, variables[name], found) for name, found in sorted(devices.items()) if found)

    def _permitted(self, host: HostFacts) -> Iterator[tuple[Place, MdevRule, str]]:
        for place in places(host):
            rule = rule_for(self._rules, (place.parent.name, place.card.name), place.kind.id, place.kind.name)
            if rule is not None:
                function = host.functions.get(place.parent.address) if place.parent.address else None
                vendor = None if function is None else function.vendor
                yield place, rule, resource_name(rule, place.what, vendor, self._name_of)

    def _devices(
        self,
        place: Place,
        rule: MdevRule,
        host: HostFacts,
        held: frozenset[str],
        rooms: dict[tuple[str, str], int],
        now: float,
    ) -> Iterator[tuple[Device, Slot | None]]:
        if rule.mode == "static":
            yield from ((device_of(mdev, place, host), None) for mdev in place.made)
            return
        slots = self._capacities[place.key] = capacity(place, self._capacities.get(place.key, 0))
        room = place.available
        if place.is_vf and place.most is not None:
            # Each VF has room for one as long as the card has: together they would promise more than the card can hold.
            left = rooms.setdefault((place.card.name, place.kind.id), max(0, place.most - place.on_card))
            room = min(room, left)
            rooms[place.card.name, place.kind.id] = left - room
        why = self._failures.why(place.key, now)
        problem = None if why is None else Problem("failed", why)
        if not self._knows_usage:
            problem = UNKNOWN_USAGE
        yield from slot_devices(place, slots, held, host, room, problem)

    def _keep_held(self, devices: dict[str, dict[str, Device]], variables: dict[str, str], usage: Usage) -> None:
        """What a pod has stays listed, whatever became of it (K4)."""
        for rule in self._rules:
            if rule.name is not None and usage.held.get(rule.name):
                devices.setdefault(rule.name, {})
                variables.setdefault(rule.name, variable(rule, rule.name))
        for name, found in devices.items():
            for device in usage.held.get(name, {}):
                if device not in found:
                    found[device] = Device(device, problem=Problem("gone", f"mdev {device} is not there any more"))

    # What containers get

    async def allocate(self, resource: Resource, ids: Sequence[str]) -> Grant:
        """See `Provider.allocate`; makes what isn't there (G2)."""
        nodes = await asyncio.to_thread(self._give, resource.name, ids)
        return self._handed.grant(resource, nodes)

    async def check(self, resource: Resource, ids: Sequence[str]) -> None:
        """See `Provider.check`. The kubelet starts containers from its own notes after a reboot, without Allocate."""
        await asyncio.to_thread(self._give, resource.name, ids)

    def _give(self, resource: str, ids: Sequence[str]) -> dict[str, tuple[str, ...]]:
        """See that all are there, or make none; the nodes of each."""
        made: list[str] = []
        try:
            for device in ids:
                if self._ensure(resource, device):
                    made.append(device)
            return {device: self._nodes(device) for device in ids}
        except LauncherkitError:
            for device in made:
                with suppress(LauncherkitError):  # told; what stays is removed after the grace time
                    mdev = self._changes.maker.mdev(device)
                    if mdev is not None:
                        self._changes.remove(mdev)
            raise

    def _ensure(self, resource: str, device: str) -> bool:
        target = self._targets.get((resource, device))
        if target is None:
            raise UnknownDevice(
                f"{resource}: there is no vGPU {device[:100]!r}",
                "It has been removed, or its type is not permitted any more; the kubelet's next pod gets another.",
            )
        if target.slot is not None:
            return self._make(target.slot, target.what)
        mdev = self._changes.maker.mdev(device)
        if mdev is None or (mdev.parent, mdev.type_id) != (target.parent, target.type_id):
            raise UnknownDevice(
                f"{resource}: mdev {device} of type {target.what} on {target.parent} is not there any more",
                "Somebody has removed it: in static mode they have to be made before pods can have them.",
            )
        return False

    def _make(self, slot: Slot, what: str) -> bool:
        place = slot.parent, slot.type_id
        try:
            made = self._changes.make(*place, slot.uuid, what)
        except VgpuNotMade as error:
            self._failures.add(place, error.message, self._changes.maker.clock())
            raise
        self._failures.clear(place)
        return made

    def _nodes(self, device: str) -> tuple[str, ...]:
        address = MdevAddress(device)
        with self._changes.maker.files.tree() as tree:
            facts = read_needed(tree, (), [address])
        nodes = needed_nodes([address], facts, iommufd=False).nodes
        errors = Collector()
        check_nodes(nodes, facts, errors)
        errors.raise_if_any()
        return nodes

    # What has to be done

    async def reconcile(self, host: HostFacts, usage: Usage, now: float) -> bool:
        """See `Provider.reconcile`: makes what pods have and isn't there, removes what nobody has had for long (G3)."""
        return await asyncio.to_thread(self._reconcile, host, usage, now)

    def _reconcile(self, host: HostFacts, usage: Usage, now: float) -> bool:
        usage, at_once = self._stopped.without(usage)
        held = held_devices(usage)
        ours = {uuid: mdev for uuid, mdev in host.mdevs.items() if _is_for_pods(mdev)}
        changed = False
        if usage.known:
            self._idle = idle_since(self._idle, ours, held, now)
            for uuid in due(self._idle, self._grace, now, at_once):
                changed |= self._remove(ours[uuid])
        for uuid in sorted(held.difference(host.mdevs, at_once)):
            slot = self._find(uuid, host)
            if slot is not None:
                changed |= self._restore(slot, host, [ours[mdev] for mdev in self._idle if mdev in ours], usage.known)
        known = {device for _, device in self._targets}
        there = {
            uuid: (CONTAINER_NODE, f"/dev/vfio/{mdev.iommu_group}")
            for uuid, mdev in host.mdevs.items()
            if uuid in known and mdev.iommu_group is not None
        }
        self._changes.try_to(lambda: self._handed.refresh(there, held))
        return changed

    def _remove(self, mdev: Mdev) -> bool:
        return bool(self._changes.try_to(lambda: self._changes.remove(mdev)))

    def _restore(self, slot: Slot, host: HostFacts, idle: Iterable[Mdev], known: bool) -> bool:
        """Make again what a pod has; where there is no room, what nobody has makes way, whatever its grace time."""
        what = next((place.what for place in places(host) if place.key == (slot.parent, slot.type_id)), slot.type_id)
        with suppress(LauncherkitError):  # told; the next call tries again
            family = _family(slot.parent, host) if known else ()
            rooms = [partial(self._remove, mdev) for mdev in idle if mdev.parent in family]
            return with_room(lambda: self._make(slot, what), rooms)
        return False

    def _find(self, uuid: str, host: HostFacts) -> Slot | None:
        """The slot that a device's ID names which isn't there, or None where it is no slot of ours."""
        target = next((target for (_, device), target in self._targets.items() if device == uuid), None)
        if target is not None:
            return target.slot
        # Of no type that is permitted now: the configuration has changed since a pod got it. Or this is the first look.
        keys = frozenset((parent.name, kind.id) for parent in host.mdev_parents.values() for kind in parent.types)
        if keys != self._searched:
            self._searched = keys
            self._strays.clear()
        if uuid not in self._strays and len(self._strays) < _MOST_STRAYS:
            self._strays[uuid] = find_slot(uuid, sorted(keys))
        return self._strays.get(uuid)


_MOST_STRAYS = 1024


def _is_for_pods(mdev: Mdev) -> bool:
    slot = slot_of(mdev.uuid, mdev.parent, mdev.type_id)
    return slot is not None and slot.purpose == "pods"


def _family(parent: str, host: HostFacts) -> frozenset[str]:
    """The parents on the same card."""
    cards = {place.card for place in places(host) if place.parent.name == parent}
    return frozenset(mate.name for card in cards for mate in card.parents)
