"""The daemon's socket and the process that speaks to the API server, against a strict stand-in for that server."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from launcherkit_plugin.cluster.api import ApiProblem
from launcherkit_plugin.cluster.protocol import HELLO, LINE_BYTES, line_of
from launcherkit_plugin.cluster.serve import persist, serve
from launcherkit_plugin.cluster.socket import ClusterSettings, ClusterSocket
from launcherkit_plugin.model.errors import CLUSTER_SOCKET_NOT_MADE, NO_CLUSTER
from launcherkit_plugin.model.wakeups import Wakeup, WakeupQueue
from launcherkit_plugin.telemetry.reporter import Level, Reporter
from tests.support.apiserver import KUBEVIRTS, NODES, PODS, ApiServer
from tests.support.clusterprocess import ClusterProcess
from tests.support.errors import raises_code
from tests.support.provoked import provoked
from tests.support.waiting import until

_SECONDS = 60


@pytest.fixture
def server() -> ApiServer:
    it = ApiServer()
    it.put(NODES, {"metadata": {"name": "node-1", "labels": {"zone": "a"}}})
    it.put(NODES, {"metadata": {"name": "node-2", "labels": {"zone": "b"}}})
    return it


@pytest.fixture
def kubeconfig(server: ApiServer, tmp_path: Path) -> Iterator[Path]:
    with server.running(tmp_path) as path:
        yield path


@pytest.fixture
def path() -> Iterator[Path]:
    """Of the daemon's socket."""
    with tempfile.TemporaryDirectory(prefix="lk-") as folder:
        yield Path(folder) / "daemon.sock"


class Daemon:
    """A daemon's socket, and what it hears."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.wakeups = WakeupQueue(0.01)
        self.socket = ClusterSocket(self.log, self.wakeups)

    def log(self, level: Level, text: str, **fields: object) -> None:
        self.lines.append(text)

    async def facts(self, condition: Callable[[ClusterSettings], bool]) -> None:
        await self.until(lambda: condition(self.socket.facts))

    async def until(self, condition: Callable[[], Any]) -> None:
        async with asyncio.timeout(_SECONDS):
            while not condition():
                await asyncio.sleep(0.02)


Scenario = Callable[[Daemon], Awaitable[None]]


def daemon(path: Path, scenario: Scenario) -> Daemon:
    """Run a scenario with a daemon that listens."""

    async def main() -> Daemon:
        it = Daemon()
        async with it.socket.listening(str(path)):
            await scenario(it)
        return it

    return asyncio.run(main())


def beside(path: Path, kubeconfig: Path, scenario: Scenario, *arguments: str) -> Daemon:
    """The same beside the process that speaks to the cluster."""
    with ClusterProcess(path, "node-1", kubeconfig, *arguments):
        return daemon(path, scenario)


KUBEVIRT: dict[str, Any] = {
    "metadata": {"name": "kubevirt", "namespace": "kubevirt"},
    "spec": {"configuration": {"permittedHostDevices": {"pciHostDevices": []}}},
}


def test_the_facts_come_and_come_again_when_they_change(server: ApiServer, kubeconfig: Path, path: Path) -> None:
    server.put(KUBEVIRTS, KUBEVIRT)

    async def scenario(it: Daemon) -> None:
        assert it.socket.facts == (None, {})
        it.socket.want_kubevirt()
        assert await it.socket.first(_SECONDS) == ({"permittedHostDevices": {"pciHostDevices": []}}, {"zone": "a"})
        server.put(NODES, {"metadata": {"name": "node-1", "labels": {"zone": "c"}}})
        await it.facts(lambda facts: facts[1] == {"zone": "c"})
        assert Wakeup.CONFIG in await it.wakeups.wait(_SECONDS)
        server.put(KUBEVIRTS, {**KUBEVIRT, "spec": {}})
        await it.facts(lambda facts: facts[0] == {})

    beside(path, kubeconfig, scenario)


def test_an_event_names_no_pod(server: ApiServer, kubeconfig: Path, path: Path) -> None:
    """Events of a Node are in a namespace that others read, too."""

    async def scenario(it: Daemon) -> None:
        it.socket.event("Warning", "BindingFailed", "0000:01:00.0 is held by pod vms/virt-launcher-a.")
        await asyncio.to_thread(server.wait_for, "an Event", lambda: server.events)

    beside(path, kubeconfig, scenario)
    assert "held by a pod." in str(server.events)
    assert "virt-launcher" not in str(server.events)


def test_a_daemon_may_want_kubevirts_settings_later(server: ApiServer, kubeconfig: Path, path: Path) -> None:
    server.put(KUBEVIRTS, KUBEVIRT)

    async def scenario(it: Daemon) -> None:
        await it.until(lambda: it.lines)
        it.socket.want_kubevirt()
        await it.facts(lambda facts: bool(facts[0]))

    beside(path, kubeconfig, scenario)


def test_what_nobody_wants_to_know_is_not_asked_for(server: ApiServer, kubeconfig: Path, path: Path) -> None:
    async def scenario(it: Daemon) -> None:
        it.socket.event("Normal", "Bound", "a")
        await asyncio.to_thread(server.wait_for, "an Event", lambda: server.events)

    beside(path, kubeconfig, scenario)
    assert server.lists == 0


def test_a_version_that_the_server_has_forgotten_loses_nothing(server: ApiServer, kubeconfig: Path, path: Path) -> None:
    async def scenario(it: Daemon) -> None:
        it.socket.want_kubevirt()
        assert (await it.socket.first(_SECONDS))[0] == {}
        server.bookmark()
        server.forget()
        server.put(KUBEVIRTS, KUBEVIRT)
        await it.facts(lambda facts: bool(facts[0]))

    beside(path, kubeconfig, scenario)


def test_a_cluster_without_kubevirt_says_so(server: ApiServer, kubeconfig: Path, path: Path) -> None:
    server.absent.add(KUBEVIRTS)

    async def scenario(it: Daemon) -> None:
        it.socket.want_kubevirt()
        assert (await it.socket.first(_SECONDS))[0] == {}

    beside(path, kubeconfig, scenario)


def test_the_end_of_a_pod_of_this_node_is_a_wakeup(server: ApiServer, kubeconfig: Path, path: Path) -> None:
    def pod(name: str, node: str, phase: str = "Running") -> dict[str, Any]:
        metadata = {"name": name, "namespace": "vms"}
        return {"metadata": metadata, "spec": {"nodeName": node}, "status": {"phase": phase}}

    for name, node in (("a", "node-1"), ("b", "node-1"), ("c", "node-2")):
        server.put(PODS, pod(name, node))

    async def scenario(it: Daemon) -> None:
        await it.until(lambda: it.lines)
        await asyncio.to_thread(server.wait_for, "a watch", lambda: server.watches == 1)
        server.remove(PODS, "c")
        server.remove(PODS, "a")
        await it.until(lambda: "the pod 'vms/a' has ended" in it.lines)
        server.put(PODS, pod("b", "node-1", "Succeeded"))
        await it.until(lambda: "the pod 'vms/b' has ended" in it.lines)
        assert await it.wakeups.wait(_SECONDS) == {Wakeup.PODS}

    reported = beside(path, kubeconfig, scenario, "--watch-pods")
    assert not any("vms/c" in line for line in reported.lines)


def test_an_event_lands_on_the_node_and_its_repetition_raises_the_count(
    server: ApiServer, kubeconfig: Path, path: Path
) -> None:
    async def scenario(it: Daemon) -> None:
        for _ in range(3):
            it.socket.event("Warning", "DeviceUnhealthy", "0000:e1:00.0 is bound to nvidia")
        await asyncio.to_thread(
            server.wait_for, "an Event", lambda: [event["count"] for event in server.events.values()] == [3]
        )

    beside(path, kubeconfig, scenario)
    (event,) = server.events.values()
    assert (event["type"], event["reason"], event["message"]) == (
        "Warning",
        "DeviceUnhealthy",
        "0000:e1:00.0 is bound to nvidia",
    )
    assert event["involvedObject"] == {"apiVersion": "v1", "kind": "Node", "name": "node-1", "uid": "node-1"}


def test_an_event_that_the_server_has_dropped_is_posted_anew(server: ApiServer, kubeconfig: Path, path: Path) -> None:
    async def scenario(it: Daemon) -> None:
        it.socket.event("Normal", "Bound", "a")
        await asyncio.to_thread(server.wait_for, "an Event", lambda: server.events)
        with server.lock:
            server.events.clear()
        it.socket.event("Normal", "Bound", "a")
        await asyncio.to_thread(server.wait_for, "it again", lambda: server.events)

    beside(path, kubeconfig, scenario)
    assert [event["count"] for event in server.events.values()] == [2]


# Either may end and come back


def test_a_process_that_is_killed_has_a_successor_and_events_wait_for_it(
    server: ApiServer, kubeconfig: Path, path: Path
) -> None:
    async def scenario(it: Daemon) -> None:
        it.socket.want_kubevirt()
        with ClusterProcess(path, "node-1", kubeconfig) as first:
            await it.socket.first(_SECONDS)
            first.process.kill()
            await it.until(lambda: any("disconnected" in line for line in it.lines))
        it.socket.event("Normal", "Bound", "after the end")
        server.put(NODES, {"metadata": {"name": "node-1", "labels": {"zone": "d"}}})
        with ClusterProcess(path, "node-1", kubeconfig):
            await asyncio.to_thread(server.wait_for, "an Event", lambda: server.events)
            await it.facts(lambda facts: facts[1] == {"zone": "d"})

    daemon(path, scenario)


def test_a_daemon_that_starts_anew_is_told_what_there_is(server: ApiServer, kubeconfig: Path, path: Path) -> None:
    async def scenario(it: Daemon) -> None:
        it.socket.want_kubevirt()
        assert (await it.socket.first(_SECONDS))[1] == {"zone": "a"}

    with ClusterProcess(path, "node-1", kubeconfig) as process:
        daemon(path, scenario)
        lists = server.lists
        daemon(path, scenario)
        assert server.lists == lists, "it watches once, whoever asks"
        ended = "no connection to the daemon: it has disconnected"
        until(lambda: process.reported().count(ended) == 2, "both ends", process.reported)
        assert process.end(signal.SIGTERM) == 0


def test_without_credentials_the_process_says_so_and_ends(path: Path) -> None:
    with ClusterProcess(path, "node-1", None) as process:
        assert process.wait() == 69
        (reported,) = provoked("cluster", "LK741")
        assert process.reported().splitlines()[0] == reported.replace("LK741", "error[LK741]")


def test_without_a_socket_or_a_node_it_says_what_to_give(kubeconfig: Path) -> None:
    with ClusterProcess("", "", kubeconfig) as process:
        assert process.wait() == 2
        assert "give --cluster-socket SOCKET, and --node NAME" in process.reported()


GROUP = 65533
"""The pod's ``fsGroup``."""
STRANGER: dict[str, Any] = {"user": 65534, "group": 65534, "extra_groups": [GROUP]}


def python_of_strangers() -> str:
    """An interpreter that others than root can run; this one may be in root's home."""
    for python in (sys.executable, f"/usr/bin/python3.{sys.version_info.minor}"):
        with suppress(OSError):
            if (
                subprocess.run([python, "-c", f"open({__file__!r})"], stderr=subprocess.DEVNULL, **STRANGER).returncode
                == 0
            ):
                return python
    pytest.skip("nobody but root can read this checkout, or run a Python")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_the_groups_socket_is_all_that_its_process_needs(server: ApiServer, kubeconfig: Path, path: Path) -> None:
    os.chown(path.parent, 0, GROUP)
    path.parent.chmod(0o2750)
    credentials = path.with_name("kubeconfig")
    shutil.copyfile(kubeconfig, credentials)
    credentials.chmod(0o640)

    async def scenario(it: Daemon) -> None:
        assert (stat.S_IMODE(path.stat().st_mode), path.stat().st_gid) == (0o660, GROUP)
        it.socket.event("Normal", "Bound", "a")
        await asyncio.to_thread(server.wait_for, "an Event", lambda: server.events)

    with ClusterProcess(path, "node-1", credentials, python=python_of_strangers(), **STRANGER):
        daemon(path, scenario)


# What the other side says


@pytest.mark.parametrize(
    "line",
    [
        b'{"a": 1, "b": 2}\n',
        b"[]\n",
        b"null\n",
        b"{\n",
        b"\n",
        b"\xff\n",
        b"[" * 100_000 + b"\n",
        b"a" * (LINE_BYTES + 2),
        line_of("kubevirt", [1]),
        line_of("labels", {"a": 1}),
        line_of("labels", None),
    ],
    ids=str,
)
def test_who_says_what_it_can_not_is_hung_up_on_and_another_may_come(line: bytes, path: Path) -> None:
    async def scenario(it: Daemon) -> None:
        reader, writer = await asyncio.open_unix_connection(str(path))
        writer.write(line_of("hello", HELLO) + line)
        async with asyncio.timeout(_SECONDS):
            try:
                while await reader.read(65536):
                    pass
            except ConnectionError:
                pass
        writer.close()
        await it.until(lambda: any("was disconnected" in each for each in it.lines))
        reader, writer = await asyncio.open_unix_connection(str(path))
        assert json.loads(await reader.readline()) == {"hello": {"version": 1}}
        writer.close()

    reported = daemon(path, scenario)
    assert all(len(each) < 1000 for each in reported.lines)


def test_a_key_that_is_not_known_yet_is_left_alone(path: Path) -> None:
    async def scenario(it: Daemon) -> None:
        it.socket.want_kubevirt()
        _, writer = await asyncio.open_unix_connection(str(path))
        writer.write(
            line_of("hello", HELLO) + line_of("claims", [1]) + line_of("kubevirt", None) + line_of("labels", {})
        )
        assert await it.socket.first(_SECONDS) == ({}, {})
        writer.close()

    daemon(path, scenario)


def test_another_version_is_not_talked_to(path: Path) -> None:
    async def scenario(it: Daemon) -> None:
        _, writer = await asyncio.open_unix_connection(str(path))
        writer.write(line_of("hello", {"version": 2}))
        await it.until(lambda: any("not a greeting of version 1" in line for line in it.lines))
        writer.close()

    daemon(path, scenario)


def test_the_one_that_dialled_last_counts(path: Path) -> None:
    async def scenario(it: Daemon) -> None:
        async with AsyncExitStack() as opened:
            first, old = await asyncio.open_unix_connection(str(path))
            opened.callback(old.close)
            await first.readline()
            reader, writer = await asyncio.open_unix_connection(str(path))
            opened.callback(writer.close)
            await reader.readline()
            it.socket.event("Normal", "Bound", "a")
            assert json.loads(await reader.readline())["event"]["message"] == "a"
            async with asyncio.timeout(_SECONDS):
                assert await first.read() == b""

    daemon(path, scenario)


# Without a daemon


def test_the_daemon_is_tried_again_after_a_pause_and_its_absence_told_once(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Enough(Exception):
        pass

    pauses: list[float] = []
    told: list[str] = []

    def sleep(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 3:
            raise Enough

    monkeypatch.setattr(time, "sleep", sleep)
    process: Any = SimpleNamespace(reporter=Reporter(lambda level, text, **_: told.append(text)))
    with pytest.raises(Enough):
        serve(process, str(path), pods=False)
    assert pauses == [0.5] * 3
    assert told == [f"{path}: no connection to the daemon: No such file or directory; trying again"]


# Without a cluster


def test_a_cluster_that_says_nothing_is_an_error_that_says_what_to_check(path: Path) -> None:
    async def scenario(it: Daemon) -> None:
        with raises_code(NO_CLUSTER, match="has not sent"):
            await it.socket.first(0.01)

    daemon(path, scenario)


def test_where_nothing_listens_what_is_missing_is_said_at_once() -> None:
    async def scenario() -> None:
        it = Daemon()
        it.socket.event("Normal", "Bound", "goes nowhere")
        with raises_code(NO_CLUSTER, match="nothing here connects to one") as caught:
            await it.socket.first(_SECONDS)
        assert "component `cluster`" in caught.value.remedy

    asyncio.run(scenario())


def test_events_for_a_process_that_never_comes_do_not_pile_up(path: Path) -> None:
    async def scenario(it: Daemon) -> None:
        for number in range(10_000):
            it.socket.event("Normal", "Bound", str(number))
        reader, writer = await asyncio.open_unix_connection(str(path))
        assert json.loads(await reader.readline()) == {"hello": {"version": 1}}
        messages = [json.loads(await reader.readline())["event"]["message"] for _ in range(256)]
        assert messages == [str(number) for number in range(10_000 - 256, 10_000)]
        writer.close()

    daemon(path, scenario)


def test_a_socket_that_can_not_be_made_is_reported(tmp_path: Path) -> None:
    async def scenario(it: Daemon) -> None:
        raise AssertionError

    with raises_code(CLUSTER_SOCKET_NOT_MADE) as caught:
        daemon(tmp_path / "none" / "daemon.sock", scenario)
    (reported,) = provoked("cluster", "LK743")
    assert f"LK743: {caught.value.message}" == reported.replace("/run/launcherkit-cluster", str(tmp_path / "none"))


def test_the_daemons_side_has_no_kubernetes_client() -> None:
    program = "import sys, launcherkit_plugin.cluster.socket; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert not {"kubernetes", "urllib3", "pydantic", "yaml"} & set(done.stdout.split())


def test_without_a_cluster_events_are_lines_of_the_log() -> None:
    reported = Daemon()
    Reporter(reported.log).happened("DeviceUnhealthy", "it is gone", "warning")
    assert reported.lines == ["it is gone"]


def test_a_watch_that_ends_begins_again_after_pauses_that_double_and_is_reported_once() -> None:
    reported, now, pauses = Daemon(), [0.0], list[float]()

    def watch() -> None:
        if len(pauses) == 4:
            now[0] += 1000.0  # it goes well for long
        raise ApiProblem(0, "nobody answers")

    def wait(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 6:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        persist(watch, Reporter(reported.log), wait, lambda: now[0])
    assert pauses == [1.0, 2.0, 4.0, 8.0, 1.0, 2.0]
    assert reported.lines == 2 * ["the cluster can't be watched: nobody answers"]
