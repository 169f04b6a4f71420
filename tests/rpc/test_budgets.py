"""Nobody can wear a server out (T4): its memory is bounded, and who asks properly is answered throughout."""

from __future__ import annotations

import os
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.support import hostile
from tests.support.hooks import ROOT, BareClient, ServerProcess, call, hook_process
from tests.support.hosttree import HostTree
from tests.support.kubelet import running_kubelet
from tests.support.waiting import until

INFO = "/kubevirt.hooks.info.Info/Info"
GPU = "nvidia.com/2204"
HONEST_CALLS = 200
GROWTH_MB = 12.0


class Served(NamedTuple):
    """A server under test."""

    process: ServerProcess
    path: Path
    method: str
    """Of the calls that its enemies make."""
    ask: Callable[[], object]
    """One honest call, on a connection of its own or an old one; it raises where it isn't answered."""


@contextmanager
def sidecar() -> Iterator[Served]:
    with (
        tempfile.TemporaryDirectory(prefix="lk-") as folder,
        hook_process("--socket-dir", folder, "--host", "none", python=(sys.executable,)) as hook,
    ):
        path = Path(folder) / "hook.sock"
        yield Served(hook, path, INFO, lambda: call(path, lambda client: client.info()))


@contextmanager
def plugin() -> Iterator[Served]:
    """The device plugin, whose kubelet is the honest client: its connection stays."""
    with tempfile.TemporaryDirectory(prefix="lk-") as name, running_kubelet(Path(name) / "k") as kubelet:
        tree = HostTree(Path(name) / "host")
        tree.card("0000:01:00", group=10)
        places = ["--host", tree.root, "--dev-root", tree.root, "--kubelet-dir", Path(name) / "k"]
        command = [sys.executable, "-m", "launcherkit_plugin", "serve", "--auto", "nvidia", *map(str, places)]
        python_path = os.pathsep.join((str(ROOT), str(ROOT / "plugin")))
        process = ServerProcess(command, {"PYTHONPATH": python_path, "PATH": os.defpath})
        try:
            kubelet.wait_for(GPU)
            (made,) = [each for each in kubelet.plugins.iterdir() if each.name != "kubelet.sock"]
            method = "/v1beta1.DevicePlugin/GetDevicePluginOptions"
            yield Served(process, made, method, lambda: kubelet.call_allocate(GPU, ["0000:01:00.0"]))
            assert kubelet.resources() == {GPU}, "the kubelet's stream was cut"
        finally:
            process.close()


@pytest.fixture(params=[sidecar, plugin], ids=["sidecar", "plugin"])
def served(request: pytest.FixtureRequest) -> Iterator[Served]:
    with request.param() as served:
        served.ask()
        yield served


def resident(process: ServerProcess) -> float:
    """In MB, at its most."""
    return process.resident_peak()


@pytest.mark.slow
@pytest.mark.parametrize("chunks", [hostile.resets, hostile.pings, hostile.settings])
def test_a_flood_of_frames_costs_no_memory_and_honest_calls_are_answered(
    served: Served, chunks: Callable[[str], Iterator[bytes]]
) -> None:
    before = resident(served.process)
    with hostile.flood(served.path, partial(chunks, served.method)) as flood:
        until(lambda: flood.sent > 100_000, "bytes that were taken")
        for _ in range(HONEST_CALLS):
            served.ask()
    assert resident(served.process) - before < GROWTH_MB
    served.ask()


@pytest.mark.slow
def test_pings_whose_answers_nobody_reads_cost_no_memory(served: Served) -> None:
    before = resident(served.process)
    with hostile.flood(served.path, partial(hostile.pings, ""), reads=False) as flood:
        until(lambda: flood.sent > 100_000, "bytes that were taken")
        for _ in range(HONEST_CALLS):
            served.ask()
    assert resident(served.process) - before < GROWTH_MB


@pytest.mark.slow
def test_requests_that_never_end_are_held_up_to_a_limit_and_honest_ones_get_through() -> None:
    """A hundred megabytes in all."""
    define = "/kubevirt.hooks.v1alpha3.Callbacks/OnDefineDomain"
    with sidecar() as served, ExitStack() as opened:
        before = resident(served.process)
        for _ in range(25):
            hostile.hold(opened.enter_context(BareClient(served.path)), define, 4 << 20)
            call(served.path, lambda client: client.define())
        assert resident(served.process) - before < 40


def test_idle_connections_make_room_the_oldest_first_and_one_with_a_call_stays(served: Served) -> None:
    with ExitStack() as opened:
        first, *_ = [opened.enter_context(hostile.connected(served.path)) for _ in range(300)]
        # Then the server has taken nearly all of them. While its queue is full asyncio takes a socket that isn't
        # connected yet for one that is.
        while first.recv(4096):
            pass
        served.ask()


def test_a_watch_of_the_kubelet_outlives_any_number_of_idle_connections() -> None:
    with plugin() as served, ExitStack() as opened:
        for _ in range(600):
            opened.enter_context(hostile.connected(served.path))
        served.ask()


def test_calls_that_never_ask_anything_make_room_for_those_that_do(served: Served) -> None:
    """Three hundred of them, in as many connections as take a hundred each."""
    with ExitStack() as opened:
        for _ in range(4):
            client = opened.enter_context(BareClient(served.path))
            for _ in range(90):
                client.request(served.method)
        for _ in range(20):
            served.ask()


def test_of_endless_calls_there_are_a_few_and_the_kubelets_is_among_them() -> None:
    with plugin() as served, BareClient(served.path) as client:
        streams = []
        for _ in range(40):
            stream = client.request("/v1beta1.DevicePlugin/ListAndWatch")
            client.h2.send_data(stream, bytes(5), end_stream=True)
            client.send()
            streams.append(stream)
        assert client.headers_until(streams[-1], "grpc-status") == "8"
        served.ask()


@pytest.mark.slow
def test_without_file_descriptors_it_says_so_once_and_comes_back() -> None:
    with sidecar() as served, ExitStack() as opened:
        pid = served.process.process.pid
        limits = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (len(os.listdir(f"/proc/{pid}/fd")) + 3, limits[1]))
        for _ in range(8):
            opened.enter_context(hostile.connected(served.path))
        served.process.wait_for("can't be accepted")
        time.sleep(2.5)  # it tries again each second
        resource.prlimit(pid, resource.RLIMIT_NOFILE, limits)
        served.ask()
        assert served.process.reported().count("accept") == 1
