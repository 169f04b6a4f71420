"""Cards that containers use through the host's driver: which are devices, and whether they are available."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeVar

from launcherkit.host.functions import DEVICES
from launcherkit.host.source import Host
from launcherkit.model.address import PciAddress
from launcherkit.model.host import NO_FACTS, HostFacts, PciFunction, bound_to_vfio, describe
from launcherkit_plugin.devices.container_card import (
    CardAccess,
    CardUuids,
    GrantedCard,
    ReadCard,
    access_by,
    container_grant,
    own_nodes,
    why_unusable,
)
from launcherkit_plugin.devices.grace_list import GraceList
from launcherkit_plugin.devices.names import name_for, variable_name
from launcherkit_plugin.devices.selectors import Selection, primaries
from launcherkit_plugin.host.driver_nodes import NVIDIA
from launcherkit_plugin.host.progress import Progress
from launcherkit_plugin.host.scan import near
from launcherkit_plugin.host.work_queue import TURN_SECONDS, WorkQueue, binding_keys
from launcherkit_plugin.model.config import ContainerBy, ContainerUse, PciRule, Sharing
from launcherkit_plugin.model.device import (
    NO_PREFERENCES,
    Device,
    Grant,
    Preferences,
    Problem,
    Resource,
    Usage,
    share_of,
)
from launcherkit_plugin.model.errors import DEVICE_UNHEALTHY, SHARED_REQUEST_TOO_LARGE

if TYPE_CHECKING:
    from launcherkit_plugin.devices.xid_watch import XidWatch

T = TypeVar("T")

READ_SECONDS = 5.0
"""How long one step of reading a card may take."""


class GivesBack(Protocol):
    """Gives cards that were bound to VFIO on demand (K8) back to their drivers when a container gets one.

    See `launcherkit_plugin.devices.pci.BindsOnDemand`, which is the same object.
    """

    def stays(self, address: PciAddress) -> Problem | None:
        """Why a card that is bound to VFIO can't be given back to its driver; None if it can."""
        ...

    def goes_with(self, address: PciAddress) -> Collection[PciAddress]:
        """The functions that are given back with a card that is bound to VFIO: its own, and the others of their
        groups."""
        ...

    async def give_back(
        self, resource: str, ids: Sequence[str], addresses: Sequence[PciAddress], seconds: float
    ) -> None:
        """Give cards back to their drivers.

        Raises:
            NOT_GIVEN_BACK_ON_DEMAND: one can't be.
            GIVING_BACK_TOO_SLOW: it takes longer than ``seconds``.
            WORK_HANGS: other work on the card hangs.
        """
        ...


class _Read(NamedTuple):
    """What was read of a card, and when to read it again."""

    state: tuple[str | None, bytes | None]
    """Its driver and the number of uevents then. When this changes, the card is read again."""
    access: CardAccess


class ContainerProvider:
    """A `launcherkit_plugin.devices.provider.Provider` for rules whose cards containers can get.

    Args:
        selection: which functions are devices, and their names.
        host: read again at each Allocate.
        read: reads what the driver of a card offers to containers; blocks.
        uuids: UUIDs of cards that have another driver now.
        queue: runs work that may hang.
        gives_back: None if nothing is bound on demand.
        xids: waits for critical errors of cards; None if no rule has asked for it (K15).
        annotate: CDI names are also in an annotation.
    """

    def __init__(
        self,
        selection: Selection,
        host: Host,
        *,
        read: ReadCard,
        uuids: CardUuids,
        queue: WorkQueue,
        gives_back: GivesBack | None = None,
        xids: XidWatch | None = None,
        annotate: bool = False,
    ) -> None:
        self._selection = selection
        self._host = host
        self._read_card = read
        self._uuids = uuids
        self._queue = queue
        self._gives_back = gives_back
        self._xids = xids
        self._annotate = annotate
        self._rules: dict[str, PciRule] = {}
        self._read: dict[PciAddress, _Read] = {}
        self._grace = GraceList()
        self._last = NO_FACTS

    @property
    def changes_host(self) -> bool:
        """See `launcherkit_plugin.devices.provider.Provider.changes_host`."""
        return self._gives_back is not None

    def wants(self, function: PciFunction) -> bool:
        """See `launcherkit_plugin.devices.provider.Provider.wants`."""
        rule = self._selection.may_match(function)
        return rule is not None and "container" in rule.uses

    # What is advertised

    def resources(self, host: HostFacts, usage: Usage, now: float) -> tuple[Resource, ...]:
        """See `launcherkit_plugin.devices.provider.Provider.resources`."""
        self._last = host
        devices_of: dict[str, dict[str, Device]] = {}
        for function, rule in self._cards(host):
            name = name_for(self._selection.name_of(function, rule), rule, "container")
            self._rules[name] = rule
            device = self._device(function, rule, host)
            for key in _ids(device.id, None if rule.dra else rule.sharing):
                devices_of.setdefault(name, {})[key] = device._replace(id=key)
        self._grace.keep(devices_of, host, usage, now)
        return tuple(
            Resource(
                name,
                variable_name(name, rule.environment.prefix),
                devices,
                dra=rule.dra,
                use="container",
                replicas=0 if rule.sharing is None else rule.sharing.replicas,
                most_shares=_most(rule.sharing),
                packed=rule.sharing is not None and rule.sharing.policy == "packed",
            )
            for name, devices in sorted(devices_of.items())
            for rule in (self._rules[name],)
        )

    def _cards(self, host: HostFacts) -> Iterator[tuple[PciFunction, PciRule]]:
        return (
            (function, rule) for function, rule in primaries(self._selection.match, host) if "container" in rule.uses
        )

    def _device(self, function: PciFunction, rule: PciRule, host: HostFacts) -> Device:
        detail = host.details.get(function.address)
        read = self._read.get(function.address)
        address = str(function.address)
        uuid = (read and read.access.uuid) or self._uuids.get(address) or ""
        by_uuid = access_by(rule, function) != "nodes"  # NVIDIA's device plugin uses the UUID as the ID, too
        return Device(
            uuid if uuid and by_uuid else address,
            function.numa_node,
            self._problem(function, rule, host, read and read.access),
            self._groups(function, host),
            (function.address,),
            detail.parents if detail else (),
            describe(function),
            uuid=uuid,
        )

    def _groups(self, function: PciFunction, host: HostFacts) -> frozenset[int]:
        """The IOMMU groups that a container needs: the card's; if it has to be given back, those that go back with it
        (K3)."""
        functions = {function}
        if self._gives_back is not None and bound_to_vfio(function, host.details.get(function.address)):
            along = self._gives_back.goes_with(function.address)
            functions |= {host.functions[each] for each in along if each in host.functions}
        return frozenset(each.iommu_group for each in functions if each.iommu_group is not None)

    def _problem(
        self, function: PciFunction, rule: PciRule, host: HostFacts, access: CardAccess | None
    ) -> Problem | None:
        """Why a container can't get a card now (K5): the first problem that has to be fixed."""
        card, detail = describe(function), host.details.get(function.address)
        if detail is not None and not detail.config_readable:
            return Problem("config-space", f"{card} has fallen off the bus: its config space reads all ones")
        if bound_to_vfio(function, detail):
            if self._gives_back is not None:
                return self._gives_back.stays(function.address)
            return Problem("driver", f"{card} is bound to {function.driver}; containers need the driver of the host")
        if function.driver is None:
            return Problem("driver", f"{card} has no driver; containers need that of the host")
        if self._xids is not None and (failure := self._xids.problem(function.address)) is not None:
            return failure
        if access is None:
            return Problem("node", f"{card}: what its driver has for containers has not been read")
        lacks = why_unusable(rule.container or ContainerUse(), access_by(rule, function), access)
        return None if lacks is None else Problem("node", f"{card}: {lacks}")

    def look_at(self, host: HostFacts) -> None:
        """Read what the drivers of all cards offer to containers, and store it nowhere; blocks."""
        for function, _ in self._cards(host):
            if _has_host_driver(function, host):
                access = self._read_card(function.address)
                self._read[function.address] = _Read((function.driver, host.events), access)

    def reconcile(self, host: HostFacts, usage: Usage, now: float) -> Sequence[asyncio.Task[bool]]:  # noqa: ARG002
        """See `launcherkit_plugin.devices.provider.Reconciler`: reads what has changed, and changes nothing."""
        cards = [*self._cards(host)]
        if self._xids is not None:
            self._xids.watch(
                {
                    function.address: rule.health.ignored
                    for function, rule in cards
                    if rule.health is not None and rule.health.xid
                    if (function.vendor, function.driver) == (NVIDIA, "nvidia")  # VFIO's cards are never asked
                }
            )
        tasks = []
        for function, _ in cards:
            address, state = function.address, (function.driver, host.events)
            if not _has_host_driver(function, host):
                self._read.pop(address, None)
                continue
            read = self._read.get(address)
            if read is None or read.state != state or host.events is None:
                begun = self._queue.begin(
                    str(address), f"reading {address}", partial(self._read_card, address), READ_SECONDS
                )
                if begun is not None:
                    tasks.append(asyncio.create_task(self._end(begun, address, state)))
        return tasks

    async def _end(
        self, begun: asyncio.Future[CardAccess], address: PciAddress, state: tuple[str | None, bytes | None]
    ) -> bool:
        return self._note(address, state, await begun)

    def _note(self, address: PciAddress, state: tuple[str | None, bytes | None], access: CardAccess) -> bool:
        """Note what was read of a card; returns whether it has changed."""
        before = self._read.get(address)
        self._read[address] = _Read(state, access)
        if access.uuid is not None:
            self._uuids.update(str(address), access.uuid)
        return before is None or before.access != access

    # What a container gets

    async def allocate(self, resource: Resource, ids: Sequence[str], wishes: Preferences = NO_PREFERENCES) -> Grant:  # noqa: ARG002
        """See `launcherkit_plugin.devices.provider.Provider.allocate`.

        Raises:
            SHARED_REQUEST_TOO_LARGE: the rule allows a container, or a request of a claim, only one replica.
        """
        rule = self._rules[resource.name]
        if rule.sharing is not None and rule.sharing.one_a_request and len(ids) > 1:
            raise SHARED_REQUEST_TOO_LARGE(
                f"{resource.name}: a container requests {len(ids)} of it, and its cards are shared: at most one is "
                "allowed",
                "Request one: more of them don't give a container a larger share. Or leave out "
                "failRequestsGreaterThanOne in the configuration.",
                resource=resource.name,
            )
        cards = _cards_of(resource, ids)
        seconds, began = rule.bind_seconds if rule.on_demand else TURN_SECONDS, monotonic()
        await self._queue.quiet(binding_keys(resource, ids), seconds)  # one may be on its way to another driver
        if self._gives_back is not None:
            host = await self._look(cards, self._facts)
            away = [address for address in cards if _is_on_vfio(address, host)]
            if away:
                await self._gives_back.give_back(resource.name, ids, away, seconds - (monotonic() - began))
        use = rule.container or ContainerUse()
        looks = [GrantedCard(use, *each) for each in await self._look_again(resource, cards)]
        grant = container_grant(looks, annotate=self._annotate)
        if not resource.dra:
            return grant
        nodes = dict(zip(cards, map(own_nodes, looks), strict=True))  # a claim may have several shares of one
        return grant._replace(each={key: nodes[resource.devices[key].functions[0]] for key in ids})

    async def check(self, resource: Resource, ids: Sequence[str]) -> None:
        """See `launcherkit_plugin.devices.provider.Provider.check`."""
        await self._look_again(resource, _cards_of(resource, ids))

    async def _look(self, cards: Sequence[PciAddress], work: Callable[[Sequence[PciAddress], Progress], T]) -> T:
        touched = dict.fromkeys(map(str, (*cards, *near(cards, self._last))))
        return await self._queue.look(touched, partial(work, cards), stall=READ_SECONDS)

    def _facts(self, cards: Sequence[PciAddress], progress: Progress) -> HostFacts:
        return self._host.followed(progress.open_tree).facts(cards)

    def _read_cards(
        self, cards: Sequence[PciAddress], progress: Progress
    ) -> tuple[HostFacts, dict[PciAddress, CardAccess]]:
        """Read cards, and what their drivers offer now; blocks."""
        host, access = self._facts(cards, progress), {}
        for address in cards:
            function = host.functions.get(address)
            if function is not None and _has_host_driver(function, host):
                progress.to(f"/{DEVICES}/{address}")
                access[address] = self._read_card(address)
        return host, access

    async def _look_again(
        self, resource: Resource, cards: Sequence[PciAddress]
    ) -> list[tuple[ContainerBy, CardAccess]]:
        """How a container gets each card, and what its driver offers now.

        Raises:
            DEVICE_UNHEALTHY: a container can't get one.
            WORK_HANGS: reading one hangs.
        """
        host, access = await self._look(cards, self._read_cards)
        return [self._access(resource, address, host, access.get(address, _NOTHING)) for address in cards]

    def _access(
        self, resource: Resource, address: PciAddress, host: HostFacts, access: CardAccess
    ) -> tuple[ContainerBy, CardAccess]:
        rule, function = self._rules[resource.name], host.functions.get(address)
        if function is None:
            problem: Problem | None = Problem("gone", f"{address} is no longer in sysfs")
        else:
            problem = self._problem(function, rule, host, access)
            if problem is None and bound_to_vfio(function, host.details.get(address)):
                problem = Problem("driver", f"{describe(function)} is bound to {function.driver} again")
        if function is None or problem is not None:
            raise DEVICE_UNHEALTHY(
                f"{resource.name}: {address} is no longer available: {problem and problem.text}",
                "Fix what the message names; the device then becomes Healthy by itself, but after an Xid only when the "
                "plugin starts anew.",
                device=str(address),
                resource=resource.name,
            )
        return access_by(rule, function), access


_NOTHING = CardAccess((), None, None)


def _ids(card: str, sharing: Sharing | None) -> Iterator[str]:
    """The IDs of a card: its own, or one for each replica, formed as by NVIDIA's device plugin."""
    return (share_of(card, str(number)) for number in range(sharing.replicas)) if sharing else iter((card,))


def _most(sharing: Sharing | None) -> int:
    """How many shares of a card one request may take."""
    if sharing is None:
        return 0
    return 1 if sharing.one_a_request else sharing.replicas


def _cards_of(resource: Resource, ids: Iterable[str]) -> list[PciAddress]:
    """The cards of device IDs, each once; several replicas may belong to one card."""
    return list(dict.fromkeys(resource.devices[key].functions[0] for key in ids))


def _is_on_vfio(address: PciAddress, host: HostFacts) -> bool:
    function = host.functions.get(address)
    return function is not None and bound_to_vfio(function, host.details.get(address))


def _has_host_driver(function: PciFunction, host: HostFacts) -> bool:
    return function.driver is not None and not bound_to_vfio(function, host.details.get(function.address))
