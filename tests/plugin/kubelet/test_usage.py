"""Who holds what: PodResources first, the checkpoint where it says more, and nothing rather than a guess."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from grpclib import GRPCError, Status
from grpclib.server import Stream

from launcherkit.errors import UsageUnknown
from launcherkit.rpc.client import ANSWER_BYTES
from launcherkit.rpc.proto.podresources_v1_pb2 import ListPodResourcesRequest, ListPodResourcesResponse
from launcherkit_plugin.host.work_queue import WorkQueue
from launcherkit_plugin.kubelet.client import list_pod_devices
from launcherkit_plugin.kubelet.usage import SETTLE_SECONDS, SYNCED_SECONDS, read_usage
from launcherkit_plugin.model.device import NO_USAGE, Holder, Usage
from launcherkit_plugin.model.errors import USAGE_UNREADABLE, WORK_HANGS
from tests.support.errors import raises_code
from tests.support.looping import TimedLoop, run_timed
from tests.support.pod_resources import (
    PodResourcesLister,
    PodResourcesService,
    Pods,
    serving_pod_resources,
    write_checkpoint,
)
from tests.support.waiting import PATIENCE

GPU = "nvidia.com/GA102"
VM: Pods = {"vms/launcher-1": {GPU: ["0000:01:00.0", "0000:02:00.0"]}}
HELD = {device: Holder("vms/launcher-1", "compute") for device in ("0000:01:00.0", "0000:02:00.0")}


class Kubelet:
    """Its two files, as a node has them."""

    def __init__(self, folder: Path) -> None:
        self.socket = folder / "pod-resources/kubelet.sock"
        self.checkpoint = folder / "device-plugins/kubelet_internal_checkpoint"
        self.checkpoint.parent.mkdir(parents=True)
        self.problems: list[UsageUnknown] = []

    def usage(
        self,
        pods: Pods | PodResourcesLister | None,
        *,
        age: float = 10 * SETTLE_SECONDS,
        own_pod: str | None = None,
        states: Mapping[str, bool] | None = None,
    ) -> Usage:
        """What is read while ``pods`` are served, so many seconds after the kubelet's start."""

        async def read() -> Usage:
            def clock() -> float:
                return max(path.stat().st_ctime for path in (self.socket, self.checkpoint) if path.exists()) + age

            return await read_usage(
                str(self.socket),
                str(self.checkpoint),
                own_pod=own_pod,
                clock=clock,
                states=lambda _: states or {},
                notify=self.problems.append,
                queue=WorkQueue(stall=PATIENCE),
            )

        async def serve_and_read() -> Usage:
            if pods is None:
                return await read()
            service = pods if isinstance(pods, PodResourcesLister) else PodResourcesService(pods)
            async with serving_pod_resources(self.socket, service):
                return await read()

        return asyncio.run(serve_and_read())


@pytest.fixture
def kubelet(tmp_path: Path) -> Kubelet:
    return Kubelet(tmp_path)


def test_pod_resources_says_who_holds_what(kubelet: Kubelet) -> None:
    assert kubelet.usage(VM) == Usage("pod-resources", {GPU: HELD})


def test_the_checkpoint_stands_in_for_pod_resources(kubelet: Kubelet) -> None:
    write_checkpoint(kubelet.checkpoint, {"u-1": {GPU: ["0000:01:00.0"]}})
    assert kubelet.usage(None) == Usage("checkpoint", {GPU: {"0000:01:00.0": Holder("uid:u-1", "compute")}})


def test_with_neither_nothing_is_known(kubelet: Kubelet) -> None:
    assert kubelet.usage(None) == NO_USAGE
    kubelet.checkpoint.write_text('{"Data":')
    assert kubelet.usage(None) == NO_USAGE


def test_a_kubelet_that_has_just_started_is_not_believed_that_nothing_is_held(kubelet: Kubelet) -> None:
    write_checkpoint(kubelet.checkpoint, {"u-1": {GPU: ["0000:01:00.0"]}})
    assert kubelet.usage({}, age=1).holder(GPU, "0000:01:00.0") == Holder("uid:u-1", "compute")
    assert kubelet.usage({}).held == {}, "the checkpoint alone would hold it for ever"


def test_a_running_pod_that_pod_resources_omits_has_what_the_checkpoint_names(kubelet: Kubelet) -> None:
    write_checkpoint(kubelet.checkpoint, {"u-1": {GPU: ["0000:01:00.0"]}, "u-2": {GPU: ["0000:03:00.0"]}})
    usage = kubelet.usage({}, states={"u-1": True, "u-2": False})
    assert usage == Usage("pod-resources", {GPU: {"0000:01:00.0": Holder("uid:u-1", "compute")}})
    assert kubelet.usage(VM, states={"u-1": True, "u-2": False}).held == {GPU: HELD}, "the pod has its name"


def test_of_a_pod_that_nobody_knows_the_end_of_nothing_is_taken_away_and_nothing_refused_for_it(
    kubelet: Kubelet,
) -> None:
    write_checkpoint(kubelet.checkpoint, {"u-1": {GPU: ["0000:01:00.0"]}})
    usage = kubelet.usage({})
    assert (usage.held, usage.kept) == ({}, {GPU: {"0000:01:00.0": Holder("uid:u-1", "compute")}})


def test_where_both_know_a_device_the_pod_has_its_name(kubelet: Kubelet) -> None:
    write_checkpoint(kubelet.checkpoint, {"u-1": {GPU: ["0000:01:00.0", "0000:03:00.0"]}})
    usage = kubelet.usage(VM, age=1)
    assert {str(holder) for holder in usage.held[GPU].values()} == {"pod vms/launcher-1", "pod uid:u-1"}


def test_a_kubelet_that_does_not_know_our_own_pod_does_not_know_the_others(kubelet: Kubelet) -> None:
    write_checkpoint(kubelet.checkpoint, {"u-1": {GPU: ["0000:01:00.0"]}})
    static_pods: Pods = {"kube-system/etcd-node1": {}}
    assert kubelet.usage(static_pods, own_pod="gpu/plugin-x").held[GPU]
    with_own: Pods = {**static_pods, "gpu/plugin-x": {}}
    assert kubelet.usage(with_own, own_pod="gpu/plugin-x", age=SYNCED_SECONDS).held == {}
    assert kubelet.usage(with_own, own_pod="gpu/plugin-x", age=1).held[GPU], "it may not have taken in all of them yet"


def test_a_clock_that_was_set_back_makes_nothing_free(kubelet: Kubelet) -> None:
    write_checkpoint(kubelet.checkpoint, {"u-1": {GPU: ["0000:01:00.0"]}})
    assert kubelet.usage({}, age=-3600).held[GPU]


def test_a_kubelet_that_starts_with_a_broken_checkpoint_leaves_everything_unknown(kubelet: Kubelet) -> None:
    kubelet.checkpoint.write_text('{"Data":')
    assert kubelet.usage({}, age=1) == NO_USAGE
    assert kubelet.usage({}).known


def test_a_kubelet_that_has_never_given_anything_away_has_no_checkpoint(kubelet: Kubelet) -> None:
    assert kubelet.usage({}, age=1) == Usage("pod-resources", {})


class Refusing(PodResourcesLister):
    async def List(self, stream: Stream[ListPodResourcesRequest, ListPodResourcesResponse]) -> None:
        raise GRPCError(Status.RESOURCE_EXHAUSTED, "too many calls")


class Endless(PodResourcesLister):
    """Says that its message is as long as a message can be."""

    async def List(self, stream: Stream[ListPodResourcesRequest, ListPodResourcesResponse]) -> None:
        await stream.send_initial_metadata()
        await stream._stream.send_data(b"\x00" + (ANSWER_BYTES + 1).to_bytes(4, "big") + b"\n")


class CutOff(PodResourcesLister):
    async def List(self, stream: Stream[ListPodResourcesRequest, ListPodResourcesResponse]) -> None:
        await stream.send_initial_metadata()
        await stream._stream.send_data(b"\x00\x00\x00\x00\x09\n")


class Broken(PodResourcesLister):
    async def List(self, stream: Stream[ListPodResourcesRequest, ListPodResourcesResponse]) -> None:
        await stream.send_initial_metadata()
        await stream._stream.send_data(b"\x00\x00\x00\x00\x02\xff\xff")


class Silent(PodResourcesLister):
    async def List(self, stream: Stream[ListPodResourcesRequest, ListPodResourcesResponse]) -> None:
        await asyncio.Event().wait()


@pytest.mark.parametrize(
    ("service", "why"),
    [
        (Refusing, "RESOURCE_EXHAUSTED: too many calls"),
        (Endless, "the limit is"),
        (CutOff, "cut off"),
        (Broken, "can't be read"),
        (Silent, "no answer within"),
    ],
)
def test_an_answer_that_is_none_is_an_error_and_the_checkpoint_counts(
    tmp_path: Path, kubelet: Kubelet, service: Callable[[], PodResourcesLister], why: str
) -> None:
    async def ask() -> None:
        async with serving_pod_resources(kubelet.socket, service()):
            await list_pod_devices(str(kubelet.socket), seconds=0.2 if service is Silent else 60)

    with raises_code(USAGE_UNREADABLE, match=why):
        asyncio.run(ask())
    write_checkpoint(kubelet.checkpoint, {"u-1": {GPU: ["0000:01:00.0"]}})
    if service is not Silent:
        assert kubelet.usage(service()).source == "checkpoint"


def test_a_checkpoint_that_does_not_come_from_the_disk_holds_up_nobody(kubelet: Kubelet) -> None:
    """K9: it can't be read, like one that is broken, and the other source is asked."""
    os.mkfifo(kubelet.checkpoint)
    reported: list[UsageUnknown] = []

    async def read(loop: TimedLoop) -> Usage:
        queue = WorkQueue(stall=PATIENCE)
        paths = str(kubelet.socket), str(kubelet.checkpoint)
        reading = asyncio.create_task(read_usage(*paths, notify=reported.append, queue=queue))
        while not queue.is_busy(str(kubelet.checkpoint)):
            await asyncio.sleep(0)
        loop.skip(60)
        return await reading

    assert run_timed(read) == NO_USAGE
    assert [os.path.basename(problem.message.partition(":")[0]) for problem in reported] == [
        "kubelet_internal_checkpoint",
        "kubelet.sock",
    ]
    with open(kubelet.checkpoint, "wb"):
        pass  # the thread ends


class Hanging(WorkQueue):
    """No work of which returns in time."""

    async def run(self, *_: Any, **__: Any) -> Any:
        raise WORK_HANGS("the disk hangs", "")


def test_while_the_kubelets_disk_hangs_what_pod_resources_lists_is_held_and_the_rest_is_unknown(
    kubelet: Kubelet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """K9: nothing of the kubelet's folder is looked at in the event loop's thread, neither before nor after."""
    looked: list[str] = []

    def watched(name: str) -> Callable[..., Any]:
        original = getattr(os, name)

        def look(path: Any, *rest: Any, **more: Any) -> Any:
            if threading.current_thread() is threading.main_thread() and "device-plugins" in str(path):
                looked.append(f"{name} {path}")
            return original(path, *rest, **more)

        return look

    async def read() -> Usage:
        async with serving_pod_resources(kubelet.socket, PodResourcesService(VM)):
            paths = str(kubelet.socket), str(kubelet.checkpoint)
            return await read_usage(*paths, notify=kubelet.problems.append, queue=Hanging())

    for name in ("stat", "listdir", "open"):
        monkeypatch.setattr(os, name, watched(name))
    assert asyncio.run(read()) == Usage("none", {GPU: HELD})
    assert looked == []


def test_why_a_source_can_not_be_read_is_reported(kubelet: Kubelet) -> None:
    reported: list[UsageUnknown] = []
    paths = str(kubelet.socket), str(kubelet.checkpoint)
    asyncio.run(read_usage(*paths, notify=reported.append, queue=WorkQueue(stall=PATIENCE)))
    assert [os.path.basename(problem.message.partition(":")[0]) for problem in reported] == [
        "kubelet_internal_checkpoint",
        "kubelet.sock",
    ]
