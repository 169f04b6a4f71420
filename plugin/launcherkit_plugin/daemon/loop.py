"""The daemon's one loop: look at the host and at who has what, bring the host closer to the configuration, advertise.

Every turn starts from what is there. Wakeups only make the next turn come sooner; with none there is one each
``rescan_seconds``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, Protocol

from launcherkit.errors import LauncherkitError
from launcherkit.model.function import PciFunction
from launcherkit.model.host import HostFacts
from launcherkit_plugin.allocation.allocator import Allocator, Offer
from launcherkit_plugin.devices.provider import Provider, Reconciler
from launcherkit_plugin.host.scan import Looks, Progress, with_stalled
from launcherkit_plugin.host.watch import Wakeup, WakeupQueue
from launcherkit_plugin.kubelet.advertised import Advertiser
from launcherkit_plugin.model.device import Grant, Resource, Usage
from launcherkit_plugin.telemetry.metrics import Metrics
from launcherkit_plugin.telemetry.reporter import Log, Recorder, changes, log_error

STEP_SECONDS = 0.5
"""For how long a turn waits for what it has begun on the host, before it advertises what there is."""
BREATH_SECONDS = 60.0
"""The longest time in which nothing is heard of the loop."""
TURN_SECONDS = 10.0
"""For how long a turn under way may go on when the daemon ends."""


class Setup(NamedTuple):
    """What a configuration amounts to on this node."""

    providers: tuple[Provider, ...]
    reconcilers: tuple[Reconciler, ...]
    """In the order in which they have their turn at a card."""
    vgpu: bool
    """Whether mediated devices, or virtual functions of vGPU cards, are among the devices."""
    rescan_seconds: float
    learn: Callable[[HostFacts], None]
    """Called once, with the first look."""
    check: Callable[[Sequence[Resource]], None]
    """Raises a `LauncherkitError` where two resources are in each other's way (K6)."""

    def wants(self, function: PciFunction) -> bool:
        """Whether somebody needs the details of a function."""
        wanting: tuple[Provider | Reconciler, ...] = (*self.providers, *self.reconcilers)
        return any(each.wants(function) for each in wanting)


class HealthRecorder(Protocol):
    """See `launcherkit_plugin.telemetry.http.Health`."""

    def turned(self) -> None: ...

    def waiting(self, for_what: str) -> None: ...


class DaemonParts(NamedTuple):
    """What the daemon works with."""

    scan: Callable[[Callable[[PciFunction], bool], bool, Progress], HostFacts]
    """The facts, by which functions are wanted and whether vGPUs are. It blocks."""
    looks: Looks
    read_usage: Callable[[], Awaitable[Usage]]
    reload: Callable[[], Awaitable[Setup | None]]
    """What the configuration says now; None where it says what it did."""
    publish: Callable[[HostFacts, Sequence[Resource]], None]
    """Tell others of the node what there is."""
    clock: Callable[[], float]
    """Seconds, monotonic."""
    log: Log
    metrics: Metrics
    events: Recorder
    health: HealthRecorder


class Daemon:
    """See the module. Whoever makes the advertiser needs the allocator first: it is handed to `run`."""

    def __init__(self, parts: DaemonParts, setup: Setup, allocator: Allocator, wakeups: WakeupQueue) -> None:
        self._parts = parts
        self._setup = setup
        self._allocator = allocator
        self._wakeups = wakeups
        self._facts: HostFacts | None = None
        self._reported: dict[str, Resource] = {}
        self._learned = False
        self._due = 0.0
        self._begun: set[asyncio.Task[bool]] = set()
        """What goes on at the host behind the turns."""
        self._before: tuple[Setup, dict[Provider, tuple[Resource, ...]]] | None = None
        """What was in force before a new configuration, until a whole turn with that has gone well."""
        self._wrong: dict[str, str] = {}
        """What is wrong at the moment, by what it is about: each is reported once."""
        self._offers: dict[str, Offer] = {}
        self._found: dict[Provider, tuple[Resource, ...]] = {}
        self._vgpus = True
        """Whether something on the host may change by itself when something is given away."""

    async def run(self, advertiser: Advertiser, stop: asyncio.Event) -> None:
        """Until ``stop`` is set. What goes wrong in the first turn is raised; later it is reported, and tried again.

        Raises:
            LauncherkitError: the host can't be read at all, or two resources are in each other's way.
        """
        turning = asyncio.create_task(self._turns(advertiser, stop))
        await _first_of(turning, stop)
        if not turning.done():
            await asyncio.wait({turning}, timeout=TURN_SECONDS)
            turning.cancel()
        with suppress(asyncio.CancelledError):
            await turning

    async def _turns(self, advertiser: Advertiser, stop: asyncio.Event) -> None:
        await self._turn(advertiser)
        self._due = self._parts.clock() + self._setup.rescan_seconds
        while wakeups := await self._next_wakeups(stop):
            try:
                if Wakeup.CONFIG in wakeups or Wakeup.TIME in wakeups:
                    await self._reload()
                if wakeups == {Wakeup.GIVEN} and not self._vgpus and self._facts is not None:
                    self._list(self._facts, advertiser)  # nothing but the group members of what was given has changed
                else:
                    await self._turn(advertiser)
                self._take_for_good()
            except LauncherkitError as error:
                if not self._put_back(error):
                    log_error(self._parts.log, error)
            except Exception as bug:
                self._parts.log("error", f"internal error: {type(bug).__name__}: {bug}")

    async def _next_wakeups(self, stop: asyncio.Event) -> frozenset[Wakeup]:
        """What there is to look for; nothing where it is time to end."""
        while not stop.is_set():
            self._parts.health.turned()
            left = self._due - self._parts.clock()
            if left <= 0:  # whatever else there is: wakeups may come again and again
                self._due = self._parts.clock() + self._setup.rescan_seconds
                return frozenset({Wakeup.TIME})
            waiting = asyncio.create_task(self._wakeups.wait(min(left, BREATH_SECONDS)))
            await _first_of(waiting, stop)
            if waiting.done() and waiting.result():
                return waiting.result()
            waiting.cancel()
        return frozenset()

    async def _turn(self, advertiser: Advertiser) -> None:
        read_at = self._parts.clock()
        facts, used = await asyncio.gather(self._look(), self._parts.read_usage())
        if not self._learned:
            self._setup.learn(facts)
            self._learned = True
        if await self._reconcile(facts, self._allocator.saw(used, read_at)):
            facts = await self._look()
        self._advertise(facts, advertiser)
        self._facts = facts
        self._vgpus = bool(facts.mdev_parents) or any(detail.vgpu is not None for detail in facts.details.values())

    async def _look(self) -> HostFacts:
        began = self._parts.clock()
        wanted = self._setup.wants
        facts = await self._parts.looks.look(lambda progress: self._parts.scan(wanted, self._setup.vgpu, progress))
        self._parts.metrics.scanned(self._parts.clock() - began)
        return facts

    async def _reconcile(self, facts: HostFacts, usage: Usage) -> bool:
        """Begin what there is to do on the host, all of it before anybody else is heard. True where it has changed.

        What takes longer goes on, and brings another turn when it has changed something.
        """
        begun = [task for reconciler in self._setup.reconcilers for task in self._begin(reconciler, facts, usage)]
        if not begun:
            return False
        done, late = await asyncio.wait(begun, timeout=STEP_SECONDS)
        for task in late:
            self._begun.add(task)
            task.add_done_callback(self._ended)
        changed = [self._has_changed(task) for task in done]  # of all of them: what failed is reported
        return any(changed)

    def _begin(self, reconciler: Reconciler, facts: HostFacts, usage: Usage) -> Sequence[asyncio.Task[bool]]:
        try:
            return reconciler.reconcile(facts, usage, self._parts.clock())
        except LauncherkitError as error:
            log_error(self._parts.log, error)
        except Exception as bug:  # of one kind of device; the others go on
            self._parts.log("error", f"internal error in {type(reconciler).__name__}: {type(bug).__name__}: {bug}")
        return ()

    def _has_changed(self, task: asyncio.Task[bool]) -> bool:
        try:
            return task.result()
        except LauncherkitError as error:
            log_error(self._parts.log, error)
        except Exception as bug:
            self._parts.log("error", f"internal error at the host: {type(bug).__name__}: {bug}")
        return False

    def _ended(self, task: asyncio.Task[bool]) -> None:
        self._begun.discard(task)
        if not task.cancelled() and self._has_changed(task):
            self._wakeups.give(Wakeup.HOST)

    def _advertise(self, facts: HostFacts, advertiser: Advertiser) -> None:
        """What there is."""
        usage = self._allocator.usage()
        for provider in self._setup.providers:
            self._found[provider] = self._resources_of(provider, facts, usage)
        offered = [
            Offer(resource, provider) for provider in self._setup.providers for resource in self._found[provider]
        ]
        self._offers = {offer.resource.name: offer for offer in self._without_clashes(offered)}
        self._list(facts, advertiser)

    def _list(self, facts: HostFacts, advertiser: Advertiser) -> None:
        """The same with the group members of what pods have Unhealthy (K3)."""
        listed = {name: offer.resource for name, offer in self._allocator.advertise(self._offers, facts).items()}
        advertiser.update(listed.values())
        self._tell(facts, listed)

    def _resources_of(self, provider: Provider, facts: HostFacts, usage: Usage) -> tuple[Resource, ...]:
        try:
            found = provider.resources(facts, usage, self._parts.clock())
            stalled = self._parts.looks.stalled
            return tuple(with_stalled(resource, stalled, usage) for resource in found)
        except Exception as bug:  # of one kind of device: what it had stays, and the others go on
            self._parts.log("error", f"internal error in {type(provider).__name__}: {type(bug).__name__}: {bug}")
            return self._found.get(provider, ())

    def _without_clashes(self, offered: list[Offer]) -> list[Offer]:
        """At the start a clash is an error (K6). A card that is plugged in later doesn't take away what there was."""
        try:
            self._setup.check([offer.resource for offer in offered])
        except LauncherkitError as error:
            if self._facts is None or self._before is not None:
                raise
            if self._is_new("names", error):
                log_error(self._parts.log, error)
            return [offer for offer in offered if offer.resource.name in self._reported]
        self._is_new("names", None)
        return offered

    def _tell(self, facts: HostFacts, listed: dict[str, Resource]) -> None:
        parts = self._parts
        for change in changes(self._reported, listed):
            if self._facts is None and change.type == "Normal":
                continue  # a start is no change of devices that are well
            parts.log("info" if change.type == "Normal" else "warning", change.text, reason=change.reason)
            parts.events.event(change.type, change.reason, change.text)
        if listed != self._reported:
            parts.metrics.devices(list(listed.values()))
        self._reported = listed
        parts.metrics.held_groups(len(held_groups(listed, self._allocator.usage())))
        try:
            parts.publish(facts, list(listed.values()))
            self._is_new("labels", None)
        except LauncherkitError as error:
            if self._is_new("labels", error):
                log_error(parts.log, error)

    async def _reload(self) -> None:
        """Take the new configuration if it is one, and keep the old one if it is wrong."""
        try:
            setup = await self._parts.reload()
        except LauncherkitError as error:
            self._refuse(error)
            return
        if setup is None:
            return
        self._before = self._setup, self._found
        self._setup, self._learned, self._found = setup, False, {}
        self._due = min(self._due, self._parts.clock() + setup.rescan_seconds)

    def _take_for_good(self) -> None:
        """A turn has gone well; with a new configuration that is the proof of it."""
        if self._before is None:
            return
        self._before = None
        self._is_new("configuration", None)
        self._parts.metrics.reloaded("done")
        self._parts.log("info", "the configuration has changed; the new one is in force")
        self._parts.events.event("Normal", "ConfigurationChanged", "the new configuration is in force")

    def _put_back(self, error: LauncherkitError) -> bool:
        """Back to the configuration before, where a new one shows only on the host that it is wrong."""
        if self._before is None:
            return False
        (self._setup, self._found), self._before = self._before, None
        self._learned = True
        self._refuse(error)
        self._wakeups.give(Wakeup.HOST)
        return True

    def _refuse(self, error: LauncherkitError) -> None:
        if self._is_new("configuration", error):
            self._parts.metrics.reloaded("refused")
            log_error(self._parts.log, error)
            self._parts.events.event("Warning", "ConfigurationRefused", f"the old one is kept: {error.message}")

    def _is_new(self, about: str, error: LauncherkitError | None) -> bool:
        """Whether something else is wrong than at the last time; None: nothing is any more."""
        before = self._wrong.pop(about, None)
        if error is not None:
            self._wrong[about] = error.message
        return error is not None and error.message != before


class WakingAllocator:
    """Answers the kubelet, and has the group members of what was given away looked at soon."""

    def __init__(self, allocator: Allocator, wakeups: WakeupQueue) -> None:
        self._allocator = allocator
        self._wakeups = wakeups
        self.prefer = allocator.prefer

    async def allocate(self, resource: str, containers: Sequence[Sequence[str]]) -> list[Grant]:
        """See `launcherkit_plugin.allocation.allocator.Allocator.allocate`.

        Who has asked may hang up in the middle; what has been begun comes to its end, and nothing else is done before.
        """
        return await asyncio.shield(asyncio.create_task(self._allocate(resource, containers)))

    async def check(self, resource: str, ids: Sequence[str]) -> None:
        """See `launcherkit_plugin.allocation.allocator.Allocator.check`; it may make vGPUs again, so the same holds."""
        await asyncio.shield(asyncio.create_task(self._allocator.check(resource, ids)))

    async def _allocate(self, resource: str, containers: Sequence[Sequence[str]]) -> list[Grant]:
        grants = await self._allocator.allocate(resource, containers)
        self._wakeups.give(Wakeup.GIVEN)
        return grants


async def _first_of(task: asyncio.Task[Any], event: asyncio.Event) -> None:
    """Wait until a task is done or an event is set."""
    waiting = asyncio.create_task(event.wait())
    try:
        await asyncio.wait({task, waiting}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        waiting.cancel()


def held_groups(resources: Mapping[str, Resource], usage: Usage) -> set[int]:
    """The IOMMU groups of the devices that pods have."""
    return {
        group
        for name, holders in usage.held.items()
        if name in resources
        for device in holders
        if device in resources[name].devices
        for group in resources[name].devices[device].groups
    }
