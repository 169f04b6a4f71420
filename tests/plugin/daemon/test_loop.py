"""The daemon's loop: looks, brings the host closer to the configuration, advertises, and starts again."""

from __future__ import annotations

import asyncio
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from launcherkit.errors import UNREADABLE_FILE, LauncherkitError
from launcherkit.model.host import NO_FACTS, HostFacts, PciFunction
from launcherkit_lab.kubelet import Kubelet, NotAdmitted, running_kubelet
from launcherkit_plugin.allocation.allocator import Allocator
from launcherkit_plugin.allocation.reservations import Reservations
from launcherkit_plugin.daemon.loop import DaemonLoop, LoopInputs, LoopOutputs
from launcherkit_plugin.daemon.wiring import Setup
from launcherkit_plugin.host.progress import Progress
from launcherkit_plugin.host.scan import Scanner
from launcherkit_plugin.host.work_queue import WorkQueue
from launcherkit_plugin.kubelet.advertiser import Advertiser
from launcherkit_plugin.model.device import NO_USAGE, Device, Grant, Holder, Resource, Usage
from launcherkit_plugin.model.errors import BAD_PLUGIN_CONFIG, CDI_NOT_WRITTEN, NAME_CLASH
from launcherkit_plugin.model.wakeups import Wakeup, WakeupQueue
from launcherkit_plugin.telemetry.reporter import Reporter
from tests.plugin.kubelet.parts import NAME, SICK, Lines, resource, until
from tests.support.errors import raises_code
from tests.support.looping import Loop, WorkThreads, running_loop
from tests.support.waiting import PATIENCE

OTHER = "nvidia.com/AD102GL_L40S"
LONG = 3600.0
STALL = 60.0


class Shelf:
    """A provider that has what it is told to have."""

    changes_host = True

    def __init__(self, *resources: Resource) -> None:
        self.has = list(resources)
        self.reconciled: list[Usage] = []
        self.changes: list[Callable[[], bool]] = []
        """What the next reconciles do."""
        self.allocating = threading.Event()
        self.may_allocate = threading.Event()
        self.may_allocate.set()

    def wants(self, function: PciFunction) -> bool:
        return True

    def resources(self, host: HostFacts, usage: Usage, now: float) -> tuple[Resource, ...]:
        return tuple(self.has)

    def reconcile(self, host: HostFacts, usage: Usage, now: float) -> list[asyncio.Task[bool]]:
        self.reconciled.append(usage)

        async def change(made: bool) -> bool:
            return made

        return [asyncio.create_task(change(self.changes.pop(0)()))] if self.changes else []

    async def allocate(self, resource: Resource, ids: Sequence[str], wishes: object = None) -> Grant:
        self.allocating.set()
        await asyncio.to_thread(self.may_allocate.wait)
        return Grant({resource.variable: ",".join(ids)}, ("/dev/vfio/vfio",))

    async def check(self, resource: Resource, ids: Sequence[str]) -> None:
        pass


class Broken(Shelf):
    """A provider with a bug."""

    def resources(self, host: HostFacts, usage: Usage, now: float) -> tuple[Resource, ...]:
        raise ZeroDivisionError("in resources")

    def reconcile(self, host: HostFacts, usage: Usage, now: float) -> list[asyncio.Task[bool]]:
        raise ZeroDivisionError("in reconcile")


class Events:
    def __init__(self) -> None:
        self.reported: list[tuple[str, str, str]] = []

    def event(self, type: str, reason: str, message: str) -> None:  # noqa: A002
        self.reported.append((type, reason, message))


class Stage:
    """A daemon with everything that it is told about the world."""

    def __init__(
        self,
        loop: Loop,
        folder: Path,
        *providers: Shelf,
        rescan: float = LONG,
        read_bound: Callable[[], HostFacts] | None = None,
    ) -> None:
        self.loop = loop
        self.log, self.events = Lines(), Events()
        self.scans = 0
        self.scan: Callable[[], HostFacts] = lambda: NO_FACTS
        self.usage = NO_USAGE
        self.next_setup: Callable[[], Setup | None] = lambda: None
        self.check: Callable[[Sequence[Resource]], object] = len
        self.published: list[Resource] = []
        self.shown: list[tuple[Sequence[Resource], Usage]] = []
        self.used: list[Setup] = []
        self.rounds = 0
        self.stop = loop.call(asyncio.Event)
        self.wakeups = loop.call(WakeupQueue, 0.01)
        allocator = loop.call(Allocator, Reservations(), time.monotonic, self.wakeups.notify)
        self.allocator = allocator
        reporter = Reporter(self.log, events=self.events)
        self.advertiser = loop.call(Advertiser, str(folder), allocator, reporter, time.monotonic)
        self.queue = WorkQueue(stall=PATIENCE)
        self.daemon = DaemonLoop(
            self.setup(*providers, rescan=rescan),
            allocator,
            self.wakeups,
            reporter,
            LoopInputs(Scanner(self.queue, self._scan, read_bound, stall=STALL), self._usage, self._reload),
            LoopOutputs(
                self._publish,
                lambda facts, resources, usage: self.shown.append((resources, usage)),
            ),
        )
        self.running: Future[None] | None = None

    def setup(self, *providers: Shelf, rescan: float = LONG) -> Setup:
        return Setup(providers, providers, False, rescan, lambda facts: None, self._check, changes_host=True)

    def _publish(self, facts: HostFacts, resources: Sequence[Resource], setup: Setup) -> None:
        self.published[:] = resources
        self.used.append(setup)

    def _check(self, resources: Sequence[Resource]) -> None:
        self.check(resources)

    def turned(self) -> None:
        self.rounds += 1

    def _scan(self, wanted: Callable[[PciFunction], bool], vgpu: bool, progress: Progress) -> HostFacts:
        self.scans += 1
        return self.scan()

    async def _usage(self) -> Usage:
        return self.usage

    async def _reload(self) -> Setup | None:
        return self.next_setup()

    def wake(self, wakeup: Wakeup = Wakeup.HOST) -> None:
        self.loop.call(self.wakeups.notify, wakeup)

    def look(self) -> None:
        """A wakeup, and the beginning of its scan."""
        before = self.scans
        self.wake()
        until(lambda: self.scans > before)

    def turn(self) -> None:
        """A wakeup, and its whole turn."""
        until(lambda: self.rounds)
        before = self.rounds
        self.wake()
        until(lambda: self.rounds > before)

    def start(self) -> None:
        self.running = self.loop.start(self.daemon.run(self.advertiser, self.stop, self.turned))

    def end(self) -> None:
        self.loop.call(self.stop.set)
        try:
            if self.running is not None:
                self.running.result(60)
        finally:
            self.loop.run(self.advertiser.close())


@pytest.fixture
def kubelet() -> Iterator[Kubelet]:
    with tempfile.TemporaryDirectory(prefix="kubelet-") as folder, running_kubelet(Path(folder)) as kubelet:
        yield kubelet


@contextmanager
def on_stage(kubelet: Kubelet, *providers: Shelf, start: bool = True, **options: Any) -> Iterator[Stage]:
    with running_loop() as loop:
        stage = Stage(loop, kubelet.plugins, *providers, **options)
        try:
            if start:
                stage.start()
            yield stage
        finally:
            stage.end()


def grouped(name: str, **groups: int) -> Resource:
    """A resource with devices of these IDs and groups."""
    devices = {id_: Device(id_, groups=frozenset({group})) for id_, group in groups.items()}
    return Resource(name, "PCI_RESOURCE_X", devices)


# Turns


def test_what_the_providers_have_is_advertised(kubelet: Kubelet) -> None:
    with on_stage(kubelet, Shelf(resource("a", sick=["a"])), Shelf(resource("b", name=OTHER))) as stage:
        kubelet.wait_for(NAME, {"a": False})
        kubelet.wait_for(OTHER, {"b": True})
        until(lambda: [found.name for found in stage.published] == [NAME, OTHER])


def test_what_vfio_drivers_have_is_advertised_before_the_whole_host_is_looked_at(kubelet: Kubelet) -> None:
    shelf, may_look = Shelf(resource("a")), threading.Event()

    def scan() -> HostFacts:
        may_look.wait(60)
        return NO_FACTS

    with on_stage(kubelet, shelf, start=False, read_bound=lambda: NO_FACTS) as stage:
        stage.scan = scan
        stage.start()
        kubelet.wait_for(NAME, {"a": True})
        assert (stage.published, stage.rounds) == ([], 0)
        shelf.has = [resource("a", "b", sick=["b"])]
        may_look.set()
        kubelet.wait_for(NAME, {"a": True, "b": False})


def _has_published(stage: Stage, name: str) -> bool:
    return [found.name for found in stage.published] == [name]


def test_a_first_look_that_fails_leaves_it_to_the_look_at_the_whole_host(kubelet: Kubelet) -> None:
    hangs, free = threading.Event(), threading.Event()

    def hang() -> HostFacts:
        hangs.set()
        free.wait(60)
        return NO_FACTS

    def fail() -> HostFacts:
        raise UNREADABLE_FILE("drivers: Permission denied", "", file="drivers")

    for read in (hang, fail):
        with on_stage(kubelet, Shelf(resource("a")), read_bound=read) as stage:
            if read is hang:
                hangs.wait(60)
                stage.loop.skip(STALL)
            kubelet.wait_for(NAME, {"a": True})
            until(partial(_has_published, stage, NAME))
    free.set()


def test_what_is_for_dra_is_published_and_not_advertised(kubelet: Kubelet) -> None:
    """A group member that a pod has is in the way of both (K3, D1)."""
    published, advertised = grouped("a.com/DRA", a=1, c=2)._replace(dra=True), grouped(NAME, b=1)
    with on_stage(kubelet, Shelf(published, advertised)) as stage:
        kubelet.wait_for(NAME, {"b": True})
        kubelet.admit("vms/p", [("c", NAME, 1)])
        until(
            lambda: {key: each.healthy for key, each in stage.published[0].devices.items()} == {"a": False, "c": True}
        )
        assert [found.name for found in stage.published] == ["a.com/DRA", NAME]
        assert kubelet.resources() == {NAME}


def test_a_hint_brings_a_new_look(kubelet: Kubelet) -> None:
    shelf = Shelf(resource("a"))
    with on_stage(kubelet, shelf) as stage:
        kubelet.wait_for(NAME, {"a": True})
        shelf.has = [resource("a", "b", sick=["a"])]
        stage.wake()
        kubelet.wait_for(NAME, {"a": False, "b": True})


def test_without_a_hint_one_comes_all_the_same(kubelet: Kubelet) -> None:
    shelf = Shelf(resource("a"))
    with on_stage(kubelet, shelf, rescan=0.02):
        kubelet.wait_for(NAME, {"a": True})
        shelf.has = [resource("a", sick=["a"])]
        kubelet.wait_for(NAME, {"a": False})


def test_what_a_provider_has_changed_on_the_host_is_looked_at_before_it_is_advertised(kubelet: Kubelet) -> None:
    shelf = Shelf(resource("a", sick=["a"]))

    def bind() -> bool:
        shelf.has = [resource("a")]
        return True

    shelf.changes = [bind]
    with on_stage(kubelet, shelf) as stage:
        kubelet.wait_for(NAME, {"a": True})
        assert (kubelet.pushes(NAME), stage.scans) == (1, 2)


def test_a_provider_with_a_bug_is_not_in_the_others_way(kubelet: Kubelet) -> None:
    with on_stage(kubelet, Broken(), Shelf(resource("a"))) as stage:
        kubelet.wait_for(NAME, {"a": True})
        assert "error: internal error in Broken: ZeroDivisionError: in reconcile" in stage.log.lines
        assert "error: internal error in Broken: ZeroDivisionError: in resources" in stage.log.lines


def test_what_a_provider_can_not_do_is_reported_once_until_it_can(kubelet: Kubelet) -> None:
    shelf = Shelf(resource("a"))
    had = shelf.resources

    def full(host: HostFacts, usage: Usage, now: float) -> tuple[Resource, ...]:
        raise CDI_NOT_WRITTEN("the CDI file can't be written: No space left on device", "Make room.")

    with on_stage(kubelet, shelf) as stage:
        kubelet.wait_for(NAME, {"a": True})
        for resources in (full, full, had, full):
            shelf.resources = resources  # type: ignore[method-assign]
            stage.turn()
        assert kubelet.devices(NAME) == {"a": True}
        assert len([line for line in stage.log.lines if "LK746" in line]) == 2


def test_one_that_breaks_later_keeps_what_it_had(kubelet: Kubelet) -> None:
    shelf = Shelf(resource("a"))
    with on_stage(kubelet, shelf) as stage:
        kubelet.wait_for(NAME, {"a": True})
        shelf.resources = Broken().resources  # type: ignore[method-assign]
        stage.turn()
        until(lambda: any("in resources" in line for line in stage.log.lines))
        assert kubelet.devices(NAME) == {"a": True}


def test_a_look_that_hangs_is_begun_once_and_the_last_one_counts(kubelet: Kubelet, work: WorkThreads) -> None:
    hanging = threading.Event()
    shelf = Shelf(resource("a"))
    with on_stage(kubelet, shelf) as stage:
        kubelet.wait_for(NAME, {"a": True})

        def hang() -> HostFacts:
            hanging.wait(60)
            return NO_FACTS

        stage.scan = hang
        stage.look()
        shelf.has = [resource("a", sick=["a"])]
        stage.wake()
        stage.loop.skip(STALL)
        kubelet.wait_for(NAME, {"a": False})
        stage.turn()
        assert work.names().count("work: the host") == 1
        hanging.set()


def test_a_card_at_which_work_hangs_can_be_had_again_once_that_has_come_back(kubelet: Kubelet) -> None:
    hanging = threading.Event()
    with on_stage(kubelet, Shelf(resource("a", "b"))) as stage:
        kubelet.wait_for(NAME, {"a": True, "b": True})
        stage.loop.call(stage.queue.begin, "a", "reading it", lambda: hanging.wait(60), 60)
        stage.loop.call(stage.queue.give_up, "a")
        stage.wake()
        kubelet.wait_for(NAME, {"a": False, "b": True})
        hanging.set()
        until(lambda: not stage.queue.late)
        stage.wake()
        kubelet.wait_for(NAME, {"a": True, "b": True})


# Who has what


def test_the_mate_of_a_device_that_was_given_away_is_unhealthy_until_its_pod_has_ended(kubelet: Kubelet) -> None:
    with on_stage(kubelet, Shelf(grouped(NAME, a=1, b=1, c=2))) as stage:
        kubelet.wait_for(NAME, {"a": True, "b": True, "c": True})
        answer = kubelet.call_allocate(NAME, ["a"])
        assert answer.container_responses[0].envs["PCI_RESOURCE_X"] == "a"
        kubelet.wait_for(NAME, {"a": True, "b": False, "c": True})
        stage.usage = Usage("pod-resources", {NAME: {"a": Holder("default/vm")}})
        stage.turn()
        stage.usage = Usage("pod-resources", {})
        stage.wake()
        kubelet.wait_for(NAME, {"a": True, "b": True, "c": True})


def test_of_many_pods_at_once_none_is_refused_while_a_group_is_free(kubelet: Kubelet) -> None:
    """The kubelet asks for the next pod before it has heard that group members of the last one's card are Unhealthy."""
    cards = grouped(NAME, **{f"{number:02}": number // 2 for number in range(8)})
    one_at_a_time = threading.Lock()  # as in the kubelet
    outcomes: list[str] = []

    def admit(pod: int) -> None:
        with one_at_a_time:
            try:
                kubelet.admit(f"default/{pod}", [("vm", NAME, 1)])
                outcomes.append("admitted")
            except NotAdmitted:
                outcomes.append("refused")

    with on_stage(kubelet, Shelf(cards)):
        kubelet.wait_for(NAME)
        pods = [threading.Thread(target=admit, args=(pod,)) for pod in range(8)]
        for pod in pods:
            pod.start()
        for pod in pods:
            pod.join()
    assert outcomes == ["admitted"] * 4 + ["refused"] * 4


def test_what_was_given_away_is_reported_to_providers_before_any_pod_has_it(kubelet: Kubelet) -> None:
    shelf = Shelf(resource("a"))
    with on_stage(kubelet, shelf) as stage:
        kubelet.wait_for(NAME)
        stage.usage = Usage("pod-resources", {})
        kubelet.call_allocate(NAME, ["a"])
        stage.wake()
        until(lambda: (holder := shelf.reconciled[-1].holder(NAME, "a")) is not None and not holder.pod)


def test_what_is_asked_for_is_held_while_it_is_given_away_and_nobody_waits_for_that(kubelet: Kubelet) -> None:
    shelf = Shelf(resource("a"))
    shelf.may_allocate.clear()
    with on_stage(kubelet, shelf, Shelf(resource("b", name=OTHER))) as stage:
        kubelet.wait_for(NAME)
        kubelet.wait_for(OTHER)
        caller = threading.Thread(target=kubelet.call_allocate, args=(NAME, ["a"]))
        caller.start()
        shelf.allocating.wait(60)
        stage.usage = Usage("pod-resources", {})
        stage.turn()
        assert shelf.reconciled[-1].holder(NAME, "a") is not None
        assert kubelet.call_allocate(OTHER, ["b"]).container_responses
        assert caller.is_alive(), "the first one has not been answered yet"
        shelf.may_allocate.set()
        caller.join(60)
        stage.turn()
        assert shelf.reconciled[-1].holder(NAME, "a") is not None


def test_what_is_given_away_stays_held_where_the_kubelet_has_hung_up_meanwhile(kubelet: Kubelet) -> None:
    shelf = Shelf(resource("a"))
    shelf.may_allocate.clear()
    with on_stage(kubelet, shelf) as stage:
        kubelet.wait_for(NAME)
        until(lambda: stage.rounds)

        def ask() -> None:
            with suppress(NotAdmitted):
                kubelet.call_allocate(NAME, ["a"])

        caller = threading.Thread(target=ask)
        caller.start()
        shelf.allocating.wait(60)
        kubelet.restart()
        caller.join(60)
        kubelet.wait_for(NAME)
        stage.usage = Usage("pod-resources", {})
        for released in (False, True):
            if released:
                shelf.may_allocate.set()
            stage.turn()
            assert shelf.reconciled[-1].holder(NAME, "a") is not None


def test_an_unhealthy_device_is_refused_with_the_reason(kubelet: Kubelet) -> None:
    with on_stage(kubelet, Shelf(resource("a", sick=["a"]))):
        kubelet.wait_for(NAME)
        with pytest.raises(NotAdmitted, match=rf"FAILED_PRECONDITION: error\[LK713\].*{SICK.text}"):
            kubelet.call_allocate(NAME, ["a"])


# The configuration


def test_after_a_refusal_there_is_a_new_look(kubelet: Kubelet) -> None:
    shelf = Shelf(resource("a"))
    with on_stage(kubelet, shelf):
        kubelet.wait_for(NAME, {"a": True})
        shelf.has = [resource("a", sick=["a"])]
        with pytest.raises(NotAdmitted):
            kubelet.call_allocate(NAME, ["b"])
        kubelet.wait_for(NAME, {"a": False})


def test_a_new_configuration_is_in_force_at_once(kubelet: Kubelet) -> None:
    with on_stage(kubelet, Shelf(resource("a"))) as stage:
        kubelet.wait_for(NAME)
        setups = [stage.setup(Shelf(resource("b", name=OTHER)))]
        stage.next_setup = lambda: setups.pop() if setups else None
        stage.wake(Wakeup.CONFIG)
        kubelet.wait_for(OTHER, {"b": True})
        kubelet.wait(lambda: NAME not in kubelet.resources())
        assert ("Normal", "ConfigurationChanged", "the new configuration is in force") in stage.events.reported


def test_a_wrong_one_is_reported_and_the_old_one_kept(kubelet: Kubelet) -> None:
    shelf = Shelf(resource("a"))
    with on_stage(kubelet, shelf) as stage:
        kubelet.wait_for(NAME)

        def wrong() -> Setup:
            raise BAD_PLUGIN_CONFIG("plugin.yaml, resources: no list", "See the schema.")

        stage.next_setup = wrong
        stage.wake(Wakeup.CONFIG)
        event = ("Warning", "ConfigurationRefused", "the old one is kept: plugin.yaml, resources: no list")
        until(lambda: event in stage.events.reported)
        shelf.has = [resource("a", "b")]
        stage.wake()
        kubelet.wait_for(NAME, {"a": True, "b": True})


def test_a_wrong_one_is_reported_again_where_a_right_one_was_in_force_meanwhile(kubelet: Kubelet) -> None:
    with on_stage(kubelet, Shelf(resource("a"))) as stage:
        kubelet.wait_for(NAME)

        def wrong() -> Setup:
            raise BAD_PLUGIN_CONFIG("plugin.yaml, resources: no list", "See the schema.")

        def read(*read: Callable[[], Setup]) -> None:
            following = [*read]
            stage.next_setup = lambda: following.pop(0)() if following else None
            stage.wake(Wakeup.CONFIG)
            until(lambda: not following)
            stage.turn()

        read(wrong)
        read(wrong)
        read(lambda: stage.setup(Shelf(resource("a"))))
        read(wrong)
        reasons = [reason for _, reason, _ in stage.events.reported]
        assert reasons == ["ConfigurationRefused", "ConfigurationChanged", "ConfigurationRefused"]


def clash(resources: Sequence[Resource]) -> None:
    if len(resources) > 1:
        raise NAME_CLASH("two resources have one socket", "Rename one.")


def test_a_clash_of_names_at_the_start_is_an_error(kubelet: Kubelet) -> None:
    shelf = Shelf(resource("a"), resource("b", name=OTHER))
    with on_stage(kubelet, shelf, start=False) as stage:
        stage.check = clash
        with raises_code(NAME_CLASH):
            stage.loop.run(stage.daemon.run(stage.advertiser, stage.stop, stage.turned))
        assert shelf.reconciled == []  # nothing was changed on the host


def test_a_card_that_clashes_later_takes_nothing_away(kubelet: Kubelet) -> None:
    shelf = Shelf(resource("a"))
    with on_stage(kubelet, shelf, start=False) as stage:
        stage.check = clash
        stage.start()
        kubelet.wait_for(NAME)
        shelf.has = [resource("a", sick=["a"]), resource("b", name=OTHER)]
        stage.wake()
        kubelet.wait_for(NAME, {"a": False})
        assert kubelet.resources() == {NAME}
        assert any("LK702: two resources have one socket" in line for line in stage.log.lines)


def test_a_new_configuration_that_clashes_on_the_host_is_put_back(kubelet: Kubelet) -> None:
    shelf = Shelf(resource("a"))
    with on_stage(kubelet, shelf, start=False) as stage:
        stage.check = clash
        stage.start()
        kubelet.wait_for(NAME, {"a": True})
        clashing = Shelf(resource("b", name=OTHER), resource("c", name="nvidia.com/THIRD"))
        setups = [stage.setup(clashing)]
        stage.next_setup = lambda: setups.pop() if setups else None
        stage.wake(Wakeup.CONFIG)
        event = ("Warning", "ConfigurationRefused", "the old one is kept: two resources have one socket")
        until(lambda: event in stage.events.reported)
        assert clashing.reconciled == []  # nothing was changed on the host for it
        shelf.has = [resource("a", sick=["a"])]
        stage.wake()
        kubelet.wait_for(NAME, {"a": False})
        assert kubelet.resources() == {NAME}
        assert {setup.providers for setup in stage.used} == {(shelf,)}


def test_a_new_configuration_is_not_refused_for_a_scan_that_fails(kubelet: Kubelet) -> None:
    with on_stage(kubelet, Shelf(resource("a"))) as stage:
        kubelet.wait_for(NAME)
        fails = [UNREADABLE_FILE("drivers: Input/output error", "", file="drivers")]

        def scan() -> HostFacts:
            if fails:
                raise fails.pop()
            return NO_FACTS

        setups = [stage.setup(Shelf(resource("b", name=OTHER)))]
        stage.scan, stage.next_setup = scan, lambda: setups.pop() if setups else None
        stage.wake(Wakeup.CONFIG)
        until(lambda: any("Input/output error" in line for line in stage.log.lines))
        stage.wake()
        kubelet.wait_for(OTHER, {"b": True})
        assert [reason for _, reason, _ in stage.events.reported if "Configuration" in reason] == [
            "ConfigurationChanged"
        ]


def test_a_new_configuration_is_in_force_only_after_a_turn_with_it(kubelet: Kubelet) -> None:
    """What is reported after an Allocate alone is no such turn; and a second new one doesn't count as the old one."""
    first = Shelf(resource("a"))
    with on_stage(kubelet, first) as stage:
        kubelet.wait_for(NAME)

        def bug() -> HostFacts:
            raise ZeroDivisionError("in a scan")

        stage.check = clash
        clashing = Shelf(resource("b", name=OTHER), resource("c", name="nvidia.com/THIRD"))
        setups = [stage.setup(clashing), stage.setup(Shelf(resource("d", name=OTHER)))]
        stage.scan, stage.next_setup = bug, lambda: setups.pop() if setups else None
        stage.wake(Wakeup.CONFIG)
        until(lambda: any("in a scan" in line for line in stage.log.lines))
        before = stage.rounds
        stage.wake(Wakeup.ALLOCATED)
        until(lambda: stage.rounds > before)
        assert stage.events.reported == []
        stage.scan = lambda: NO_FACTS
        stage.wake(Wakeup.CONFIG)
        until(lambda: stage.events.reported)
        assert [reason for _, reason, _ in stage.events.reported] == ["ConfigurationRefused"]
        assert {setup.providers for setup in stage.used} == {(first,)}
        assert kubelet.resources() == {NAME}


def test_the_timer_is_not_kept_away_by_what_is_given_again_and_again(kubelet: Kubelet) -> None:
    with on_stage(kubelet, Shelf(resource("a")), rescan=0.2) as stage:
        kubelet.wait_for(NAME)
        before = stage.scans

        def looked_meanwhile() -> bool:
            stage.wake(Wakeup.ALLOCATED)
            return stage.scans > before

        until(looked_meanwhile)


# What is told, and the end


def test_what_becomes_of_devices_is_reported_to_the_cluster_and_a_start_is_not(kubelet: Kubelet) -> None:
    shelf = Shelf(resource("a", "b"))
    with on_stage(kubelet, shelf) as stage:
        kubelet.wait_for(NAME)
        assert stage.events.reported == []
        shelf.has = [resource("a", sick=["a"])]
        stage.wake()
        until(lambda: len(stage.events.reported) == 2)
        assert stage.events.reported == [
            ("Warning", "DeviceUnhealthy", f"{NAME}: {SICK.text}"),
            ("Normal", "DeviceGone", f"{NAME}: no longer listed: b"),
        ]


def test_a_host_that_can_not_be_read_at_the_start_is_an_error(kubelet: Kubelet) -> None:
    def unreadable() -> HostFacts:
        raise BAD_PLUGIN_CONFIG("no sysfs", "Mount it.")

    with on_stage(kubelet, Shelf(resource("a")), start=False) as stage:
        stage.scan = unreadable
        with pytest.raises(LauncherkitError, match="no sysfs"):
            stage.loop.run(stage.daemon.run(stage.advertiser, stage.stop, stage.turned))


def test_one_that_can_not_be_read_later_is_reported_and_read_again(kubelet: Kubelet) -> None:
    shelf = Shelf(resource("a"))
    with on_stage(kubelet, shelf) as stage:
        kubelet.wait_for(NAME)

        def unreadable() -> HostFacts:
            raise OSError("gone")

        stage.scan = unreadable
        stage.turn()
        until(lambda: "error: internal error: OSError: gone" in stage.log.lines)
        stage.scan = lambda: NO_FACTS
        shelf.has = [resource("a", "b")]
        stage.wake()
        kubelet.wait_for(NAME, {"a": True, "b": True})


def test_it_ends_when_it_is_told_to_though_nothing_happens(kubelet: Kubelet) -> None:
    with on_stage(kubelet, Shelf(resource("a"))) as stage:
        kubelet.wait_for(NAME)
        stage.end()
        assert stage.running is not None
        assert stage.running.done()
