"""An Allocate of a card whose files hang: nobody else waits, the card is named, and it costs one thread (K9)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from launcherkit_plugin.host.work_queue import WorkQueue
from launcherkit_plugin.model.device import Grant
from launcherkit_plugin.model.errors import DEVICE_UNHEALTHY, WORK_HANGS
from tests.plugin.resources import GPU, Node, rebind
from tests.support.errors import raises_code
from tests.support.faults import Stall
from tests.support.hosttree import HostTree
from tests.support.looping import PATIENCE, TimedLoop, WorkThreads, run_timed, settled

SICK, AUDIO, WELL, THIRD = "0000:01:00.0", "0000:01:00.1", "0000:02:00.0", "0000:04:00.0"
MATE = "0000:03:00.0"
"""In the sick card's group, but not in its slot."""


@pytest.fixture
def node(tmp_path: Path) -> Node:
    tree = HostTree(tmp_path)
    tree.card("0000:01:00", group=10)
    tree.function(MATE, class_code=0x020000, group=10)
    tree.card("0000:02:00", group=11)
    tree.card("0000:04:00", group=14)
    node = Node(tree)
    node.look()
    return node


def allocate(node: Node, *ids: str) -> asyncio.Task[Grant]:
    return asyncio.create_task(node.provider.allocate(node.seen[GPU], ids))


async def refused(allocating: asyncio.Task[Grant], loop: TimedLoop, stall: Stall) -> str:
    """The message of an Allocate that can't come to an end; time passes while a call doesn't return."""
    while not allocating.done():
        if stall.waiting:
            loop.skip(PATIENCE)
        await asyncio.sleep(0.001)
    with raises_code(WORK_HANGS) as caught:
        await allocating
    return caught.value.message


@pytest.mark.parametrize(
    ("call", "word", "named"),
    [
        ("read", f"{SICK}/uevent", SICK),
        ("open", f"{SICK}/uevent", SICK),
        ("readlink", f"drivers/vfio-pci/{AUDIO}", AUDIO),
        ("readlink", f"devices/{MATE}/driver", MATE),
        ("listdir", "iommu_groups/10/devices", SICK),
        ("access", "dev/vfio/10", SICK),
    ],
)
def test_whatever_call_hangs_it_is_named_and_nobody_else_waits(
    node: Node, stall: Stall, work: WorkThreads, call: str, word: str, named: str
) -> None:
    async def scene(loop: TimedLoop) -> None:
        assert (await allocate(node, WELL, SICK)).nodes
        stall.calls, stall.words = (call,), (word,)
        hanging = allocate(node, WELL, SICK, THIRD)
        while not stall.waiting:
            await asyncio.sleep(0.001)
        assert (await refused(hanging, loop, stall)).startswith(f"{named}: reading ")
        assert (await allocate(node, WELL)).nodes == ("/dev/vfio/vfio", "/dev/vfio/11")
        for _ in range(3):
            assert (await refused(allocate(node, SICK), loop, stall)).startswith(f"{named}: reading ")
        assert set(node.queue.late) == {named}
        await work.number_is(1)
        stall.ends()
        await work.number_is(0)
        while node.queue.late:
            await asyncio.sleep(0.001)
        assert (await allocate(node, SICK)).nodes == ("/dev/vfio/vfio", "/dev/vfio/10")

    run_timed(scene)


def test_where_the_list_of_extended_memory_hangs_that_is_said_and_not_what_was_read_before(
    node: Node, stall: Stall, work: WorkThreads, tmp_path: Path
) -> None:
    async def scene(loop: TimedLoop) -> None:
        stall.calls, stall.words = ("listdir",), ("sys/class/egm$",)
        message = await refused(allocate(node, WELL), loop, stall)
        assert f"reading {tmp_path}/sys/class/egm" in message
        stall.ends()
        await work.number_is(0)

    run_timed(scene)


def test_a_card_that_hangs_when_it_is_read_anew_is_named(node: Node, stall: Stall, tmp_path: Path) -> None:
    async def scene(loop: TimedLoop) -> None:
        rebind(HostTree(tmp_path), MATE, "vfio-pci")
        stall.calls, stall.words = ("pread",), (f"{AUDIO}/resource", f"{MATE}/resource")
        message = await refused(allocate(node, WELL, SICK), loop, stall)
        assert message.startswith(f"{MATE}: reading ")
        assert set(node.queue.late) == {MATE}

    run_timed(scene)


def test_what_waits_for_a_card_that_another_look_is_at_goes_on_once_that_look_hangs_elsewhere(
    node: Node, stall: Stall
) -> None:
    async def scene(loop: TimedLoop) -> None:
        stall.calls, stall.words = ("read",), (f"{SICK}/uevent",)
        both = allocate(node, SICK, WELL)
        while not stall.waiting:
            await asyncio.sleep(0.001)
        behind = asyncio.create_task(node.queue.quiet([WELL], 10 * PATIENCE))
        await asyncio.sleep(0)
        node.queue.give_up(WELL)  # as after a second
        await settled()
        assert behind.done()
        assert (await allocate(node, WELL)).nodes
        assert (await refused(both, loop, stall)).startswith(f"{SICK}: reading ")

    run_timed(scene)


def test_however_many_devices_are_read_anew_it_is_done_in_one_thread(
    node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[list[str]] = []
    look = WorkQueue.look

    async def noted(self: WorkQueue, keys: Iterable[str], *arguments: Any) -> Any:
        begun.append(list(keys))
        return await look(self, begun[-1], *arguments)

    monkeypatch.setattr(WorkQueue, "look", noted)
    tree, all_keys = HostTree(tmp_path), [SICK, WELL, AUDIO, MATE, "0000:02:00.1"]
    node.grant(SICK, WELL)
    assert begun == [all_keys], "the last scan still holds"
    rebind(tree, MATE, "vfio-pci")
    begun.clear()
    assert node.grant(SICK, WELL).nodes == ("/dev/vfio/vfio", "/dev/vfio/10", "/dev/vfio/11")
    assert begun == [all_keys] * 2
    rebind(tree, "0000:02:00.1", "snd_hda_intel")
    begun.clear()
    with raises_code(DEVICE_UNHEALTHY, match=WELL):
        node.grant(SICK, WELL)
    assert begun == [all_keys] * 2
