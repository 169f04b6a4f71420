"""ResourceClaims that the daemon asks for, and what it says of their devices: over the socket, to a strict stand-in."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from launcherkit_plugin.cluster.api import Api, ApiProblem, Json
from launcherkit_plugin.cluster.protocol import HELLO, line_of
from launcherkit_plugin.cluster.requests import STATUS_FAILS, ClaimStatusWriter, claim_name
from launcherkit_plugin.cluster.serve import persist
from launcherkit_plugin.model.device import ClaimRef
from launcherkit_plugin.model.errors import CLAIM_UNREADABLE
from launcherkit_plugin.telemetry.reporter import Reporter
from tests.plugin.cluster.test_cluster import Daemon, beside, daemon, kubeconfig, path, server
from tests.support.apiserver import CLAIMS, ApiServer
from tests.support.clusterprocess import ClusterProcess
from tests.support.errors import raises_code
from tests.support.provoked import provoked

__all__ = ["kubeconfig", "path", "server"]

_SECONDS = 60
CLAIM: dict[str, Any] = {
    "metadata": {"name": "gpu", "namespace": "vms", "uid": "uid-1", "managedFields": [{"manager": "kubectl"}]},
    "status": {"allocation": {"devices": {"results": []}}},
}
DEVICE = {"driver": "pci.launcherkit.io", "pool": "node-1", "device": "pci-0000-e1-00-0", "conditions": []}


@pytest.fixture(autouse=True)
def claim(server: ApiServer) -> None:
    server.put(CLAIMS, json.loads(json.dumps(CLAIM)))


def test_a_claim_is_read_as_the_server_has_it(server: ApiServer, kubeconfig: Path, path: Path) -> None:
    async def scenario(it: Daemon) -> None:
        found = await it.socket.get_claim("vms", "gpu", "uid-1", _SECONDS)
        assert found["status"] == CLAIM["status"]
        assert "managedFields" not in found["metadata"]

    beside(path, kubeconfig, scenario)


def test_many_claims_are_read_at_once_and_each_gets_its_own(server: ApiServer, kubeconfig: Path, path: Path) -> None:
    for number in range(20):
        server.put(CLAIMS, {"metadata": {"name": f"c{number}", "namespace": "vms", "uid": f"uid-c{number}"}})

    async def scenario(it: Daemon) -> None:
        asked = [it.socket.get_claim("vms", f"c{number}", f"uid-c{number}", _SECONDS) for number in range(20)]
        found = await asyncio.gather(*asked)
        assert [each["metadata"]["name"] for each in found] == [f"c{number}" for number in range(20)]

    beside(path, kubeconfig, scenario)


@pytest.mark.parametrize(
    ("name", "uid", "why"),
    [("none", "uid-1", "'none' not found"), ("gpu", "uid-0", "it was deleted, and another one has its name: 'uid-1'")],
)
def test_a_claim_that_is_gone_is_an_error_that_says_so(
    server: ApiServer, kubeconfig: Path, path: Path, name: str, uid: str, why: str
) -> None:
    async def scenario(it: Daemon) -> None:
        with raises_code(CLAIM_UNREADABLE, match=why):
            await it.socket.get_claim("vms", name, uid, _SECONDS)

    beside(path, kubeconfig, scenario)


def test_a_server_that_fails_is_an_error_at_once_and_the_next_request_is_answered(
    server: ApiServer, kubeconfig: Path, path: Path
) -> None:
    async def scenario(it: Daemon) -> None:
        server.away = True
        with raises_code(CLAIM_UNREADABLE, match="no leader"):
            await it.socket.get_claim("vms", "gpu", "uid-1", _SECONDS)
        server.away = False
        assert await it.socket.get_claim("vms", "gpu", "uid-1", _SECONDS)

    beside(path, kubeconfig, scenario)


def test_a_request_waits_for_the_process_that_comes_later(server: ApiServer, kubeconfig: Path, path: Path) -> None:
    async def scenario(it: Daemon) -> None:
        asked = asyncio.create_task(it.socket.get_claim("vms", "gpu", "uid-1", _SECONDS))
        await asyncio.sleep(0)
        with ClusterProcess(path, "node-1", kubeconfig):
            assert await asked

    daemon(path, scenario)


def test_what_one_process_took_with_it_the_next_is_asked_again(server: ApiServer, kubeconfig: Path, path: Path) -> None:
    async def scenario(it: Daemon) -> None:
        asked = asyncio.create_task(it.socket.get_claim("vms", "gpu", "uid-1", _SECONDS))
        reader, writer = await asyncio.open_unix_connection(str(path))
        assert b"hello" in await reader.readline()
        assert json.loads(await reader.readline())["get-claim"]["name"] == "gpu"
        writer.close()
        with ClusterProcess(path, "node-1", kubeconfig):
            assert await asked

    daemon(path, scenario)


def test_who_does_not_answer_in_time_is_named_and_a_late_answer_harms_nothing(path: Path) -> None:
    async def scenario(it: Daemon) -> None:
        with raises_code(CLAIM_UNREADABLE, match=r"the cluster's process is not connected within 0\.01 s"):
            await it.socket.get_claim("vms", "gpu", "uid-1", 0.01)
        reader, writer = await asyncio.open_unix_connection(str(path))
        writer.write(line_of("hello", HELLO))
        await reader.readline()
        with raises_code(CLAIM_UNREADABLE, match=r"the cluster's process has not answered within 0\.5 s"):
            await it.socket.get_claim("vms", "gpu", "uid-1", 0.5)
        asked = json.loads(await reader.readline())["get-claim"]
        writer.write(line_of("claim", {"id": asked["id"], "object": {}}))
        again = asyncio.create_task(it.socket.get_claim("vms", "gpu", "uid-1", _SECONDS))
        later = json.loads(await reader.readline())["get-claim"]
        assert later["id"] != asked["id"]
        writer.write(line_of("claim", {"id": later["id"], "object": {"kind": "ResourceClaim"}}))
        assert await again == {"kind": "ResourceClaim"}
        writer.close()

    daemon(path, scenario)


def test_an_answer_for_an_earlier_daemon_is_taken_for_none_of_the_next_ones(path: Path) -> None:
    earlier: list[int] = []

    async def scenario(it: Daemon) -> None:
        reader, writer = await asyncio.open_unix_connection(str(path))
        writer.write(line_of("hello", HELLO))
        await reader.readline()
        asked = asyncio.create_task(it.socket.get_claim("vms", "gpu", "uid-1", _SECONDS))
        number = json.loads(await reader.readline())["get-claim"]["id"]
        for late in earlier:
            writer.write(line_of("claim", {"id": late, "object": {"metadata": {"name": "another"}}}))
        writer.write(line_of("claim", {"id": number, "object": {"metadata": {"name": "gpu"}}}))
        assert (await asked)["metadata"]["name"] == "gpu"
        earlier.append(number)
        writer.close()

    daemon(path, scenario)
    daemon(path, scenario)


def test_where_nothing_listens_a_claim_can_not_be_read() -> None:
    async def scenario() -> None:
        it = Daemon()
        it.socket.publish_slices("pci.launcherkit.io", [{}])
        it.socket.claim_status("vms", "gpu", "uid-1", [])
        with raises_code(CLAIM_UNREADABLE) as caught:
            await it.socket.get_claim("vms", "gpu", "uid-1", _SECONDS)
        assert [f"LK821: {caught.value.message}"] == provoked("cluster", "LK821")

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("value", "wrong"),
    [
        (None, "claim: nothing is not an object"),
        ({}, "claim.id: nothing is not the number of a question"),
        ({"id": "1", "object": {}}, "claim.id: '1' is not the number of a question"),
        ({"id": 1, "object": []}, "claim.object: a list is not an object"),
        ({"id": 1}, "claim.object: nothing is not an object"),
    ],
)
def test_an_answer_that_is_none_ends_the_connection(path: Path, value: object, wrong: str) -> None:
    async def scenario(it: Daemon) -> None:
        _, writer = await asyncio.open_unix_connection(str(path))
        writer.write(line_of("hello", HELLO) + line_of("claim", value))
        await it.until(lambda: any(f"was disconnected: {wrong}" in line for line in it.lines))
        writer.close()

    daemon(path, scenario)


# What the daemon says of a claim's devices


def test_the_status_of_a_claims_devices_is_written(server: ApiServer, kubeconfig: Path, path: Path) -> None:
    async def scenario(it: Daemon) -> None:
        it.socket.claim_status("vms", "gpu", "uid-1", [DEVICE])
        await asyncio.to_thread(server.wait_for, "a status", lambda: server.writes)

    beside(path, kubeconfig, scenario)
    assert server.objects[CLAIMS]["uid-1"]["status"] == {**CLAIM["status"], "devices": [DEVICE]}


class Claims(Api):
    """A server whose answers to changes are scripted; an exception is raised."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.bodies: list[Json] = []

    def apply(self, path: str, body: Json, manager: str) -> Json:
        self.bodies.append(body)
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return {}


def written(server: Claims, *statuses: Json) -> tuple[list[float], list[str]]:
    """Write statuses until the script ends; the pauses and the lines of the log."""
    reported, pauses = Daemon(), list[float]()
    reporter = Reporter(reported.log)
    it = ClaimStatusWriter(server, reporter)
    for status in statuses:
        it.add(status)
    with pytest.raises(IndexError):
        persist(it.write, reporter, pauses.append, lambda: 0.0, fails=STATUS_FAILS)
    return pauses, reported.lines


def status(name: str, **device: Any) -> Json:
    return {"namespace": "vms", "name": name, "uid": f"uid-{name}", "devices": [device]}


def test_a_status_that_the_server_can_not_write_now_is_tried_again_after_pauses_and_told_once() -> None:
    server = Claims(ApiProblem(500, "etcd"), ApiProblem(0, "etcd"), {}, IndexError())
    assert written(server, status("a"), status("b")) == ([1.0, 2.0], ["a claim's status can't be written: etcd"])
    assert [body["metadata"]["name"] for body in server.bodies] == ["a", "b", "a", "b"]


def test_a_status_of_a_claim_that_is_gone_is_dropped() -> None:
    server = Claims(ApiProblem(409, "another UID"), {}, IndexError())
    pauses, _ = written(server, status("a"), status("b"), status("c"))
    assert pauses == []
    assert [body["metadata"]["uid"] for body in server.bodies] == ["uid-a", "uid-b", "uid-c"]


def test_of_two_statuses_of_a_claim_the_later_one_is_written() -> None:
    server = Claims({}, IndexError())
    written(server, status("a", device="x"), status("a", device="y"), status("b"))
    assert server.bodies[0]["status"] == {"devices": [{"device": "y"}]}


@pytest.mark.parametrize(
    "value",
    [None, {}, {"namespace": "vms", "name": "../../pods", "uid": "u"}, {"namespace": "", "name": "a", "uid": "u"}],
    ids=str,
)
def test_a_name_that_is_none_never_becomes_a_path(value: object) -> None:
    with pytest.raises(ValueError, match="names no ResourceClaim"):
        claim_name(value)
    assert claim_name({"namespace": "vms", "name": "a.b", "uid": "u"}) == ClaimRef("vms", "a.b", "u")
