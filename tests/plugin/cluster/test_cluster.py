"""The daemon and the process that talks to the API server, against a strict stand-in for that server."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from launcherkit_plugin.cluster import LogRecorder
from launcherkit_plugin.cluster.client import Cluster, ClusterFacts, command, has_credentials
from launcherkit_plugin.model.errors import NoCluster
from launcherkit_plugin.telemetry.log import Level
from tests.support.apiserver import KUBEVIRTS, NODES, PODS, ApiServer
from tests.support.provoked import provoked

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


class Told:
    """What the daemon is told, to be waited for."""

    def __init__(self) -> None:
        self.facts: list[ClusterFacts] = []
        self.pods: list[str] = []
        self.lines: list[str] = []

    def log(self, level: Level, text: str, **fields: object) -> None:
        self.lines.append(text)

    async def until(self, condition: Callable[[], Any]) -> None:
        async with asyncio.timeout(_SECONDS):
            while not condition():
                await asyncio.sleep(0.02)


def environment(kubeconfig: Path | str) -> dict[str, str]:
    return {**os.environ, "KUBECONFIG": str(kubeconfig)}


def attended(argv: list[str], env: dict[str, str], scenario: Callable[[Cluster, Told], Awaitable[None]]) -> Told:
    """Run a scenario beside a cluster's process."""

    async def main() -> Told:
        told = Told()
        cluster = Cluster(argv, env, told.log, changed=told.facts.append, pod_gone=told.pods.append)
        running = asyncio.create_task(cluster.run())
        try:
            await scenario(cluster, told)
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
        return told

    return asyncio.run(main())


KUBEVIRT: dict[str, Any] = {
    "metadata": {"name": "kubevirt", "namespace": "kubevirt"},
    "spec": {"configuration": {"permittedHostDevices": {"pciHostDevices": []}}},
}


def test_the_facts_come_and_come_again_when_they_change(server: ApiServer, kubeconfig: Path) -> None:
    server.put(KUBEVIRTS, KUBEVIRT)

    async def scenario(cluster: Cluster, told: Told) -> None:
        first = await cluster.first(_SECONDS)
        assert first == ClusterFacts({"permittedHostDevices": {"pciHostDevices": []}}, {"zone": "a"})
        server.put(NODES, {"metadata": {"name": "node-1", "labels": {"zone": "c"}}})
        await told.until(lambda: told.facts[-1].labels == {"zone": "c"})
        server.put(NODES, {"metadata": {"name": "node-2", "labels": {"zone": "c"}}})
        server.put(KUBEVIRTS, {**KUBEVIRT, "spec": {}})
        await told.until(lambda: told.facts[-1].kubevirt == {})
        server.remove(KUBEVIRTS, "kubevirt")
        await told.until(lambda: told.facts[-1].kubevirt is None)

    told = attended(command("node-1", True), environment(kubeconfig), scenario)
    assert len(told.facts) == 4, "what did not change was told"


def test_a_version_that_the_server_has_forgotten_loses_nothing(server: ApiServer, kubeconfig: Path) -> None:
    async def scenario(cluster: Cluster, told: Told) -> None:
        await cluster.first(_SECONDS)
        server.bookmark()
        server.forget()
        server.put(KUBEVIRTS, KUBEVIRT)
        await told.until(lambda: told.facts[-1].kubevirt is not None)

    attended(command("node-1", True), environment(kubeconfig), scenario)


def test_a_cluster_without_kubevirt_says_so(server: ApiServer, kubeconfig: Path) -> None:
    server.absent.add(KUBEVIRTS)

    async def scenario(cluster: Cluster, told: Told) -> None:
        assert (await cluster.first(_SECONDS)).kubevirt is None

    attended(command("node-1", True), environment(kubeconfig), scenario)


def test_the_end_of_a_pod_of_this_node_is_a_hint(server: ApiServer, kubeconfig: Path) -> None:
    def pod(name: str, node: str, phase: str = "Running") -> dict[str, Any]:
        metadata = {"name": name, "namespace": "vms"}
        return {"metadata": metadata, "spec": {"nodeName": node}, "status": {"phase": phase}}

    for name, node in (("a", "node-1"), ("b", "node-1"), ("c", "node-2")):
        server.put(PODS, pod(name, node))

    async def scenario(cluster: Cluster, told: Told) -> None:
        await asyncio.to_thread(server.wait_for, "a watch", lambda: server.watches == 1)
        server.remove(PODS, "c")
        server.remove(PODS, "a")
        await told.until(lambda: told.pods == ["vms/a"])
        server.put(PODS, pod("b", "node-1", "Succeeded"))
        await told.until(lambda: told.pods == ["vms/a", "vms/b"])

    attended(command("node-1", False), environment(kubeconfig), scenario)


def test_an_event_lands_on_the_node_and_its_repetition_raises_the_count(server: ApiServer, kubeconfig: Path) -> None:
    async def scenario(cluster: Cluster, told: Told) -> None:
        for _ in range(3):
            cluster.event("Warning", "DeviceUnhealthy", "0000:e1:00.0 is bound to nvidia")
        await asyncio.to_thread(
            server.wait_for, "an Event", lambda: [event["count"] for event in server.events.values()] == [3]
        )

    attended(command("node-1", False), environment(kubeconfig), scenario)
    (event,) = server.events.values()
    assert (event["type"], event["reason"], event["message"]) == (
        "Warning",
        "DeviceUnhealthy",
        "0000:e1:00.0 is bound to nvidia",
    )
    assert event["involvedObject"] == {"apiVersion": "v1", "kind": "Node", "name": "node-1", "uid": "node-1"}


def test_an_event_that_the_server_has_dropped_is_posted_anew(server: ApiServer, kubeconfig: Path) -> None:
    async def scenario(cluster: Cluster, told: Told) -> None:
        cluster.event("Normal", "Bound", "a")
        await asyncio.to_thread(server.wait_for, "an Event", lambda: server.events)
        with server.lock:
            server.events.clear()
        cluster.event("Normal", "Bound", "a")
        await asyncio.to_thread(server.wait_for, "it again", lambda: server.events)

    attended(command("node-1", False), environment(kubeconfig), scenario)
    assert [event["count"] for event in server.events.values()] == [2]


def test_a_process_that_is_killed_is_started_again_and_events_wait_for_it(server: ApiServer, kubeconfig: Path) -> None:
    async def scenario(cluster: Cluster, told: Told) -> None:
        await asyncio.to_thread(server.wait_for, "a watch", lambda: server.watches == 1)
        (child,) = children_of(os.getpid())
        os.kill(child, signal.SIGKILL)
        await told.until(lambda: any("has ended" in line for line in told.lines))
        cluster.event("Normal", "Bound", "after the end")
        await asyncio.to_thread(server.wait_for, "an Event", lambda: server.events)

    attended(command("node-1", False), environment(kubeconfig), scenario)
    assert children_of(os.getpid()) == []


def children_of(pid: int) -> list[int]:
    """The processes of this one that talk to a cluster."""
    tasks = Path(f"/proc/{pid}/task").glob("*/children")
    found = [int(child) for task in tasks for child in task.read_text().split()]
    return [child for child in found if b"launcherkit_plugin.cluster" in Path(f"/proc/{child}/cmdline").read_bytes()]


@pytest.mark.parametrize("line", [b'{"a": 1, "b": 2}', b"[]", b"null", b"{", b"", b"\xff"])
def test_an_odd_line_from_the_process_is_survived(line: bytes) -> None:
    program = f"import sys; sys.stdout.buffer.write({line + bytes([10])!r}); sys.stdout.flush(); sys.stdin.read()"

    async def scenario(cluster: Cluster, told: Told) -> None:
        await told.until(lambda: any("has ended" in each for each in told.lines))

    attended([sys.executable, "-c", program], dict(os.environ), scenario)


def test_a_process_that_does_not_end_with_its_input_is_ended() -> None:
    program = 'import signal, time; print(\'{"pod": "a/b"}\', flush=True); time.sleep(1000)'

    async def scenario(cluster: Cluster, told: Told) -> None:
        await told.until(lambda: told.pods == ["a/b"])

    attended([sys.executable, "-c", program], dict(os.environ), scenario)


def test_a_cluster_that_says_nothing_is_an_error_that_says_what_to_check() -> None:
    async def scenario(cluster: Cluster, told: Told) -> None:
        with pytest.raises(NoCluster, match="has not told"):
            await cluster.first(0.01)

    attended([sys.executable, "-c", "import sys; sys.stdin.read()"], dict(os.environ), scenario)


def test_events_for_a_process_that_never_comes_do_not_pile_up() -> None:
    cluster = Cluster(["/nowhere"], {}, lambda level, text, **fields: None)
    for number in range(10_000):
        cluster.event("Normal", "Bound", str(number))
    assert len(cluster._waiting) <= 256


def test_without_credentials_the_process_says_so_and_ends(tmp_path: Path) -> None:
    done = subprocess.run(
        command("node-1", True),
        env={"PATH": os.environ["PATH"]},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 69
    (told,) = provoked("cluster", "LK741")
    assert done.stderr.splitlines()[0] == told.replace("LK741", "error[LK741]")


def test_it_does_not_outlive_the_daemon(server: ApiServer, kubeconfig: Path) -> None:
    child = subprocess.Popen(
        command("node-1", True), env=environment(kubeconfig), stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    with child:
        server.wait_for("the watches", lambda: server.watches == 3)
        assert child.stdin
        child.stdin.close()
        assert child.wait(_SECONDS) == 0


def test_the_daemons_side_has_no_kubernetes_client() -> None:
    program = "import sys, launcherkit_plugin.cluster.client; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert not {"kubernetes", "urllib3", "pydantic", "yaml"} & set(done.stdout.split())


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        ({}, False),
        ({"KUBECONFIG": "/somewhere"}, True),
        ({"KUBECONFIG": ""}, False),
        ({"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, True),
    ],
)
def test_there_are_credentials_in_a_pod_and_with_a_kubeconfig(
    env: dict[str, str], expected: bool, tmp_path: Path
) -> None:
    token = tmp_path / "token"
    token.write_text("t")
    assert has_credentials(env, str(token)) is expected
    assert not has_credentials({"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, str(tmp_path / "none"))


def test_without_a_cluster_events_are_lines_of_the_log() -> None:
    told = Told()
    LogRecorder(told.log).event("Warning", "DeviceUnhealthy", "it is gone")
    assert told.lines == ["it is gone"]
