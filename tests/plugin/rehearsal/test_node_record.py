"""A node that is written down and read back gives what it gave; and nothing of it is anybody's secret."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from launcherkit.errors import LauncherkitError, SeveralErrors
from launcherkit.host.source import Host
from launcherkit.model.host import HostFacts
from launcherkit_plugin.host.work_queue import WorkQueue
from launcherkit_plugin.model.device import Device, Holder, Problem, Resource, Usage
from launcherkit_plugin.model.errors import BAD_NODE_RECORD
from launcherkit_plugin.rehearsal.candidate_node import CandidateNode
from launcherkit_plugin.rehearsal.node_record import (
    MAX_BYTES,
    PAUSE_SECONDS,
    NodeOffer,
    NodeRecorder,
    pack,
    read_record,
    record_of,
    unpack,
)
from tests.plugin.resources import GPU, Node
from tests.support.errors import raises_code
from tests.support.hosttree import HostTree
from tests.support.looping import TimedLoop, run_timed
from tests.support.waiting import PATIENCE


def offer(folder: Path, usage: Usage) -> NodeOffer:
    """Three cards, two of them in one group, as a daemon sees them."""
    tree = HostTree(folder)
    for slot, group in (("0000:01:00", 1), ("0000:02:00", 1), ("0000:03:00", 2)):
        tree.card(slot, group=group)
    node = Node(tree)
    return NodeOffer("node-1", node.facts(), node.provider.resources(node.facts(), usage, 0.0), usage)


HELD = Usage("pod-resources", {GPU: {"0000:01:00.0": Holder("team-a/secret-pod", "compute")}})


def test_a_node_that_is_read_back_gives_what_it_gave(tmp_path: Path) -> None:
    before = offer(tmp_path, HELD)
    after = read_record(unpack(pack(record_of(before)), "node-1"), "node-1")
    assert [each.devices for each in after.resources] == [each.devices for each in before.resources]
    assert CandidateNode(after).allocate({GPU: 1}) == CandidateNode(before).allocate({GPU: 1})
    with pytest.raises(LauncherkitError):
        CandidateNode(after).allocate({GPU: 2})


def test_every_field_of_a_device_comes_back() -> None:
    device = Device(
        "0000:01:00.4",
        1,
        Problem("not-viable", "IOMMU group 4 is not viable"),
        frozenset({4, 5}),
        path=("pci0000:00", "0000:00:01.0"),
        description="NVIDIA A40-1B",
        card="0000:01:00.0",
        made=False,
        vgpu_types=("NVIDIA A40-1B",),
        place="0000:01:00.4",
    )
    resource = Resource(
        "a.b/c", "PCI_RESOURCE_A_B_C", {device.id: device}, True, dra=True, use="kata", lists_siblings=True
    )
    facts = Host.none().scan()._replace(known=True)
    written = NodeOffer("n", facts, [resource], nodes="cdev")
    assert read_record(record_of(written), "n")._replace(usage=written.usage) == written


def test_it_names_neither_pods_nor_containers(tmp_path: Path) -> None:
    record = record_of(offer(tmp_path, HELD))
    assert json.loads(record)["held"] == ["0000:01:00.0"]
    assert "secret" not in record
    assert "compute" not in record


def test_a_record_is_the_same_for_the_same_node(tmp_path: Path) -> None:
    before = offer(tmp_path, HELD)
    assert pack(record_of(before)) == pack(record_of(before))


@pytest.mark.parametrize("packed", ["", "no base64!", "AAAA", pack("{}"), pack('{"format": 1}'), pack("[]")])
def test_what_is_no_record_is_an_error_that_names_the_node(packed: str) -> None:
    with pytest.raises(LauncherkitError) as raised:
        read_record(unpack(packed, "node-1"), "node-1")
    assert {error.code for error in raised.value.leaves()} == {"LK865"}
    assert all("node-1" in error.message for error in raised.value.leaves())


def test_a_record_with_something_in_between_is_none(tmp_path: Path) -> None:
    packed = pack(record_of(offer(tmp_path, HELD)))
    with raises_code(BAD_NODE_RECORD, match=r"^node-1: the record can't be unpacked"):
        unpack(f"{packed[:8]}!{packed[8:]}", "node-1")


@pytest.mark.slow
def test_what_unpacks_to_more_than_a_record_may_have_is_refused() -> None:
    with raises_code(BAD_NODE_RECORD, match="node-1: the record can't be unpacked: it has more than 64 MiB"):
        unpack(pack("x" * (65 << 20)), "node-1")


def test_a_device_of_another_shape_is_told_by_its_place(tmp_path: Path) -> None:
    record = json.loads(record_of(offer(tmp_path, HELD)))
    record["resources"][0]["devices"][0]["groups"] = ["one"]
    record["resources"][0]["devices"][1]["colour"] = "red"
    record["resources"][0]["use"] = "nobody"
    with pytest.raises(
        SeveralErrors, match=r"(?s)\$\.resources\[0\]\.devices\[0\]\.groups\[0\].*colour.*vm, kata or c"
    ):
        read_record(json.dumps(record), "node-1")


@pytest.mark.slow
def test_a_node_with_a_thousand_vfs_fits_in_a_configmap(tmp_path: Path) -> None:
    tree = HostTree(tmp_path)
    tree.function("0000:01:00.0", class_code=0x020000, driver="mlx5_core", group=1)
    for number in range(8, 256):
        address = f"0000:01:{number // 8:02x}.{number % 8}"
        tree.vf("0000:01:00.0", address, class_code=0x020000, driver="vfio-pci", group=number)
    packed = pack(record_of(NodeOffer("n", Host.from_sysfs(tmp_path).scan(), [])))
    assert len(packed) * 1000 // 248 < MAX_BYTES // 4


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


async def _at_once(work: Callable[[], str]) -> str:
    return work()


def test_it_is_written_at_most_once_a_minute(tmp_path: Path) -> None:
    before, clock, sent = offer(tmp_path, HELD), Clock(), list[Mapping[str, str]]()
    host = Host.from_sysfs(tmp_path)

    async def scenario() -> None:
        recorder = NodeRecorder(host, _at_once, sent.append, clock)
        for now in (0.0, 1.0, PAUSE_SECONDS - 1, PAUSE_SECONDS):
            clock.now = now
            recorder.update(before)
            while recorder.busy:
                await asyncio.sleep(0.01)

    asyncio.run(scenario())
    assert len(sent) == 2
    found = read_record(unpack(sent[0]["record"], "n"), "n").facts
    assert found.functions == before.facts.functions
    assert found.details == host.facts(list(before.facts.functions), topology=True).details


def test_a_device_that_hangs_is_the_reason_why_there_is_no_record_until_it_returns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, clock, sent, may_read = offer(tmp_path, HELD), Clock(), list[Mapping[str, str]](), threading.Event()
    host = Host.from_sysfs(tmp_path)
    facts = Host.facts

    def hang(*arguments: Any, **named: Any) -> HostFacts:
        may_read.wait(60)
        return facts(*arguments, **named)

    monkeypatch.setattr(Host, "facts", hang)

    async def scenario(loop: TimedLoop) -> None:
        queue = WorkQueue(stall=PATIENCE)
        run = partial(queue.run, "record", "reading devices", seconds=60)
        recorder = NodeRecorder(host, run, sent.append, clock)
        for minute, returns in ((0, False), (1, False), (2, True)):
            if returns:
                may_read.set()
                while queue.is_busy("record"):
                    await asyncio.sleep(0.01)
            clock.now = minute * PAUSE_SECONDS
            recorder.update(before)
            while recorder.busy:
                if not returns:
                    loop.skip(60)
                await asyncio.sleep(0.01)

    run_timed(scenario)
    assert [[*each] for each in sent] == [["problem"], ["problem"], ["record"]]
    assert "record: reading devices has not returned" in sent[0]["problem"]
