"""Devices of one IOMMU group never go to two pods (K3), nor do a card and a vGPU on it.

Containers that use cards through the host's driver are an exception (K10).
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeAlias

from launcherkit.model.address import PciAddress
from launcherkit.model.host import NO_FACTS, HostFacts, group_of
from launcherkit_plugin.model.config import CardUse
from launcherkit_plugin.model.device import (
    Device,
    Holder,
    Problem,
    Resource,
    Usage,
    is_share,
    share_of,
    without_replica,
)
from launcherkit_plugin.model.errors import CARD_IN_OTHER_USE, GROUP_SPLIT

FreshSince: TypeAlias = Callable[[str, str], float | None]
"""When a device (resource, ID) was allocated, if that was a moment ago: `Reservations.fresh_since`."""


class _Held(NamedTuple):
    """A device that a pod has."""

    resource: str
    device: str
    holder: Holder
    use: CardUse
    """A container's card keeps the host's driver, and other containers may have devices of its group."""
    card: PciAddress | str
    """See `_card_id`."""


class Footprint(NamedTuple):
    """What a device occupies on the host, from which conflicts between devices are found."""

    groups: frozenset[int]
    """IOMMU groups."""
    cards: frozenset[str] = frozenset()
    """Of a vGPU, its card; of another device, those of its functions that have vGPUs."""
    is_vgpu: bool = False
    primary: PciAddress | None = None
    """The primary function, whose card it is; None for an mdev."""


_NOTHING = Footprint(frozenset())


def footprints_of(resources: Collection[Resource], host: HostFacts = NO_FACTS) -> dict[str, Footprint]:
    """The footprint of each advertised device, by ID; that of a card for containers by each of its IDs
    (`Device.card_ids`).

    Args:
        resources: all that are advertised.
        host: facts, for mdevs that others have created.
    """
    vgpus = {device.card for each in resources for device in each.devices.values() if device.card}
    vgpus.update(_card_of(uuid, host) for uuid in host.mdevs)
    footprints: dict[str, Footprint] = {}
    for resource in resources:
        for key, device in resource.devices.items():
            card = device.card or _card_of(key, host)  # empty for an mdev of a type that no rule permits any more
            cards = {card} if card else vgpus.intersection(map(str, device.functions)) if vgpus else ()
            before = footprints.get(key, _NOTHING)
            primary = device.functions[0] if device.functions else None
            footprints[key] = Footprint(before.groups | device.groups, before.cards.union(cards), card != "", primary)
            for other in device.card_ids if resource.use == "container" else ():
                footprints.setdefault(other, footprints[key])
    return footprints


class GroupMembers:
    """The devices that pods have, by IOMMU group and card, at one moment.

    Args:
        resources: all that are advertised, by name.
        footprints: of their devices (`footprints_of`).
        usage: who has which device. Devices are found by ID alone: the resource may have had another name when the
            device was allocated, or another device plugin allocated it.
        fresh_since: see `FreshSince`.
        host: facts, for devices that pods have and that aren't advertised any more.
    """

    def __init__(
        self,
        resources: Mapping[str, Resource],
        footprints: Mapping[str, Footprint],
        usage: Usage,
        fresh_since: FreshSince,
        host: HostFacts,
    ) -> None:
        self._resources = resources
        self._footprints = footprints
        self._usage = usage
        self._fresh_since = fresh_since
        self._held: dict[int, list[_Held]] = {}
        """By group."""
        self._on_card: dict[tuple[str, bool], list[_Held]] = {}
        """By card, and whether it is a vGPU of it."""
        self._in_containers: dict[PciAddress | str, list[_Held]] = {}
        """By the card (`_card_id`)."""
        for name, holders in usage.held.items():
            for key, holder in holders.items():
                footprint = footprints.get(key) or footprints.get(without_replica(key)) or _footprint_of(key, host)
                held = _Held(name, key, holder, self._use(name, key), _card_id(key, footprint.primary))
                if held.use == "container":
                    self._in_containers.setdefault(held.card, []).append(held)
                for group in footprint.groups:
                    self._held.setdefault(group, []).append(held)
                for card in footprint.cards:
                    self._on_card.setdefault((card, footprint.is_vgpu), []).append(held)

    def blocker(
        self, resource: Resource, device: Device, beside: Collection[str] = (), own: Holder | None = None
    ) -> Problem | None:
        """Why a device can't go to a pod that has none of its group; None if it can.

        Args:
            resource: of the device.
            device: what is asked for.
            beside: IDs of the same resource that go to the same container.
            own: who asks; if None, whoever has the device already.
        """
        for group, held in self._others(resource, device):
            if held.resource == resource.name and held.device in beside:
                continue
            asker = own or self._usage.holder(resource.name, device.id)
            if asker is not None and _one_pod(asker, held.holder):
                continue
            if self._goes_with(resource, device, held) and self._fresh_since(held.resource, held.device) is not None:
                continue
            if held.use == resource.use == "container":
                return Problem("other-use", f"{held.holder} has it as {held.resource}")
            if group is None:
                holding = f"its card, {device.card}," if device.card else "a vGPU of it"
                return Problem("other-use", f"{held.holder} has {holding} as {held.resource}")
            if held.use != resource.use and held.card in (without_replica(device.id), *device.functions):
                return Problem("other-use", f"{held.holder} has it as {held.resource}")
            holding = "it" if held.device == device.id else held.device
            return Problem("group-in-use", f"{held.holder} has {holding}, which shares IOMMU group {group}")
        return None

    def blocked(self, resource: Resource, ids: Iterable[str]) -> list[str]:
        """The devices that would be refused; first those that would be accepted if all of ``ids`` went together."""
        beside = frozenset(ids)
        devices = (resource.devices[key] for key in dict.fromkeys(ids) if key in resource.devices)
        alone = [device for device in devices if self.blocker(resource, device) is not None]
        blocked_together = {device.id for device in alone if self.blocker(resource, device, beside) is not None}
        return sorted((device.id for device in alone), key=lambda key: (key in blocked_together, key))

    def beside_since(self, resource: Resource, device: Device) -> float | None:
        """When another function of the same card was allocated, if that was a moment ago and one of the two is a
        companion of the other."""
        since = [
            self._fresh_since(held.resource, held.device)
            for _, held in self._others(resource, device)
            if self._goes_with(resource, device, held)
        ]
        return max((moment for moment in since if moment is not None), default=None)

    def _others(self, resource: Resource, device: Device) -> Iterator[tuple[int | None, _Held]]:
        """Devices of other pods that conflict with this one.

        First come those in its IOMMU groups, each with the number of the group. Then, with None as the number, come
        those on its card: the whole card for a vGPU, and vGPUs for a whole card. A card that containers use is also in
        conflict with itself, unless both containers get a shared replica of it.
        """
        for group in sorted(device.groups):
            for held in self._held.get(group, ()):
                if held.use == resource.use == "container":
                    continue
                if held.device != device.id or held.resource != resource.name:
                    yield group, held
        footprint = self._footprints.get(device.id) or self._footprints.get(without_replica(device.id), _NOTHING)
        for card in sorted(footprint.cards):
            for held in self._on_card.get((card, not footprint.is_vgpu), ()):
                yield None, held
        if resource.use != "container":
            return
        for held in self._in_containers.get(_card_id(device.id, footprint.primary), ()):
            shared = is_share(device.id) and is_share(held.device)
            if not shared and (held.resource, held.device) != (resource.name, device.id):
                yield None, held

    def _use(self, resource: str, device: str) -> CardUse:
        """What a pod has a device for. If its resource isn't advertised any more, the form of the ID tells."""
        advertised = self._resources.get(resource)
        if advertised is not None:
            return advertised.use
        return "container" if device.startswith("GPU-") or is_share(device) else "vm"

    def _goes_with(self, resource: Resource, device: Device, held: _Held) -> bool:
        """Whether both are functions of one card and the resource of one is a companion."""
        other = self._resources.get(held.resource)
        beside = other is not None and other.name != resource.name and (resource.companion or other.companion)
        return beside and _slot(device.id) == _slot(held.device)


def _card_id(key: str, primary: PciAddress | None) -> PciAddress | str:
    """What identifies the card of a device, whatever the form of its ID: its primary if that is known, else the ID."""
    return without_replica(key) if primary is None else primary


def _slot(key: str) -> str:
    """``0000:e1:00`` of ``0000:e1:00.1``."""
    return key.rpartition(".")[0]


def _footprint_of(key: str, host: HostFacts) -> Footprint:
    """The footprint of an mdev by UUID, or of a function by BDF; empty for any other ID."""
    if key in host.mdevs:
        return Footprint(frozenset(), frozenset({_card_of(key, host)}), is_vgpu=True)
    try:
        address = PciAddress.parse(key)
    except ValueError:
        return _NOTHING
    group = group_of(address, host)
    return Footprint(frozenset() if group is None else frozenset({group}), frozenset({key}), primary=address)


def _card_of(key: str, host: HostFacts) -> str:
    """The card of an mdev (`launcherkit_plugin.vgpu.cards`); empty if the ID is no mdev's."""
    if key not in host.mdevs:
        return ""
    name = host.mdevs[key].parent
    parent = host.mdev_parents.get(name)
    return name if parent is None or parent.address is None else str(host.physical_function(parent.address))


def _one_pod(one: Holder, other: Holder) -> bool:
    """Whether two holders are one pod. If they have no names yet, only holders from the same call are."""
    return one.pod == other.pod if one.pod else one == other


def with_group_members(members: GroupMembers, resources: Iterable[Resource], usage: Usage) -> tuple[Resource, ...]:
    """Resources in which the group members of pods' devices are Unhealthy. A pod's own devices stay Healthy (K4).

    With DRA, devices that the device plugin allocated are Unhealthy too: the scheduler doesn't know of them (D4).
    """
    by_plugin = {
        key: holder for devices in usage.kept.values() for key, holder in devices.items() if holder.claim is None
    }
    return tuple(_overlaid(resource, members, usage, by_plugin if resource.dra else {}) for resource in resources)


def _overlaid(resource: Resource, members: GroupMembers, usage: Usage, by_plugin: Mapping[str, Holder]) -> Resource:
    """The same resource, if nothing blocks its Healthy devices: comparing it with itself costs nothing."""
    problems: dict[str, Problem] = {}
    for key, device in resource.devices.items():
        if not device.healthy:
            continue
        if key in by_plugin:
            problems[key] = Problem("group-in-use", f"{by_plugin[key]} has {key}")
        elif usage.holder(resource.name, key) is None:
            # What can be allocated of a shared card is a share, which another that somebody has doesn't prevent.
            asked = share_of(key, "next") if resource.dra and resource.replicas else key
            problem = members.blocker(resource, device._replace(id=asked))
            if problem is not None:
                problems[key] = problem._replace(text=f"{key}: {problem.text}")
    if not problems:
        return resource
    overlaid = {key: resource.devices[key]._replace(problem=problem) for key, problem in problems.items()}
    return resource._replace(devices={**resource.devices, **overlaid})


def refuse_split(members: GroupMembers, resource: Resource, ids: Sequence[str], own: Holder | None = None) -> None:
    """Check that no other pod has a device of the same groups; the arguments are those of `GroupMembers.blocker`.

    Raises:
        CARD_IN_OTHER_USE: a pod has the card for another use; names the pod and the resource.
        GROUP_SPLIT: a pod has a device of the group; names both devices, the group and the pod.
    """
    beside = frozenset(ids)
    for device in ids:
        problem = members.blocker(resource, resource.devices[device], beside, own)
        if problem is not None and problem.reason == "other-use":
            raise CARD_IN_OTHER_USE(
                f"{resource.name}: {device} can't be allocated: {problem.text}",
                "Wait until that pod has ended; the next pod gets another card if there is one.",
                device=device,
                resource=resource.name,
            )
        if problem is not None:
            raise GROUP_SPLIT(
                f"{resource.name}: {device} can't be allocated: {problem.text}",
                "Ask for all devices of the group in one container, wait until that pod has ended, or give the cards "
                "groups of their own, by another PCIe slot or ACS.",
                device=device,
                resource=resource.name,
            )
