"""Strangers are turned away (T4). Whatever the others send, memory is bounded, and who asks properly is answered."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest

from launcherkit_lab.kubelet import running_kubelet
from tests.support import hostile
from tests.support.hooks import ROOT, ServerProcess, call, hook_process
from tests.support.hosttree import HostTree
from tests.support.waiting import until

INFO = "/kubevirt.hooks.info.Info/Info"
GPU = "nvidia.com/2204"
HONEST_CALLS = 50
GROWTH_MB = 12.0
NOBODY = 65534


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
        (Path(name) / "pci.ids").touch()  # the machine may have names
        config = Path(name) / "plugin.json"
        config.write_text(json.dumps({"auto": "nvidia", "pciIds": f"{name}/pci.ids"}))
        places = ["--host", tree.root, "--dev-root", tree.root, "--kubelet-dir", Path(name) / "k"]
        command = [sys.executable, "-m", "launcherkit_plugin", "serve", "--config", *map(str, (config, *places))]
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


STRANGER = """
import os, socket, sys
os.setuid(int(sys.argv[1]))
for _ in range(40):
    with socket.socket(socket.AF_UNIX) as stranger:
        stranger.connect(sys.argv[2])
        assert stranger.recv(1) == b""
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_a_stranger_whom_the_mode_lets_in_is_turned_away_and_the_log_says_so_once(served: Served) -> None:
    """Another user with this one's group."""
    for folder in (served.path.parent, *served.path.parents):
        if folder.stat().st_uid == 0 and not folder.stat().st_mode & 0o001:
            folder.chmod(0o711)
    # No fork: the threads of the kubelet's gRPC would be missing in it.
    assert subprocess.run([sys.executable, "-c", STRANGER, str(NOBODY), served.path], check=False).returncode == 0
    served.ask()
    said = f"a connection of user {NOBODY} was closed"
    served.process.wait_for(said)  # what it has said may not have been read yet
    assert served.process.reported().count(said) == 1


def test_a_watch_of_the_kubelet_outlives_any_number_of_idle_connections() -> None:
    with plugin() as served, ExitStack() as opened:
        for _ in range(600):
            opened.enter_context(hostile.connected(served.path))
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
