"""What is recorded of the VMs that had devices, and what the kubelet is told because of it."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from typing import TypeVar

import pytest

from launcherkit.atomic import Disk
from launcherkit.errors import UNREADABLE_FILE, UNWRITABLE_FILE
from launcherkit.model.address import PciAddress
from launcherkit.model.host import NO_FACTS
from launcherkit_plugin.allocation.allocator import Allocator, Offer
from launcherkit_plugin.allocation.keeper import PODS_SECONDS, QUIET_SECONDS, STORM, STORM_SECONDS, Keeper, records_in
from launcherkit_plugin.allocation.reservations import Reservations
from launcherkit_plugin.codec import encode
from launcherkit_plugin.host.work_queue import WorkQueue
from launcherkit_plugin.model.device import NO_USAGE, Device, Holder, Resource, Usage
from launcherkit_plugin.model.errors import CALLER_UNKNOWN, DEVICE_KEPT, USAGE_UNREADABLE
from launcherkit_plugin.model.same_device import AskingPod, Kept, Owner, Wish
from launcherkit_plugin.telemetry.reporter import Level, Reporter
from tests.plugin.allocation.test_allocator import Giver
from tests.support.dying import live
from tests.support.errors import raises_code
from tests.support.faults import failing
from tests.support.looping import TimedLoop, run_timed, settled
from tests.support.waiting import PATIENCE

GPU = "nvidia.com/GPU"
A, B = "0000:01:00.0", "0000:02:00.0"
ONE, OTHER = Owner("vms", "one"), Owner("vms", "other")
DAY = 86400.0
T = TypeVar("T")


def cards(name: str = GPU, **how: object) -> Resource:
    devices = {key: Device(key, functions=(PciAddress.parse(key),)) for key in (A, B)}
    return Resource(name, "PCI_RESOURCE_GPU", devices)._replace(**{"same_device": "required", "keep_for": DAY} | how)  # type: ignore[arg-type]


class Desk:
    """A keeper, with the kubelet's list and the clock in the test's hands."""

    def __init__(self, folder: Path, disk: Disk | None = None) -> None:
        self.folder = folder
        self.now = 1000.0
        self.here: dict[str, AskingPod] = {}
        self.asking: dict[str, AskingPod] = {}
        self.held: dict[str, str] = {}
        """Pods by device."""
        self.listed: set[str] = set()
        """More pods that the kubelet lists."""
        self.deaf = False
        self.lines: list[str] = []
        records = records_in(str(folder), disk)
        self.keeper = Keeper(records, self._list, WorkQueue(stall=PATIENCE), Reporter(self._log), lambda: self.now)
        self.resource = cards()
        self.overlaid()

    def _log(self, level: Level, text: str, **fields: object) -> None:
        self.lines.append(text)

    async def _list(self) -> tuple[set[str], Mapping[str, Mapping[str, Holder]]]:
        if self.deaf:
            raise USAGE_UNREADABLE("nobody answers", "Wait.")
        held = {key: Holder(pod, "compute") for key, pod in self.held.items()}
        return {*self.listed, *self.held.values()}, {GPU: held}

    @property
    def usage(self) -> Usage:
        return Usage("pod-resources", {GPU: {key: Holder(pod, "compute") for key, pod in self.held.items()}})

    def pod(self, name: str, owner: Owner, wish: Wish | None = None) -> str:
        """A pod that the kubelet is about to admit."""
        name = f"{owner.namespace}/{name}"
        self.here[name] = AskingPod(owner, wish or "", {GPU: 1})
        if wish:
            self.asking[name] = self.here[name]
        self.listed.add(name)
        self.keeper.note_pods(self.here, self.asking)
        return name

    async def start(self, name: str, device: str) -> None:
        self.held[device] = name
        await self.keeper.starting(self.resource, [device])

    async def end(self, name: str) -> None:
        """Its end is seen by a turn."""
        self.held = {key: pod for key, pod in self.held.items() if pod != name}
        self.listed.discard(name)
        for pods in (self.here, self.asking):
            pods.pop(name, None)
        await self.turn()

    async def turn(self, usage: Usage | None = None) -> None:
        await asyncio.gather(*self.keeper.reconcile(NO_FACTS, usage or self.usage, 0.0))

    def overlaid(self, *more: Resource) -> list[str]:
        """The kept devices of all resources."""
        overlaid = self.keeper.overlaid([self.resource, *more], self.usage)
        return [key for each in overlaid for key, device in each.devices.items() if not device.healthy]

    def records(self) -> dict[str, Kept]:
        return dict(records_in(str(self.folder)).read().whole)


def timed(tmp_path: Path, scene: Callable[[Desk, TimedLoop], Coroutine[object, object, T]]) -> T:
    return run_timed(lambda loop: scene(Desk(tmp_path), loop))


def test_a_record_is_on_the_disk_before_the_container_starts(tmp_path: Path) -> None:
    async def scene(desk: Desk, _: TimedLoop) -> None:
        await desk.start(desk.pod("launcher-1", ONE, "required"), A)

    timed(tmp_path, scene)
    kept = Desk(tmp_path).records()
    assert kept == {A: Kept(A, GPU, ONE, "required", "vms/launcher-1", 1000.0, None, DAY)}


def test_after_its_pods_end_a_device_is_unhealthy_until_its_vm_asks_or_its_time_is_over(tmp_path: Path) -> None:
    async def scene(desk: Desk, _: TimedLoop) -> None:
        first = desk.pod("launcher-1", ONE, "required")
        await desk.start(first, A)
        assert desk.overlaid() == []
        desk.now += 50
        await desk.start(first, A)  # its container, again
        assert desk.records()[A].since == 1000.0
        desk.held.clear()
        desk.keeper.note_pods({}, {})
        assert desk.overlaid() == [], "no turn has seen its end yet"
        await desk.end(first)
        assert desk.overlaid(cards("nvidia.com/GPU-kata", same_device=False)) == [A, A]
        (kept,) = desk.records().values()
        assert (kept.ended, kept.until) == (1050.0, 1050.0 + DAY)
        again = desk.pod("launcher-2", ONE, "required")
        assert desk.overlaid(cards("nvidia.com/GPU-kata", same_device=False)) == [A], "not for another use"
        desk.held[A] = again
        desk.keeper.note_pods(desk.here, {})
        assert desk.overlaid() == [], "it stays Healthy for who has it"
        await desk.end(again)
        desk.now += DAY - 1
        assert desk.overlaid() == [A]
        desk.now += 1
        assert desk.overlaid() == []
        await desk.turn()
        assert desk.records() == {}

    timed(tmp_path, scene)


def test_a_clock_that_was_set_back_keeps_nothing_for_longer(tmp_path: Path) -> None:
    async def scene(desk: Desk, _: TimedLoop) -> None:
        await desk.start(desk.pod("launcher-1", ONE, "required"), A)
        await desk.end("vms/launcher-1")
        desk.now -= 500
        await desk.turn()
        assert desk.records()[A].until == 500.0 + DAY

    timed(tmp_path, scene)


@pytest.mark.parametrize(
    "usage",
    [
        NO_USAGE,
        Usage("checkpoint", {GPU: {A: Holder("uid:4711")}}),
        Usage("pod-resources", {GPU: {A: Holder("", "of call 1")}}),
    ],
    ids=["nothing_is_known", "by_the_checkpoint", "just_allocated"],
)
def test_a_pod_of_which_it_is_not_known_whether_it_has_ended_has_not(tmp_path: Path, usage: Usage) -> None:
    async def scene(desk: Desk, _: TimedLoop) -> None:
        await desk.start(desk.pod("launcher-1", ONE, "required"), A)
        await desk.turn(usage)
        assert desk.records()[A].ended is None

    timed(tmp_path, scene)


def test_a_vm_that_starts_with_another_device_or_without_the_label_keeps_nothing_of_before(tmp_path: Path) -> None:
    async def scene(desk: Desk, _: TimedLoop) -> None:
        await desk.start(desk.pod("launcher-1", ONE, "preferred"), A)
        await desk.end("vms/launcher-1")
        await desk.start(desk.pod("launcher-2", ONE, "preferred"), B)
        assert set(desk.records()) == {B}
        await desk.end("vms/launcher-2")
        await desk.start(desk.pod("launcher-3", ONE), A)
        assert desk.records() == {}

    timed(tmp_path, scene)


def test_a_resource_whose_rule_does_not_allow_it_any_more_keeps_nothing(tmp_path: Path) -> None:
    async def scene(desk: Desk, _: TimedLoop) -> None:
        await desk.start(desk.pod("launcher-1", ONE, "required"), A)
        desk.resource = cards(keep_for=60.0)
        desk.overlaid()
        await desk.end("vms/launcher-1")
        assert desk.records()[A].until == 1060.0
        desk.resource = cards(same_device=False)
        desk.overlaid()
        await desk.turn()
        assert desk.records() == {}

    timed(tmp_path, scene)


def test_whoever_got_what_is_kept_for_another_does_not_start(tmp_path: Path) -> None:
    async def scene(desk: Desk, _: TimedLoop) -> None:
        await desk.start(desk.pod("launcher-1", ONE, "required"), A)
        await desk.end("vms/launcher-1")
        with raises_code(DEVICE_KEPT):
            await desk.start(desk.pod("stranger", OTHER, "required"), A)
        assert desk.records()[A].owner == ONE

    timed(tmp_path, scene)


def test_a_pod_that_the_api_server_tells_of_late_is_waited_for(tmp_path: Path) -> None:
    async def scene(desk: Desk, loop: TimedLoop) -> None:
        await desk.start(desk.pod("launcher-1", ONE, "required"), A)
        await desk.end("vms/launcher-1")
        desk.listed.add("vms/launcher-2")
        calls = [desk.keeper.check(GPU, [A]), desk.keeper.order(GPU, [A, B])]
        checked, ordered = map(asyncio.ensure_future, calls)
        await settled()
        assert [checked.done(), ordered.done()] == [False, False]
        desk.pod("launcher-2", ONE, "required")
        loop.skip(0.1)
        await checked
        assert await ordered == ([A], [])
        desk.held[A] = "vms/launcher-3"
        started = asyncio.ensure_future(desk.keeper.starting(desk.resource, [A]))
        await settled()
        assert not started.done()
        desk.pod("launcher-3", ONE, "required")
        loop.skip(0.1)
        await started

    timed(tmp_path, scene)


def test_one_that_it_never_tells_of_is_a_doubt_once_and_not_waited_for_again(tmp_path: Path) -> None:
    """As a static pod, which the API server doesn't know of."""

    async def scene(desk: Desk, loop: TimedLoop) -> None:
        await desk.start(desk.pod("launcher-1", ONE, "required"), A)
        await desk.end("vms/launcher-1")
        desk.listed.add("kube-system/static")
        call = asyncio.ensure_future(desk.keeper.check(GPU, [B]))
        await settled()
        loop.skip(PODS_SECONDS + 1)
        with raises_code(CALLER_UNKNOWN):
            await call
        desk.pod("stranger", OTHER)
        await desk.keeper.check(GPU, [B])

    timed(tmp_path, scene)


def test_a_kubelet_that_does_not_say_whom_it_has_is_a_doubt(tmp_path: Path) -> None:
    async def scene(desk: Desk, _: TimedLoop) -> None:
        desk.deaf = True
        await desk.keeper.check(GPU, [A])  # nothing is kept
        desk.deaf = False
        await desk.start(desk.pod("launcher-1", ONE, "required"), A)
        await desk.end("vms/launcher-1")
        desk.pod("launcher-2", ONE, "required")
        desk.deaf = True
        with raises_code(CALLER_UNKNOWN):
            await desk.keeper.check(GPU, [A])
        with raises_code(CALLER_UNKNOWN):
            await desk.start("vms/launcher-2", A)

    timed(tmp_path, scene)


def test_while_others_come_too_fast_a_device_is_unhealthy_although_its_vm_waits(tmp_path: Path) -> None:
    """Pods of a ReplicaSet, which are made again at once, would be placed before that of the VM for ever."""

    async def scene(desk: Desk, _: TimedLoop) -> None:
        await desk.start(desk.pod("launcher-1", ONE, "required"), A)
        await desk.end("vms/launcher-1")
        waiting = {"vms/launcher-2": AskingPod(ONE, "required", {GPU: 1})}
        for number in range(STORM):
            desk.keeper.note_pods(desk.here, waiting)
            assert desk.overlaid() == []
            desk.pod(f"stranger-{number}", OTHER)
            with raises_code(DEVICE_KEPT):
                await desk.keeper.check(GPU, [A])
            await desk.keeper.check(GPU, [B])
            desk.here.clear()
            desk.listed.clear()
            desk.now += (STORM_SECONDS - 1) / (STORM - 1)
        desk.keeper.note_pods(desk.here, waiting)
        assert desk.overlaid() == [A]
        desk.now += QUIET_SECONDS
        assert desk.overlaid() == []
        desk.pod("stranger", OTHER)
        with raises_code(DEVICE_KEPT):
            await desk.keeper.check(GPU, [A])
        desk.keeper.note_pods(desk.here, waiting)
        assert desk.overlaid() == [], "a single one is no storm"

    timed(tmp_path, scene)


class FullDisk(Disk):
    def replace(self, path: str, data: bytes, mode: int = 0o644, folder_mode: int = 0o755) -> None:
        raise UNWRITABLE_FILE(f"{path}: No space left on device", "Make room.", file=path)


def test_who_requires_a_device_does_not_start_unless_that_is_recorded(tmp_path: Path) -> None:
    async def scene(_: TimedLoop) -> None:
        desk = Desk(tmp_path, FullDisk())
        with raises_code(UNWRITABLE_FILE, match="it can't be recorded that VM vms/one has 0000:01:00.0"):
            await desk.start(desk.pod("launcher-1", ONE, "required"), A)
        await desk.start(desk.pod("launcher-2", OTHER, "preferred"), B)
        assert [line for line in desk.lines if "No space left" in line] != []

    run_timed(scene)


def test_the_record_of_another_device_is_none(tmp_path: Path) -> None:
    record = Kept(A, GPU, ONE, "required", "vms/launcher-1", 1000.0, 1000.0, DAY)
    records_in(str(tmp_path)).write(B, encode(record))
    (broken,) = records_in(str(tmp_path)).read().broken.values()
    assert broken.why == f"device: it is the record of {A}"


def test_a_record_that_cannot_be_read_keeps_its_device_for_nobody_and_for_a_day(tmp_path: Path) -> None:
    path = tmp_path / "kept" / f"{A}.json"
    path.parent.mkdir(mode=0o700)
    path.write_text("{")
    path.chmod(0o600)
    os.utime(path, (1000.0, 1000.0))

    async def scene(desk: Desk, _: TimedLoop) -> None:
        assert desk.overlaid() == [A]
        desk.pod("launcher-1", ONE, "required")
        assert desk.overlaid() == [A]
        assert any(f"remove it to free {A}" in line for line in desk.lines)
        with raises_code(DEVICE_KEPT):
            await desk.keeper.check(GPU, [A])
        await desk.keeper.check(GPU, [B])
        desk.now += DAY
        assert desk.overlaid() == []

    timed(tmp_path, scene)


def test_a_record_that_breaks_later_keeps_its_device_from_then_on_and_over_reboots(tmp_path: Path) -> None:
    """Its file may be old by then. A newer version's record is one that can't be read, too."""
    for content in ("", '{"version": 9, "boot": "boot-0"}'):
        path = tmp_path / "kept" / f"{A}.json"
        path.parent.mkdir(mode=0o700, exist_ok=True)
        path.write_text(content)
        path.chmod(0o600)
        os.utime(path, (1000.0, 1000.0))

        async def later(desk: Desk) -> None:
            await desk.start(desk.pod("launcher-2", OTHER, "preferred"), B)

        desk = Desk(tmp_path)
        assert desk.overlaid() == [A]
        asyncio.run(later(desk))
        assert path.exists()
        assert desk.overlaid() == [A]


def test_while_it_is_unknown_what_is_kept_no_pod_gets_such_a_device(tmp_path: Path) -> None:
    """T2: a folder that can't be read at the start."""

    async def scene() -> None:
        with failing(tmp_path / "kept", errno.EIO, "launcherkit_plugin.records"):
            desk = Desk(tmp_path)
            assert desk.overlaid() == [A, B]
            with raises_code(UNREADABLE_FILE):
                await desk.keeper.check(GPU, [A])
            with raises_code(UNREADABLE_FILE):
                await desk.start(desk.pod("launcher-9", OTHER), A)
            with raises_code(UNREADABLE_FILE):
                await desk.keeper.record(desk.resource, "claim", AskingPod(OTHER, "preferred", {GPU: 1}), [A])
            desk.resource = desk.resource._replace(same_device=False)
            assert desk.overlaid() == []
            await desk.keeper.check(GPU, [A])
        desk.resource = cards()
        await asyncio.gather(*desk.keeper.reconcile(NO_FACTS, desk.usage, 0.0))
        assert desk.overlaid() == []

    asyncio.run(scene())


def test_a_clock_that_is_wrong_after_a_boot_frees_nothing(tmp_path: Path) -> None:
    async def scene(desk: Desk, _: TimedLoop) -> None:
        desk.now = 50 * DAY
        await desk.start(desk.pod("launcher-1", ONE, "required"), A)
        await desk.end("vms/launcher-1")
        desk.now = 5.0
        await asyncio.gather(*desk.keeper.reconcile(NO_FACTS, desk.usage, 0.0))
        desk.now = 50 * DAY + 300
        await asyncio.gather(*desk.keeper.reconcile(NO_FACTS, desk.usage, 0.0))
        assert desk.overlaid() == [A]

    timed(tmp_path, scene)


def test_a_clock_that_was_ahead_once_keeps_nothing_for_ever(tmp_path: Path) -> None:
    async def scene(desk: Desk, _: TimedLoop) -> None:
        desk.now = 1e10
        await desk.start(desk.pod("launcher-1", ONE, "required"), A)
        desk.now = 50 * DAY
        await desk.end("vms/launcher-1")
        assert desk.overlaid() == [A]
        desk.now += DAY
        await desk.turn()
        assert (desk.overlaid(), desk.records()) == ([], {})

    timed(tmp_path, scene)


def test_what_no_rule_keeps_any_more_is_forgotten_whatever_the_clock_says(tmp_path: Path) -> None:
    async def scene(desk: Desk, _: TimedLoop) -> None:
        desk.now = 50 * DAY
        await desk.start(desk.pod("launcher-1", ONE, "required"), A)
        await desk.end("vms/launcher-1")
        desk.now = 5.0
        desk.resource = desk.resource._replace(same_device=False)
        desk.overlaid()
        await desk.turn()
        assert desk.records() == {}

    timed(tmp_path, scene)


def test_the_preference_of_a_vm_comes_before_the_lowest_address_and_what_is_kept_comes_last(tmp_path: Path) -> None:
    async def scene(desk: Desk, _: TimedLoop) -> None:
        allocator = Allocator(Reservations(), lambda: 0.0)
        allocator.advertise({GPU: Offer(desk.resource, Giver())}, NO_FACTS)
        assert await allocator.preferred(GPU, [A, B], [], 1) == [A]
        allocator.keeper = desk.keeper
        await desk.start(desk.pod("launcher-0", ONE, "preferred"), B)
        await desk.end("vms/launcher-0")
        desk.pod("launcher-1", ONE, "required")
        assert await allocator.preferred(GPU, [A, B], [], 1) == [B]
        await desk.start("vms/launcher-1", B)
        await desk.start(desk.pod("launcher-2", OTHER, "preferred"), A)
        for name in ("vms/launcher-1", "vms/launcher-2"):
            await desk.end(name)
        desk.pod("stranger", Owner("vms", "third"))
        assert await allocator.preferred(GPU, [A, B], [], 1) == [A]
        assert await allocator.preferred(GPU, [A, B], [], 2) == [A, B]
        await desk.end("vms/stranger")
        desk.pod("launcher-3", ONE, "required")
        assert await allocator.preferred(GPU, [A, B], [], 1) == [B]
        assert await allocator.preferred(GPU, [A], [], 1) == [A], "and Allocate refuses it"
        with raises_code(DEVICE_KEPT):
            await allocator.allocate(GPU, [[A]])
        await allocator.allocate(GPU, [[B]])

    timed(tmp_path, scene)


def test_who_does_not_ask_for_it_gets_what_is_kept_last(tmp_path: Path) -> None:
    async def scene(desk: Desk, _: TimedLoop) -> None:
        allocator = Allocator(Reservations(), lambda: 0.0)
        allocator.advertise({GPU: Offer(desk.resource, Giver())}, NO_FACTS)
        allocator.keeper = desk.keeper
        await desk.start(desk.pod("launcher-1", ONE, "preferred"), A)
        await desk.end("vms/launcher-1")
        desk.pod("stranger", OTHER)
        assert await allocator.preferred(GPU, [A, B], [], 1) == [B]
        assert await allocator.preferred(GPU, [A], [], 1) == [A]

    timed(tmp_path, scene)


# Killed in between


def begin(folder: str) -> None:
    """A VM had B, and its pod starts with A."""

    async def work() -> None:
        desk = Desk(Path(folder))
        await desk.start(desk.pod("launcher-2", ONE, "preferred"), A)

    asyncio.run(work())


def test_killed_at_any_change_a_vm_has_a_last_device_and_a_container_that_started_is_on_record(tmp_path: Path) -> None:
    async def scene(desk: Desk, _: TimedLoop) -> None:
        await desk.start(desk.pod("launcher-1", ONE, "preferred"), B)
        await desk.end("vms/launcher-1")

    for number in range(1, 100):
        folder = tmp_path / str(number)
        timed(folder, scene)
        life = live(begin, str(folder), below=[folder], die_at=number, imported=[__name__])
        found = records_in(str(folder)).read()
        assert found.whole
        assert found.broken == found.void == {}
        if life.last is None:
            assert life.code == 0
            assert set(found.whole) == {A}
            break
    else:
        pytest.fail("it never came to its end")
    assert number > 4
