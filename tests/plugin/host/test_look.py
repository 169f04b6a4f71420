"""A look at the host is not held up by a device that doesn't answer, and nothing of that device is taken to be gone."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from launcherkit.model.address import PciAddress
from launcherkit.model.host import HostFacts
from launcherkit.sources.host import Host
from launcherkit.sources.tree import PAGE, DiskTree
from launcherkit_plugin.host.guarded import Guarded
from launcherkit_plugin.host.look import Looks, Progress, with_stalled
from launcherkit_plugin.host.scan import read_node
from launcherkit_plugin.model.device import Device, Resource
from launcherkit_plugin.model.usage import NO_USAGE, Holder, Usage
from tests.plugin.resources import rebind
from tests.support.hosttree import HostTree

SICK, WELL = PciAddress.parse("0000:01:00.0"), PciAddress.parse("0000:02:00.0")
AUDIO = PciAddress.parse("0000:01:00.1")


class Stall:
    """Files that don't come back when they are read."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.words: tuple[str, ...] = ()
        self.free = threading.Event()
        read = DiskTree.read

        def slow(tree: DiskTree, path: str, limit: int = PAGE, offset: int = 0) -> bytes | None:
            whole = f"{tree._path}/{path}"
            if any(word in whole for word in self.words):
                self.free.wait(60)
            return read(tree, path, limit, offset)

        monkeypatch.setattr(DiskTree, "read", slow)

    def ends(self) -> None:
        self.words = ()
        self.free.set()
        self.free = threading.Event()


@pytest.fixture
def stall(monkeypatch: pytest.MonkeyPatch) -> Iterator[Stall]:
    stall = Stall(monkeypatch)
    try:
        yield stall
    finally:
        stall.ends()


@pytest.fixture
def tree(tmp_path: Path) -> HostTree:
    tree = HostTree(tmp_path)
    tree.card("0000:01:00", group=10)
    tree.card("0000:02:00", group=11)
    tree.mdev_type("0000:02:00.0", "nvidia-222", available_instances="4")
    return tree


class Node:
    def __init__(self, tree: HostTree) -> None:
        self.host = Host.from_sysfs(tree.root)
        self.guarded = Guarded()
        self.looks = Looks(self.guarded, stall=0.05)

    async def look(self) -> HostFacts:
        return await self.looks.look(self._scan)

    def _scan(self, progress: Progress) -> HostFacts:
        return read_node(
            self.host.followed(progress.open_tree), lambda function: function.class_code >> 16 == 3, vgpu=True
        )


async def threads_are(number: int) -> None:
    """One that has just done its work may need a moment to end."""
    while len([thread for thread in threading.enumerate() if thread.name.startswith("guarded")]) != number:
        await asyncio.sleep(0.001)


@pytest.mark.parametrize("file", ["uevent", "config", "numa_node"])
def test_what_one_device_makes_wait_for_is_as_it_was_and_the_others_are_as_they_are(
    tree: HostTree, stall: Stall, file: str
) -> None:
    async def scene() -> None:
        node = Node(tree)
        before = await node.look()
        stall.words = (f"0000:01:00.0/{file}",)
        rebind(tree, str(WELL), "nvidia")
        found = await node.look()
        assert found.functions[WELL].driver == "nvidia"
        for kind in ("functions", "details"):
            assert getattr(found, kind)[SICK] == getattr(before, kind)[SICK]
        assert found.groups == before.groups
        assert found.nodes == before.nodes
        assert node.looks.stalled == {str(SICK)}

    asyncio.run(scene())


def test_a_device_that_stalls_costs_one_thread_however_often_is_looked(tree: HostTree, stall: Stall) -> None:
    async def scene() -> None:
        node = Node(tree)
        await node.look()
        stall.words = ("0000:01:00.0/config", "0000:01:00.0/uevent")
        for _ in range(10):
            await node.look()
            await threads_are(1)
        stall.ends()
        while node.looks.stalled:
            await asyncio.sleep(0.001)
        rebind(tree, str(SICK), "nvidia")
        assert (await node.look()).functions[SICK].driver == "nvidia"
        await threads_are(0)

    asyncio.run(scene())


def test_two_that_stall_are_both_left_out(tree: HostTree, stall: Stall) -> None:
    async def scene() -> None:
        node = Node(tree)
        before = await node.look()
        stall.words = ("0000:01:00.0/uevent", "available_instances")
        found = await node.look()
        assert node.looks.stalled == {str(SICK), str(WELL)}
        assert (found.functions, found.mdev_parents) == (before.functions, before.mdev_parents)
        await threads_are(2)

    asyncio.run(scene())


def test_a_device_that_stalls_is_given_to_nobody_else(tree: HostTree) -> None:
    devices = {str(each): Device(str(each), functions=(each,)) for each in (SICK, WELL)}
    resource = Resource("gpu", "X", devices)
    stalled = with_stalled(resource, {str(SICK)}, NO_USAGE).devices
    assert [key for key, device in stalled.items() if device.healthy] == [str(WELL)]
    held = Usage("pod-resources", {"gpu": {str(SICK): Holder("default/vm")}})
    assert with_stalled(resource, {str(SICK)}, held) == resource


def test_one_that_never_answered_is_not_taken_for_free(tree: HostTree, stall: Stall) -> None:
    """With it in the group nothing of the group can be handed out (V1)."""

    async def scene() -> None:
        node = Node(tree)
        stall.words = (f"{AUDIO}/uevent",)
        found = await node.look()
        assert found.functions[SICK].driver == "vfio-pci"
        assert found.groups[10] == (SICK, AUDIO)
        assert found.functions[AUDIO].driver not in (None, "vfio-pci")

    asyncio.run(scene())
