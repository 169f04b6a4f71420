"""Answers the kubelet, from the resources and the usage of the loop's last turn and by asking the providers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, NamedTuple

from launcherkit.errors import LauncherkitError
from launcherkit.model.host import NO_FACTS, HostFacts
from launcherkit_plugin.allocation.groups import (
    Footprint,
    GroupMembers,
    footprints_of,
    refuse_split,
    with_group_members,
)
from launcherkit_plugin.allocation.preference import prefer, prefer_partitions, spread
from launcherkit_plugin.allocation.reservations import Reservations
from launcherkit_plugin.devices.provider import Provider
from launcherkit_plugin.model.device import NO_USAGE, Desired, Grant, Holder, Resource, Usage, with_cards, with_shares
from launcherkit_plugin.model.errors import DEVICE_TAKEN, DEVICE_UNHEALTHY, UNKNOWN_DEVICE
from launcherkit_plugin.model.same_device import AskingPod
from launcherkit_plugin.model.wakeups import Wakeup

if TYPE_CHECKING:
    from launcherkit_plugin.allocation.keeper import Keeper


class Offer(NamedTuple):
    """An advertised resource and the provider of its devices."""

    resource: Resource
    provider: Provider


class Allocator:
    """Answers Allocate, PreStartContainer and GetPreferredAllocation for all resources.

    Args:
        reservations: what was allocated and isn't in the kubelet's answer yet.
        clock: seconds, monotonic.
        wake: wakes the loop, which updates the health of what shares a group with an allocated device.
    """

    def __init__(
        self,
        reservations: Reservations,
        clock: Callable[[], float],
        wake: Callable[[Wakeup], object] = lambda _: None,
    ) -> None:
        self._reservations = reservations
        self._clock = clock
        self._wake = wake
        self._offers: Mapping[str, Offer] = {}
        self._resources: Mapping[str, Resource] = {}
        self._footprints: Mapping[str, Footprint] = {}
        self._host = NO_FACTS
        self.keeper: Keeper | None = None
        """Keeps devices for VMs; None: no rule asks for that."""
        self._usage = NO_USAGE
        self._read_at = clock()

    @property
    def names(self) -> Collection[str]:
        """The names of the advertised resources."""
        return self._offers.keys()

    def observe(self, usage: Usage, read_at: float) -> Usage:
        """Note the usage that the kubelet reports; returns it with what was allocated since.

        A caller that will take a device away must begin that work before it gives control back to the event loop, and
        so before the next Allocate. An Allocate that comes later finds the card busy, and waits
        (`launcherkit_plugin.host.work_queue`).

        Args:
            usage: as it was read.
            read_at: when reading began, on this allocator's clock.
        """
        self._usage, self._read_at = usage, read_at
        return self.usage()

    def usage(self) -> Usage:
        """Who has which device: what the kubelet reported last, with what was allocated since."""
        return with_cards(self._reservations.merged(self._usage, self._clock(), self._read_at))

    def advertise(self, offers: Mapping[str, Offer], host: HostFacts) -> dict[str, Offer]:
        """Set what is advertised from now on; returns it with the group members of pods' devices Unhealthy (K3).

        Args:
            offers: by resource name.
            host: the facts from which they were made.
        """
        if offers is not self._offers:
            self._offers = offers
            self._resources = {name: offer.resource for name, offer in offers.items()}
            self._footprints = footprints_of(self._resources.values(), host)
        self._host = host
        return self.listed()

    def listed(self) -> dict[str, Offer]:
        """What is advertised, as usage is now."""
        offers, usage = self._offers, self.usage()
        overlaid = with_group_members(self._members(), self._resources.values(), usage)
        if self.keeper is not None:
            overlaid = self.keeper.overlaid(overlaid, usage)
        return {found.name: offers[found.name]._replace(resource=found) for found in overlaid}

    async def allocate(self, resource: str, containers: Sequence[Sequence[str]]) -> list[Grant]:
        """Allocate devices to the containers of one pod: all of them, or none (K2).

        The checks here take no time. The provider may take some; other calls don't wait for it (K9), and the devices
        are held meanwhile. If the caller hangs up while the host is being changed, the change is still completed.

        Args:
            resource: its name.
            containers: the device IDs for each container. The kubelet asks for one container at a time.

        Raises:
            UNKNOWN_DEVICE, DEVICE_UNHEALTHY, GROUP_SPLIT, CARD_IN_OTHER_USE: a device can't be allocated to this pod.
            DEVICE_KEPT, CALLER_UNKNOWN: the same, because a device is kept for a VM.
            LauncherkitError: from the provider.
        """
        work = self._allocate(resource, containers)
        if resource in self._offers and self._offers[resource].provider.changes_host:
            return await asyncio.shield(asyncio.create_task(work))
        return await work

    async def _allocate(self, resource: str, containers: Sequence[Sequence[str]]) -> list[Grant]:
        ids = [device for container in containers for device in container]
        try:
            keeper = self._keeper_of(resource)
            if keeper is not None:
                await keeper.check(resource, ids)  # before the others, which decide at once
            offer = self._offer(resource, ids)
            _refuse_unhealthy(offer.resource, ids)
            refuse_split(self._members(), offer.resource, ids)
            with self._reservations.holding({resource: ids}) as holder:
                grants = [await offer.provider.allocate(offer.resource, container) for container in containers]
                self._reservations.reserve(resource, ids, self._clock(), holder)
        except LauncherkitError:
            self._wake(Wakeup.HOST)  # the health of the refused devices may have to be updated
            raise
        self._wake(Wakeup.ALLOCATED)
        return grants

    @asynccontextmanager
    async def claiming(
        self, holder: Holder, desired: Sequence[Desired], asking: AskingPod | None = None
    ) -> AsyncIterator[list[Grant]]:
        """Allocate devices to a ResourceClaim: all of them, or none. They are held while the block runs. After
        it, only those that were passed to `claimed` stay held.

        Args:
            holder: the claim.
            desired: the devices; each entry gets a grant. A resource may occur several times.
            asking: the claim's VM, and what it asks for.

        Raises:
            UNKNOWN_DEVICE, DEVICE_UNHEALTHY, DEVICE_TAKEN, GROUP_SPLIT, CARD_IN_OTHER_USE: it can't have a device.
            LauncherkitError: from the providers.
        """
        offers = [self._offer(each.resource, each.ids) for each in desired]
        members, usage = self._members(), self.usage()
        together = tuple(key for each in desired for key in each.ids)
        held: dict[str, list[str]] = {}
        for offer, (resource, ids, _) in zip(offers, desired, strict=True):
            _refuse_taken(usage, ids, holder)
            _refuse_unhealthy(offer.resource, ids)
            refuse_split(members, offer.resource, ids, holder)
            held.setdefault(resource, []).extend(ids)
        with self._reservations.holding(held, holder):
            grants = [
                await offer.provider.allocate(offer.resource, ids, wishes._replace(together=together))
                for offer, (_, ids, wishes) in zip(offers, desired, strict=True)
            ]
            for resource, ids in held.items():
                keeper = self._keeper_of(resource)
                if keeper is not None and asking is not None:
                    await keeper.record(self._offers[resource].resource, str(holder), asking, ids)
            yield grants
        self._wake(Wakeup.ALLOCATED)

    def claimed(self, by: str, held: Mapping[str, Mapping[str, Holder]], *, complete: bool = True) -> None:
        """Set which devices prepared ResourceClaims have: see `Reservations.claimed`."""
        if self._reservations.claimed(by, held, complete=complete):
            self._wake(Wakeup.PODS)

    async def check(self, resource: str, ids: Sequence[str]) -> None:
        """Check once more, before the container starts, that its devices are available.

        This may create vGPUs, and is completed even if the caller hangs up.

        Raises:
            UNKNOWN_DEVICE: one isn't advertised any more.
            LauncherkitError: from the provider.
        """
        offer = self._offer(resource, ids)
        keeper = self._keeper_of(resource)
        if keeper is not None:
            await keeper.starting(offer.resource, ids)
        await asyncio.shield(asyncio.create_task(offer.provider.check(offer.resource, ids)))

    async def preferred(
        self, resource: str, available: Sequence[str], must_include: Sequence[str], size: int
    ) -> list[str]:
        """As `prefer`; what the pod's VM had comes first, and what is kept for other VMs last."""
        keeper = self._keeper_of(resource)
        if keeper is not None:
            first, last = await keeper.order(resource, available)
            spare = [key for key in available if key not in last]
            available = [*spare, *last[: max(0, size - len(spare))]]
            must_include = list(dict.fromkeys([*must_include, *first]))[:size]
        return self.prefer(resource, available, must_include, size)

    def _keeper_of(self, resource: str) -> Keeper | None:
        """What keeps devices of a resource; None if nothing does."""
        offer = self._offers.get(resource)
        return self.keeper if offer is not None and offer.resource.same_device else None

    def prefer(self, resource: str, available: Sequence[str], must_include: Sequence[str], size: int) -> list[str]:
        """Which devices a container should preferably get (K3); see `launcherkit_plugin.allocation.preference`.

        Companions of what was just allocated come first: the kubelet is probably asking for the same container. Devices
        that share a group with another pod's come last; they are in the list only if the kubelet hasn't heard yet that
        they are Unhealthy.
        """
        offer = self._offers.get(resource)
        if offer is None:
            return prefer({}, available, must_include, size)
        devices, members = offer.resource.devices, self._members()
        blocked = members.blocked(offer.resource, available)
        if offer.resource.replicas:
            return spread(devices, available, must_include, size, blocked, packed=offer.resource.packed)
        if offer.resource.sets or offer.resource.cards:
            partitions = [whole for each in self._resources.values() for whole in each.sets]
            cards = {key: card for each in self._resources.values() for key, card in each.card_of.items()}
            taken = {cards.get(key, key) for key in self.usage().held_ids}
            return prefer_partitions(offer.resource, partitions, taken, available, must_include, size, blocked)
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
        if offer is not None:
            offer = offer._replace(resource=with_shares(offer.resource, ids))
        for device in ids:
            if offer is None or device not in offer.resource.devices:
                raise UNKNOWN_DEVICE(
                    f"{resource}: there is no device {device[:100]!r}",
                    "It has been removed, or its resource has another name now; the next pod gets another device.",
                    device=device[:100],
                    resource=resource,
                )
        if offer is None:
            raise UNKNOWN_DEVICE(
                f"there is no resource {resource}", "See `launcherkit-plugin discover`.", resource=resource
            )
        return offer


def _refuse_taken(usage: Usage, ids: Collection[str], holder: Holder) -> None:
    """The last line of defence against one device in two claims, or in a claim and a pod.

    The resource's name is ignored: it may have been another when a pod got the device.
    """
    for devices in usage.kept.values():
        for device in ids:
            other = devices.get(device)
            if other is not None and other != holder:
                raise DEVICE_TAKEN(
                    f"{device} can't be prepared for {holder}: {other} has it",
                    "It is free once its holder has ended. If the scheduler allocated it twice, see whether two "
                    "drivers, or a device plugin and a driver, publish one card.",
                    device=device,
                )


def _refuse_unhealthy(resource: Resource, ids: Sequence[str]) -> None:
    for device in ids:
        problem = resource.devices[device].problem
        if problem is not None:
            raise DEVICE_UNHEALTHY(
                f"{resource.name}: {device} is Unhealthy: {problem.text}",
                "Fix what the message names; the device then becomes Healthy by itself. "
                "`launcherkit-plugin discover` shows the state of all.",
                device=device,
                resource=resource.name,
            )
