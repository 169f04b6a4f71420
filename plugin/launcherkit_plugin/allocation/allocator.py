"""Answers the kubelet from the resources of the last look, from who has what, and by asking the providers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager

from launcherkit.model.host import NO_FACTS, HostFacts
from launcherkit.model.value import NamedTuple
from launcherkit_plugin.allocation.groups import (
    Footprint,
    GroupMembers,
    footprints_of,
    refuse_split,
    with_group_members,
)
from launcherkit_plugin.allocation.preference import prefer
from launcherkit_plugin.allocation.reservations import Reservations
from launcherkit_plugin.allocation.spreading import spread
from launcherkit_plugin.devices.provider import Provider
from launcherkit_plugin.model.device import NO_USAGE, Grant, Holder, Resource, Usage, Wanted
from launcherkit_plugin.model.errors import DeviceTaken, DeviceUnhealthy, UnknownDevice


class Offer(NamedTuple):
    """A resource that is advertised, and who has its devices."""

    resource: Resource
    provider: Provider


class Allocator:
    """Answers Allocate, PreStartContainer and GetPreferredAllocation for all resources."""

    def __init__(self, reservations: Reservations, clock: Callable[[], float]) -> None:
        self._reservations = reservations
        self._clock = clock
        self._offers: Mapping[str, Offer] = {}
        self._resources: Mapping[str, Resource] = {}
        self._footprints: Mapping[str, Footprint] = {}
        self._host = NO_FACTS
        self._usage = NO_USAGE
        self._read_at = clock()

    @property
    def names(self) -> Collection[str]:
        """Of the resources that are advertised."""
        return self._offers.keys()

    def saw(self, usage: Usage, read_at: float) -> Usage:
        """Take note of who has what according to the kubelet; gives that with what was given away since.

        Whoever is going to take something away begins it before the loop does anything else, and so before another
        Allocate. One that comes later finds the card busy (`launcherkit_plugin.host.guarded`), and comes after it.

        Args:
            usage: as it was read.
            read_at: when the reading began, on this allocator's clock.
        """
        self._usage, self._read_at = usage, read_at
        return self.usage()

    def usage(self) -> Usage:
        """Who has what, by what the kubelet said last and what was given away since."""
        return self._reservations.merged(self._usage, self._clock(), self._read_at)

    def advertise(self, offers: Mapping[str, Offer], host: HostFacts) -> dict[str, Offer]:
        """Take what is on offer from now on; gives it with the group members of what pods have Unhealthy (K3).

        Args:
            offers: by resource name.
            host: by which that was found.
        """
        if offers is not self._offers:
            self._offers = offers
            self._resources = {name: offer.resource for name, offer in offers.items()}
            self._footprints = footprints_of(self._resources.values(), host)
        self._host = host
        overlaid = with_group_members(self._members(), self._resources.values(), self.usage())
        return {found.name: offers[found.name]._replace(resource=found) for found in overlaid}

    async def allocate(self, resource: str, containers: Sequence[Sequence[str]]) -> list[Grant]:
        """Give devices to the containers of one pod, all of them or none (K2).

        What is decided here takes no time. What may take some is the provider's, and nobody else waits for it (K9);
        meanwhile the devices are held.

        Args:
            resource: its name.
            containers: the IDs for each. The kubelet asks for one container at a time.

        Raises:
            UnknownDevice, DeviceUnhealthy, GroupSplit, CardInOtherUse: it isn't theirs to have.
            LauncherkitError: the provider's.
        """
        ids = [device for container in containers for device in container]
        offer = self._offer(resource, ids)
        _refuse_unhealthy(offer.resource, ids)
        refuse_split(self._members(), offer.resource, ids)
        with self._reservations.asked({resource: ids}) as holder:
            grants = [await offer.provider.allocate(offer.resource, container) for container in containers]
            self._reservations.reserve(resource, ids, self._clock(), holder)
        return grants

    @asynccontextmanager
    async def claiming(self, holder: Holder, wanted: Sequence[Wanted]) -> AsyncIterator[list[Grant]]:
        """Give devices to a ResourceClaim, all of them or none. They are held while the block runs; after it, what
        `claimed` said is.

        Args:
            holder: the claim.
            wanted: a grant for each entry. A resource may come several times.

        Raises:
            UnknownDevice, DeviceUnhealthy, DeviceTaken, GroupSplit, CardInOtherUse: it isn't the claim's to have.
            LauncherkitError: the providers'.
        """
        offers = [self._offer(each.resource, each.ids) for each in wanted]
        members, usage = self._members(), self.usage()
        held: dict[str, list[str]] = {}
        for offer, (resource, ids, _) in zip(offers, wanted, strict=True):
            _refuse_taken(usage, ids, holder)
            _refuse_unhealthy(offer.resource, ids)
            refuse_split(members, offer.resource, ids, holder)
            held.setdefault(resource, []).extend(ids)
        with self._reservations.asked(held, holder):
            yield [
                await offer.provider.allocate(offer.resource, each.ids, each.wishes)
                for offer, each in zip(offers, wanted, strict=True)
            ]

    def claimed(self, by: str, held: Mapping[str, Mapping[str, Holder]], *, known: bool = True) -> None:
        """What prepared ResourceClaims have from now on: see `Reservations.claimed`."""
        self._reservations.claimed(by, held, known=known)

    def changes_host(self, resource: str) -> bool:
        """Whether to give away devices of a resource may change the host."""
        return resource in self._offers and self._offers[resource].provider.changes_host

    async def check(self, resource: str, ids: Sequence[str]) -> None:
        """Check once more, before the container starts, that its devices are available.

        Raises:
            UnknownDevice: one isn't advertised any more.
            LauncherkitError: the provider's.
        """
        offer = self._offer(resource, ids)
        await offer.provider.check(offer.resource, ids)

    def prefer(self, resource: str, available: Sequence[str], must_include: Sequence[str], size: int) -> list[str]:
        """Which devices a container should rather get (K3); see `launcherkit_plugin.allocation.preference`.

        A companion of what was given away last comes first: the kubelet is asking for the same container. What a group
        member of another pod keeps from being given away comes last: the kubelet asks with the health it heard last.
        """
        offer = self._offers.get(resource)
        if offer is None:
            return prefer({}, available, must_include, size)
        devices, members = offer.resource.devices, self._members()
        blocked = members.blocked(offer.resource, available)
        if offer.resource.replicas:
            return spread(devices, available, must_include, size, blocked, packed=offer.resource.packed)
        since = {
            key: moment
            for key in available
            if key in devices and (moment := members.beside_since(offer.resource, devices[key])) is not None
        }
        first = [*must_include, *sorted(since, key=lambda key: (-since[key], key))]
        first = list(dict.fromkeys(first))[: max(size, len(must_include))]
        return prefer(devices, available, first, size, blocked)

    def _members(self) -> GroupMembers:
        return GroupMembers(self._resources, self._footprints, self.usage(), self._fresh_since, self._host)

    def _fresh_since(self, resource: str, device: str) -> float | None:
        return self._reservations.fresh_since(resource, device, self._clock())

    def _offer(self, resource: str, ids: Sequence[str]) -> Offer:
        offer = self._offers.get(resource)
        for device in ids:
            if offer is None or device not in offer.resource.devices:
                raise UnknownDevice(
                    f"{resource}: there is no device {device[:100]!r}",
                    "It has been removed, or its resource has another name now; the next pod gets another device.",
                    device=device[:100],
                    resource=resource,
                )
        if offer is None:
            raise UnknownDevice(
                f"there is no resource {resource}", "See `launcherkit-plugin discover`.", resource=resource
            )
        return offer


def _refuse_taken(usage: Usage, ids: Collection[str], holder: Holder) -> None:
    """The last line of defence against a device in two claims: whoever allocated it, a claim's device is nobody else's.

    The name of its resource doesn't count: it may have been another when a pod got the device.
    """
    for devices in usage.kept.values():
        for device in ids:
            other = devices.get(device)
            if other is not None and other != holder:
                raise DeviceTaken(
                    f"{device} can't be prepared for {holder}: {other} has it",
                    "It is free once its holder has ended. If the scheduler allocated it twice, see whether two "
                    "drivers, or "
                    "a device plugin and a driver, publish one card.",
                    device=device,
                )


def _refuse_unhealthy(resource: Resource, ids: Sequence[str]) -> None:
    for device in ids:
        problem = resource.devices[device].problem
        if problem is not None:
            raise DeviceUnhealthy(
                f"{resource.name}: {device} is Unhealthy: {problem.text}",
                "Fix what the message names; the device then becomes Healthy by itself. "
                "`launcherkit-plugin discover` shows the state of all.",
                device=device,
                resource=resource.name,
            )
