"""Nobody waits for another card's trouble, wherever a driver hangs, does nothing, or answers late (K9)."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise

import pytest

from launcherkit_plugin.allocation.allocator import Allocator, Offer
from launcherkit_plugin.allocation.reservations import Reservations
from launcherkit_plugin.host.work_queue import WorkQueue
from launcherkit_plugin.model.config import LayoutEntry, VgpuConfig, VgpuRule
from launcherkit_plugin.model.device import Usage
from launcherkit_plugin.model.errors import WORK_HANGS
from launcherkit_plugin.telemetry.reporter import Reporter
from launcherkit_plugin.vgpu.maker import Maker
from launcherkit_plugin.vgpu.mdev_slots import MdevSlot
from launcherkit_plugin.vgpu.providers import vgpus_of
from launcherkit_plugin.vgpu.writer import VgpuWriter
from tests.plugin.vgpu.kernel import A2_4Q, T4_1Q, Kernel
from tests.plugin.vgpu.node import Clock, Recorded, name_of
from tests.support.errors import raises_code
from tests.support.looping import WorkThreads, settled
from tests.support.waiting import PATIENCE

SICK, WELL = "0000:01:00.0", "0000:02:00.0"
SICK_VFS, WELL_VFS = "0000:41:00.0", "0000:42:00.0"
MDEVS, VFS = "nvidia.com/GRID_T4-1Q", "nvidia.com/NVIDIA_A2-4Q"
NOBODY = Usage("pod-resources", {})


class Node:
    """Two cards of mdevs and two of VFs; of each kind one falls ill."""

    def __init__(self, layout: tuple[LayoutEntry, ...] = ()) -> None:
        self.kernel = Kernel()
        self.kernel.card(SICK)
        self.kernel.card(WELL)
        self.kernel.card_of_vfs(SICK_VFS, 4, [A2_4Q], mib=16384)
        self.kernel.card_of_vfs(WELL_VFS, 4, [A2_4Q], mib=16384)
        self.clock, self.recorded = Clock(), Recorded()
        self.queue = WorkQueue(stall=PATIENCE)
        self.allocator = Allocator(Reservations(), self.clock)
        self.layout = layout
        self.writes: list[str] = []
        self.reload()

    def reload(self) -> None:
        """Another configuration, on the same machine and by the same process."""
        maker = Maker(self.kernel, self.clock, self.clock.sleep)
        writer = VgpuWriter(maker, self.kernel.is_open, Reporter(self.recorded.log, self.recorded, self.recorded))
        config = VgpuConfig(
            self.layout,
            mdevs=(VgpuRule(("GRID T4-1Q",), mode="dynamic"),),
            vfs=(VgpuRule(("NVIDIA A2-4Q",), mode="dynamic", prefix="PCI_RESOURCE"),),
        )
        self.providers, self.reconcilers = vgpus_of(config, name_of, writer, self.queue)

    def turn(self) -> list[asyncio.Task[bool]]:
        """A turn of the daemon; what it has begun."""
        reads, self.kernel.reads = (
            self.kernel.reads,
            lambda _: None,
        )  # looks at all of a host: tests/plugin/host/test_scan.py
        facts = self.kernel.facts()
        self.kernel.reads = reads
        usage = self.allocator.observe(NOBODY, self.clock.now - 1)
        begun = [task for each in self.reconcilers for task in each.reconcile(facts, usage, self.clock.now)]
        offers = {
            found.name: Offer(found, provider)
            for provider in self.providers
            for found in provider.resources(facts, usage, self.clock.now)
        }
        self.offers = self.allocator.advertise(offers, facts)
        return begun

    def free(self, resource: str, card: str) -> str:
        """A device of a card that can be had."""
        devices = self.offers[resource].resource.devices.values()
        return next(each.id for each in devices if each.healthy and f" {card}" in each.description)

    async def allocate(self, resource: str, device: str) -> object:
        return await self.allocator.allocate(resource, [[device]])


class Gate(threading.Event):
    """Lets go of what hangs at it when it is set; ``reached`` is set once something hangs."""

    def __init__(self) -> None:
        super().__init__()
        self.reached = threading.Event()


@contextmanager
def stuck(kernel: Kernel, *words: str) -> Iterator[Gate]:
    """Reads and writes with one of these words in their path hang until the event is set."""
    free = Gate()

    def wait(path: str) -> None:
        if any(word in path for word in words):
            free.reached.set()
            free.wait(60)

    kernel.touched = kernel.reads = wait
    try:
        yield free
    finally:
        free.set()


async def until_well(node: Node) -> None:
    while any(node.queue.is_busy(card) for card in (SICK, SICK_VFS)):
        await asyncio.sleep(0.001)
    await settled()  # who has waited for it goes on only now


MDEV_SLOT = MdevSlot(SICK, T4_1Q.id, 0).uuid
SICK_VF = "0000:41:01.0"
PLACES = {
    "a create": (MDEVS, SICK, WELL, (f"{SICK}/mdev_supported_types/nvidia-222/create",)),
    "the look for a new mdev": (MDEVS, SICK, WELL, (f"{MDEV_SLOT}/",)),
    "a type that is set": (VFS, SICK_VFS, WELL_VFS, (f"{SICK_VF}/nvidia/current_vgpu_type",)),
    "the table of types": (VFS, SICK_VFS, WELL_VFS, ("0000:41:01.0/nvidia",)),
    "the identity of a VF": (VFS, SICK_VFS, WELL_VFS, ("0000:41:01.0/uevent",)),
}


@pytest.mark.parametrize("place", PLACES)
def test_another_card_is_given_away_while_one_hangs(place: str, work: WorkThreads) -> None:
    resource, sick, well, words = PLACES[place]

    async def scene() -> None:
        node = Node()
        node.turn()
        asked, others = node.free(resource, sick), node.free(resource, well)
        with stuck(node.kernel, *words):
            waiting = asyncio.create_task(node.allocate(resource, asked))
            while not work.names():
                await asyncio.sleep(0)
            await node.allocate(resource, others)
            assert not waiting.done()
            node.queue.give_up(sick)  # its time is over
            with raises_code(WORK_HANGS, match=f"{sick}: making vGPUs on {sick} has not returned"):
                await node.allocate(resource, asked)
            node.turn()
            ill = [each.problem for each in node.offers[resource].resource.devices.values() if not each.healthy]
            assert any(problem is not None and "has not returned" in problem.text for problem in ill)
        await waiting
        await until_well(node)
        node.turn()
        await work.names_are()
        await node.allocate(resource, asked)

    asyncio.run(scene())


REMOVALS: dict[str, tuple[str, str, str, tuple[str, ...]]] = {
    "a removal": (MDEVS, SICK, WELL, ("/remove",)),
    "a type that is taken back": (VFS, SICK_VFS, WELL_VFS, (f"{SICK_VF}/nvidia/current_vgpu_type",)),
}


@pytest.mark.parametrize("place", REMOVALS)
def test_what_hangs_is_not_begun_again_however_often_the_configuration_changes(place: str, work: WorkThreads) -> None:
    resource, sick, well, words = REMOVALS[place]

    async def scene() -> None:
        node = Node()
        node.turn()
        await node.allocate(resource, node.free(resource, sick))
        await asyncio.gather(*node.turn())
        node.clock.now += 100
        await asyncio.gather(*node.turn())  # from now on nobody has it
        node.clock.now += 100
        with stuck(node.kernel, *words):
            (removing,) = node.turn()
            for _ in range(20):
                node.reload()
                node.turn()
                node.clock.now += 1000
                assert node.turn() == []
                await work.names_are(f"work: {sick}")
            await node.allocate(resource, node.free(resource, well))
            assert not removing.done()
        assert await removing
        assert len(node.kernel.taken) == 1

    asyncio.run(scene())


def test_a_removal_that_is_accepted_and_not_done_is_tried_less_and_less_often() -> None:
    async def scene() -> None:
        node = Node()
        node.turn()
        await node.allocate(MDEVS, node.free(MDEVS, SICK))
        tries: list[float] = []
        node.kernel.ignores = lambda path: path.endswith("/remove") and not tries.append(node.clock.now)  # type: ignore[func-returns-value]
        for _ in range(100):
            node.clock.now += 30
            await asyncio.gather(*node.turn())
            await node.allocate(MDEVS, node.free(MDEVS, WELL))
        pauses = [round(later - earlier) for earlier, later in pairwise(tries)]
        assert len(tries) < 15
        assert pauses == sorted(pauses)
        assert max(pauses) > 300
        assert len([line for line in node.recorded.lines if "LK735" in line]) <= len(tries)
        node.kernel.ignores = lambda _: False
        node.clock.now += 1000
        await asyncio.gather(*node.turn())
        assert node.kernel.taken

    asyncio.run(scene())


def test_a_layout_that_hangs_on_one_card_is_brought_about_on_the_other() -> None:
    async def scene() -> None:
        node = Node((LayoutEntry(SICK, "GRID T4-1Q", 2), LayoutEntry(WELL, "GRID T4-1Q", 2)))
        with stuck(node.kernel, f"{SICK}/mdev_supported_types/nvidia-222/create"):
            begun = node.turn()
            done, _ = await asyncio.wait(begun, return_when=asyncio.FIRST_COMPLETED)
            assert [task.result() for task in done] == [True]
            assert {parent for parent, _ in node.kernel.mdevs.values()} == {WELL}
        await asyncio.gather(*begun)
        assert sorted(parent for parent, _ in node.kernel.mdevs.values()) == [SICK, SICK, WELL, WELL]

    asyncio.run(scene())


def test_what_comes_back_late_and_was_given_up_is_removed_after_the_grace_time() -> None:
    async def scene() -> None:
        node = Node()
        node.turn()
        asked = node.free(MDEVS, SICK)
        with stuck(node.kernel, "/create") as gate:
            waiting = asyncio.create_task(node.allocate(MDEVS, asked))
            while not gate.reached.is_set():
                await asyncio.sleep(0)
            waiting.cancel()
        await until_well(node)
        assert asked in node.kernel.mdevs
        for _ in range(2):
            node.clock.now += 100
            await asyncio.gather(*node.turn())
        assert asked not in node.kernel.mdevs

    asyncio.run(scene())


def test_an_allocate_that_comes_after_a_removal_has_begun_makes_it_again() -> None:
    async def scene() -> None:
        node = Node()
        node.turn()
        asked = node.free(MDEVS, SICK)
        await node.allocate(MDEVS, asked)
        node.clock.now += 100
        assert node.turn() == [], "its grace time has just begun"
        with stuck(node.kernel, "/remove") as free:
            node.clock.now += 100
            begun = node.turn()
            waiting = asyncio.create_task(node.allocate(MDEVS, asked))
            await asyncio.sleep(0)
            assert not waiting.done()
            free.set()
            await waiting
        await asyncio.gather(*begun)
        assert node.kernel.taken == [asked]
        assert asked in node.kernel.mdevs

    asyncio.run(scene())
