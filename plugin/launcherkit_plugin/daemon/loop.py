"""The daemon's one loop: look at the host and at who has what, bring the host closer to the configuration, advertise.

Every turn starts from what is there. Wakeups only make the next turn come sooner; with none there is one each
``rescan_seconds``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from time import monotonic
from typing import Any

from launcherkit.errors import LauncherkitError
from launcherkit.model.host import HostFacts
from launcherkit.model.value import NamedTuple
from launcherkit_plugin.allocation.allocator import Allocator, Offer
from launcherkit_plugin.daemon.wiring import Setup
from launcherkit_plugin.devices.provider import Provider, Reconciler
from launcherkit_plugin.host.scan import Looks, with_stalled
from launcherkit_plugin.kubelet.advertised import Advertiser
from launcherkit_plugin.model.config import DraConfig
from launcherkit_plugin.model.device import Grant, Resource, Usage
from launcherkit_plugin.model.wakeups import Wakeup, WakeupQueue
from launcherkit_plugin.telemetry.reporter import Reporter, changes

STEP_SECONDS = 0.5
"""For how long a turn waits for what it has begun on the host, before it advertises what there is."""
BREATH_SECONDS = 60.0
"""The longest time between two calls of ``turned`` while the loop waits."""
TURN_SECONDS = 10.0
"""For how long a turn under way may go on when the daemon ends."""
REGISTRATION_SECONDS = 0.2
"""Between the first list and the look at the whole host, which would compete with the kubelet's first calls."""


class Outlets(NamedTuple):
    """Who is told what there is, beside the kubelet."""

    publish: Callable[[HostFacts, Sequence[Resource], DraConfig | None], None]
    """Others of the node, by which configuration of the DRA driver, when it has changed; may raise a
    `LauncherkitError`."""
    show: Callable[[HostFacts, Sequence[Resource], Usage], None]
    """Who shows it with who has what; after every look, and when something was given away."""


class Daemon:
    """See the module. Whoever makes the advertiser needs the allocator first: it is handed to `run`.

    Args:
        setup: what the configuration amounts to at the start.
        read_usage: who has what.
        reload: what the configuration says now; None where it says what it did.
        outlets: who else is told.
    """

    def __init__(
        self,
        setup: Setup,
        allocator: Allocator,
        wakeups: WakeupQueue,
        reporter: Reporter,
        *,
        looks: Looks,
        read_usage: Callable[[], Awaitable[Usage]],
        reload: Callable[[], Awaitable[Setup | None]],
        outlets: Outlets,
    ) -> None:
        self._setup = setup
        self._allocator = allocator
        self._wakeups = wakeups
        self._reporter = reporter
        self._looks = looks
        self._read_usage = read_usage
        self._read_setup = reload
        self._outlets = outlets
        self._turned: Callable[[], None] = lambda: None
        self._facts: HostFacts | None = None
        self._reported: dict[str, Resource] = {}
        self._learned = False
        self._due = 0.0
        self._begun: set[asyncio.Task[bool]] = set()
        """Work on the host that outlasts its turn."""
        self._before: tuple[Setup, dict[Provider, tuple[Resource, ...]]] | None = None
        """What was in force before a new configuration, until a whole turn with that has succeeded."""
        self._offers: dict[str, Offer] = {}
        self._found: dict[Provider, tuple[Resource, ...]] = {}
        self._vgpus = True
        """Whether something on the host may change by itself when something is given away."""

    async def run(self, advertiser: Advertiser, stop: asyncio.Event, turned: Callable[[], None]) -> None:
        """Until ``stop`` is set. What goes wrong in the first turn is raised; later it is reported, and tried again.

        Args:
            turned: called whenever the loop has come round.

        Raises:
            LauncherkitError: the host can't be read at all, or two resources are in each other's way.
        """
        self._turned = turned
        turning = asyncio.create_task(self._turns(advertiser, stop))
        await _first_of(turning, stop)
        if not turning.done():
            await asyncio.wait({turning}, timeout=TURN_SECONDS)
            turning.cancel()
        with suppress(asyncio.CancelledError):
            await turning

    async def _turns(self, advertiser: Advertiser, stop: asyncio.Event) -> None:
        if await self._advertise_bound(advertiser):
            await asyncio.sleep(REGISTRATION_SECONDS)
        await self._turn(advertiser)
        self._due = monotonic() + self._setup.rescan_seconds
        while wakeups := await self._next_wakeups(stop):
            try:
                if Wakeup.CONFIG in wakeups or Wakeup.TIME in wakeups:
                    await self._reload()
                if wakeups == {Wakeup.GIVEN} and not self._vgpus and self._facts is not None:
                    # Nothing but the group members of what was given has changed.
                    self._report(self._facts, self._list(self._facts, advertiser))
                else:
                    await self._turn(advertiser)
                self._take_for_good()
            except LauncherkitError as error:
                if not self._put_back(error):
                    self._reporter.error(error)
            except Exception as bug:
                self._reporter.bug(bug)

    async def _next_wakeups(self, stop: asyncio.Event) -> frozenset[Wakeup]:
        """What to look for; nothing when it is time to end."""
        while not stop.is_set():
            self._turned()
            left = self._due - monotonic()
            if left <= 0:  # even if there is a wakeup: they may come all the time
                self._due = monotonic() + self._setup.rescan_seconds
                return frozenset({Wakeup.TIME})
            waiting = asyncio.create_task(self._wakeups.wait(min(left, BREATH_SECONDS)))
            await _first_of(waiting, stop)
            if waiting.done() and waiting.result():
                return waiting.result()
            waiting.cancel()
        return frozenset()

    async def _advertise_bound(self, advertiser: Advertiser) -> bool:
        """Advertise what VFIO drivers have before the whole host is looked at. True where that is anything."""
        read_at = monotonic()
        facts = await self._looks.at_bound()
        if facts is None:
            return False
        self._setup.learn(facts)
        self._allocator.saw(await self._read_usage(), read_at)
        return bool(self._advertise(facts, advertiser))

    async def _turn(self, advertiser: Advertiser) -> None:
        read_at = monotonic()
        facts, used = await asyncio.gather(self._look(), self._read_usage())
        if not self._learned:
            self._setup.learn(facts)
            self._learned = True
        if await self._reconcile(facts, self._allocator.saw(used, read_at)):
            facts = await self._look()
        self._report(facts, self._advertise(facts, advertiser))
        self._facts = facts
        self._vgpus = bool(facts.mdev_parents) or any(detail.vgpu is not None for detail in facts.details.values())

    async def _look(self) -> HostFacts:
        began = monotonic()
        facts = await self._looks.look(self._setup.wants, self._setup.vgpu)
        self._reporter.metrics.scanned(monotonic() - began)
        return facts

    async def _reconcile(self, facts: HostFacts, usage: Usage) -> bool:
        """Begin all that is to be done on the host, before anything else is handled. True where it has changed.

        What takes longer continues, and causes another turn when it has changed something.
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
            return reconciler.reconcile(facts, usage, monotonic())
        except LauncherkitError as error:
            self._reporter.error(error)
        except Exception as bug:  # concerns one kind of device; the others continue
            self._reporter.bug(bug, f" in {type(reconciler).__name__}")
        return ()

    def _has_changed(self, task: asyncio.Task[bool]) -> bool:
        try:
            return task.result()
        except LauncherkitError as error:
            self._reporter.error(error)
        except Exception as bug:
            self._reporter.bug(bug, " at the host")
        return False

    def _ended(self, task: asyncio.Task[bool]) -> None:
        self._begun.discard(task)
        if not task.cancelled() and self._has_changed(task):
            self._wakeups.give(Wakeup.HOST)

    def _advertise(self, facts: HostFacts, advertiser: Advertiser) -> dict[str, Resource]:
        """What there is, by name."""
        usage = self._allocator.usage()
        for provider in self._setup.providers:
            self._found[provider] = self._resources_of(provider, facts, usage)
        offered = [
            Offer(resource, provider) for provider in self._setup.providers for resource in self._found[provider]
        ]
        self._offers = {offer.resource.name: offer for offer in self._without_clashes(offered)}
        return self._list(facts, advertiser)

    def _list(self, facts: HostFacts, advertiser: Advertiser) -> dict[str, Resource]:
        """The same with the group members of what pods have Unhealthy (K3)."""
        listed = {name: offer.resource for name, offer in self._allocator.advertise(self._offers, facts).items()}
        advertiser.update(resource for resource in listed.values() if not resource.dra)
        return listed

    def _resources_of(self, provider: Provider, facts: HostFacts, usage: Usage) -> tuple[Resource, ...]:
        try:
            found = provider.resources(facts, usage, monotonic())
            stalled = self._looks.stalled
            return tuple(with_stalled(resource, stalled, usage) for resource in found)
        except Exception as bug:  # concerns one kind of device: what it had stays, and the others continue
            self._reporter.bug(bug, f" in {type(provider).__name__}")
            return self._found.get(provider, ())

    def _without_clashes(self, offered: list[Offer]) -> list[Offer]:
        """At the start a clash is an error (K6). A card that is plugged in later takes nothing away."""
        try:
            self._setup.check([offer.resource for offer in offered])
        except LauncherkitError as error:
            if self._facts is None or self._before is not None:
                raise
            self._reporter.problem("names", error)
            return [offer for offer in offered if offer.resource.name in self._reported]
        self._reporter.well("names")
        return offered

    def _report(self, facts: HostFacts, listed: dict[str, Resource]) -> None:
        usage = self._allocator.usage()
        self._reporter.metrics.held_groups(len(held_groups(listed, usage)))
        self._outlets.show(facts, list(listed.values()), usage)
        if facts is self._facts and listed == self._reported:
            return  # something was given away, which has made no difference to others
        for change in changes(self._reported, listed):
            if self._facts is None and change.type == "Normal":
                continue  # at the start healthy devices are not news
            self._reporter.happened(change.reason, change.text, "info" if change.type == "Normal" else "warning")
        if listed != self._reported:
            self._reporter.metrics.devices(list(listed.values()))
        self._reported = listed
        try:
            self._outlets.publish(facts, list(listed.values()), self._setup.dra)
            self._reporter.well("labels")
        except LauncherkitError as error:
            self._reporter.problem("labels", error)

    async def _reload(self) -> None:
        """Take the new configuration if it is one, and keep the old one if it is wrong."""
        try:
            setup = await self._read_setup()
        except LauncherkitError as error:
            self._refuse(error)
            return
        if setup is None:
            return
        self._before = self._setup, self._found
        self._setup, self._learned, self._found = setup, False, {}
        self._due = min(self._due, monotonic() + setup.rescan_seconds)

    def _take_for_good(self) -> None:
        """A whole turn has succeeded: a new configuration is accepted for good."""
        if self._before is None:
            return
        self._before = None
        self._reporter.well("configuration")
        self._reporter.metrics.reloaded("done")
        self._reporter.happened("ConfigurationChanged", "the new configuration is in force")

    def _put_back(self, error: LauncherkitError) -> bool:
        """Go back to the former configuration, where a new one proves wrong only on the host."""
        if self._before is None:
            return False
        (self._setup, self._found), self._before = self._before, None
        self._learned = True
        self._refuse(error)
        self._wakeups.give(Wakeup.HOST)
        return True

    def _refuse(self, error: LauncherkitError) -> None:
        kept = f"the old one is kept: {error.message}"
        if self._reporter.problem("configuration", error, "ConfigurationRefused", kept):
            self._reporter.metrics.reloaded("refused")


class WakingAllocator:
    """Answers the kubelet, and wakes the loop after an Allocate, to update the other members of the groups."""

    def __init__(self, allocator: Allocator, wakeups: WakeupQueue) -> None:
        self._allocator = allocator
        self._wakeups = wakeups
        self.prefer = allocator.prefer

    async def allocate(self, resource: str, containers: Sequence[Sequence[str]]) -> list[Grant]:
        """See `launcherkit_plugin.allocation.allocator.Allocator.allocate`.

        If the caller hangs up while the host is being changed, that is completed before anything else is done.
        """
        work = self._allocate(resource, containers)
        return await (asyncio.shield(asyncio.create_task(work)) if self._allocator.changes_host(resource) else work)

    async def check(self, resource: str, ids: Sequence[str]) -> None:
        """See `launcherkit_plugin.allocation.allocator.Allocator.check`; it may make vGPUs again, so the same holds."""
        await asyncio.shield(asyncio.create_task(self._allocator.check(resource, ids)))

    async def _allocate(self, resource: str, containers: Sequence[Sequence[str]]) -> list[Grant]:
        try:
            grants = await self._allocator.allocate(resource, containers)
        except LauncherkitError:
            self._wakeups.give(Wakeup.HOST)  # what was refused may have to be advertised otherwise
            raise
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
