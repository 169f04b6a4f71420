"""The daemon's loop. A turn scans the host, reads usage, brings the host closer to the configuration, and advertises.

Every turn starts from the actual state. Wakeups only make the next turn come sooner; without any, there is a turn every
``rescan_seconds``.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from time import monotonic
from typing import NamedTuple

from launcherkit.errors import LauncherkitError
from launcherkit.model.host import HostFacts
from launcherkit.process.stopping import first_of
from launcherkit_plugin.allocation.allocator import Allocator, Offer
from launcherkit_plugin.daemon.wiring import Setup
from launcherkit_plugin.devices.provider import Provider, Reconciler
from launcherkit_plugin.host.scan import Scanner, with_hanging
from launcherkit_plugin.kubelet.advertiser import Advertiser
from launcherkit_plugin.model.device import Resource, Usage, with_shares
from launcherkit_plugin.model.wakeups import Wakeup, WakeupQueue
from launcherkit_plugin.telemetry.reporter import Reporter, changes

STEP_SECONDS = 0.5
"""How long a turn waits for work that it has begun on the host, before it advertises."""
BREATH_SECONDS = 60.0
"""The longest time between two calls of ``turned`` while the loop waits."""
TURN_SECONDS = 10.0
"""How long a turn in progress may continue when the daemon ends."""
REGISTRATION_SECONDS = 0.2
"""The pause between the first list and the scan of the whole host, which would delay the kubelet's first calls."""


class LoopInputs(NamedTuple):
    """What a turn reads."""

    scanner: Scanner
    """Scans the host."""
    read_usage: Callable[[], Awaitable[Usage]]
    """Reads which pod has which device."""
    reload: Callable[[], Awaitable[Setup | None]]
    """Reads the configuration again; returns None if nothing else comes into force."""


class LoopOutputs(NamedTuple):
    """Who is told about facts and resources, in addition to the kubelet."""

    publish: Callable[[HostFacts, Sequence[Resource], Setup], None]
    """Called when they have changed, with the configuration; may raise a `LauncherkitError`."""
    show: Callable[[HostFacts, Sequence[Resource], Usage], object]
    """Called after every scan and every Allocate, with usage."""


class DaemonLoop:
    """The loop; see the module. The advertiser is passed to `run`, because it is made from the allocator.

    Args:
        setup: made from the configuration at the start.
        allocator: answers the kubelet from the last turn.
        wakeups: what may have changed.
        reporter: receives changes and problems.
        inputs: what a turn reads.
        outputs: who else is told about facts and resources.
    """

    def __init__(
        self,
        setup: Setup,
        allocator: Allocator,
        wakeups: WakeupQueue,
        reporter: Reporter,
        inputs: LoopInputs,
        outputs: LoopOutputs,
    ) -> None:
        self._setup = setup
        self._allocator = allocator
        self._wakeups = wakeups
        self._reporter = reporter
        self._scanner, self._read_usage, self._read_setup = inputs
        self._outputs = outputs
        self._turned: Callable[[], None] = lambda: None
        self._facts: HostFacts | None = None
        self._reported: dict[str, Resource] = {}
        self._is_updated = False
        self._due = 0.0
        self._begun: set[asyncio.Task[bool]] = set()
        """Work on the host that outlasts its turn."""
        self._before: tuple[Setup, dict[Provider, tuple[Resource, ...]]] | None = None
        """The former configuration, until a whole turn with the new one has succeeded."""
        self._unfit: LauncherkitError | None = None
        """Why the configuration doesn't fit this host."""
        self._offers: dict[str, Offer] = {}
        self._found: dict[Provider, tuple[Resource, ...]] = {}
        self._vgpus = True
        """Whether the node has vGPUs: with them, an allocation may change the host, and needs a new scan."""

    async def run(self, advertiser: Advertiser, stop: asyncio.Event, turned: Callable[[], None]) -> None:
        """Run until ``stop`` is set. Errors in the first turn are raised; later ones are reported and retried.

        Args:
            advertiser: advertises the resources to the kubelet.
            stop: ends the loop.
            turned: called after each turn, and at least every `BREATH_SECONDS`.

        Raises:
            LauncherkitError: the host can't be read at all, or two resources clash.
        """
        self._turned = turned
        turning = asyncio.create_task(self._turns(advertiser, stop))
        await first_of(turning, stop)
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
                if wakeups == {Wakeup.ALLOCATED} and not self._vgpus and self._facts is not None:
                    # Only the health of the allocated devices' group members has changed.
                    self._report(self._facts, self._list(self._facts, advertiser))
                else:
                    await self._turn(advertiser)
                    self._accept()
            except LauncherkitError as error:
                if error is not self._unfit or not self._put_back(error):
                    self._reporter.error(error)
            except Exception as bug:
                self._reporter.bug(bug)

    async def _next_wakeups(self, stop: asyncio.Event) -> frozenset[Wakeup]:
        """Wait for wakeups and return them; an empty set once ``stop`` is set."""
        while not stop.is_set():
            self._turned()
            left = self._due - monotonic()
            if left <= 0:  # even if there is a wakeup: they may come continuously
                self._due = monotonic() + self._setup.rescan_seconds
                return frozenset({Wakeup.TIME})
            waiting = asyncio.create_task(self._wakeups.wait(min(left, BREATH_SECONDS)))
            await first_of(waiting, stop)
            if waiting.done() and waiting.result():
                return waiting.result()
            waiting.cancel()
        return frozenset()

    async def _advertise_bound(self, advertiser: Advertiser) -> bool:
        """Advertise functions with VFIO drivers before the whole host is scanned; returns whether there are any."""
        read_at = monotonic()
        facts = await self._scanner.at_bound()
        if facts is None:
            return False
        self._update_setup(facts)
        self._allocator.observe(await self._read_usage(), read_at)
        return bool(self._advertise(facts, advertiser))

    async def _turn(self, advertiser: Advertiser) -> None:
        read_at = monotonic()
        facts, used = await asyncio.gather(self._scan(), self._read_usage())
        usage = self._allocator.observe(used, read_at)
        if not self._is_updated:
            self._update_setup(facts)
            if self._setup.changes_host:
                self._find(facts)  # raises if resources clash: nothing must be bound or made then
            self._is_updated = True
        if await self._reconcile(facts, usage):
            facts = await self._scan()
        self._report(facts, self._advertise(facts, advertiser))
        self._facts = facts
        self._vgpus = bool(facts.mdev_parents) or any(detail.vgpu is not None for detail in facts.details.values())

    def _update_setup(self, facts: HostFacts) -> None:
        with self._fitting():
            self._setup.update(facts)

    @contextmanager
    def _fitting(self) -> Iterator[None]:
        """Distinguish errors of the configuration from others, for which it isn't put back."""
        try:
            yield
        except LauncherkitError as error:
            self._unfit = error
            raise

    async def _scan(self) -> HostFacts:
        began = monotonic()
        facts = await self._scanner.scan(self._setup.wants, self._setup.vgpu)
        self._reporter.metrics.scanned(monotonic() - began)
        return facts

    async def _reconcile(self, facts: HostFacts, usage: Usage) -> bool:
        """Begin all work on the host at once, and wait for it; returns whether something has changed.

        Work that takes longer than `STEP_SECONDS` continues, and causes another turn if it changes something.
        """
        begun = [task for reconciler in self._setup.reconcilers for task in self._begin(reconciler, facts, usage)]
        if not begun:
            return False
        done, late = await asyncio.wait(begun, timeout=STEP_SECONDS)
        for task in late:
            self._begun.add(task)
            task.add_done_callback(self._ended)
        changed = [self._has_changed(task) for task in done]  # a list: errors of all tasks must be reported
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
            self._wakeups.notify(Wakeup.HOST)

    def _advertise(self, facts: HostFacts, advertiser: Advertiser) -> dict[str, Resource]:
        """Ask all providers for their resources and advertise these; returns them by name."""
        self._find(facts)
        return self._list(facts, advertiser)

    def _find(self, facts: HostFacts) -> None:
        """Ask all providers for their resources.

        Raises:
            LauncherkitError: resources of a new configuration clash; see `_without_clashes`.
        """
        usage = self._allocator.usage()
        for provider in self._setup.providers:
            self._found[provider] = self._resources_of(provider, facts, usage)
        offered = [
            Offer(resource, provider) for provider in self._setup.providers for resource in self._found[provider]
        ]
        self._offers = {offer.resource.name: offer for offer in self._without_clashes(offered)}

    def _list(self, facts: HostFacts, advertiser: Advertiser) -> dict[str, Resource]:
        """Advertise the resources found last, with the group members of pods' devices Unhealthy (K3)."""
        listed = {name: offer.resource for name, offer in self._allocator.advertise(self._offers, facts).items()}
        advertiser.update(resource for resource in listed.values() if not resource.dra)
        return listed

    def _resources_of(self, provider: Provider, facts: HostFacts, usage: Usage) -> tuple[Resource, ...]:
        try:
            resources = provider.resources(facts, usage, monotonic())
            hanging = self._scanner.hanging
            self._reporter.solved(("resources", id(provider)))
            return tuple(with_hanging(resource, hanging, facts, usage) for resource in resources)
        except LauncherkitError as error:  # such as a full disk, until it has room again
            self._reporter.problem(("resources", id(provider)), error)
            return self._found.get(provider, ())
        except Exception as bug:  # concerns one kind of device: its resources stay, and the others continue
            self._reporter.bug(bug, f" in {type(provider).__name__}")
            return self._found.get(provider, ())

    def _without_clashes(self, offered: list[Offer]) -> list[Offer]:
        """At the start a clash is an error (K6). Later, a newly plugged-in card doesn't affect existing resources."""
        try:
            with self._fitting():
                self._setup.check([offer.resource for offer in offered])
        except LauncherkitError as error:
            if self._facts is None or self._before is not None:
                raise
            self._reporter.problem("names", error)
            return [offer for offer in offered if offer.resource.name in self._reported]
        self._reporter.solved("names")
        return offered

    def _report(self, facts: HostFacts, listed: dict[str, Resource]) -> None:
        usage = self._allocator.usage()
        self._reporter.metrics.held_groups(len(held_groups(listed, usage)))
        self._outputs.show(facts, list(listed.values()), usage)
        if facts is self._facts and listed == self._reported:
            return  # an allocation that changed nothing for other devices
        for change in changes(self._reported, listed):
            if self._facts is None and change.type == "Normal":
                continue  # at the start healthy devices are not news
            self._reporter.happened(change.reason, change.text, "info" if change.type == "Normal" else "warning")
        if listed != self._reported:
            self._reporter.metrics.devices(list(listed.values()))
        self._reported = listed
        try:
            self._outputs.publish(facts, list(listed.values()), self._setup)
            self._reporter.solved("labels")
        except LauncherkitError as error:
            self._reporter.problem("labels", error)

    async def _reload(self) -> None:
        """Use the new configuration if there is one; keep the old one if the new one is wrong."""
        try:
            setup = await self._read_setup()
            if setup is None:
                return
        except LauncherkitError as error:
            self._refuse(error)
            return
        self._before = self._before or (self._setup, self._found)
        self._setup, self._is_updated, self._found = setup, False, {}
        self._due = min(self._due, monotonic() + setup.rescan_seconds)

    def _accept(self) -> None:
        """A whole turn has succeeded: a new configuration is accepted for good."""
        if self._before is None:
            return
        self._before = None
        self._reporter.solved("configuration")
        self._reporter.metrics.reloaded("done")
        self._reporter.happened("ConfigurationChanged", "the new configuration is in force")

    def _put_back(self, error: LauncherkitError) -> bool:
        """Go back to the former configuration if a new one fails on this host; returns whether there was a new one."""
        if self._before is None:
            return False
        (self._setup, self._found), self._before = self._before, None
        self._is_updated = True
        self._refuse(error)
        self._wakeups.notify(Wakeup.HOST)
        return True

    def _refuse(self, error: LauncherkitError) -> None:
        kept = f"the old one is kept: {error.message}"
        if self._reporter.problem("configuration", error, "ConfigurationRefused", kept):
            self._reporter.metrics.reloaded("refused")


def held_groups(resources: Mapping[str, Resource], usage: Usage) -> set[int]:
    """The IOMMU groups of the devices that pods have."""
    return {
        group
        for name, holders in usage.held.items()
        if name in resources
        for device, advertised in with_shares(resources[name], holders).devices.items()
        if device in holders
        for group in advertised.groups
    }
