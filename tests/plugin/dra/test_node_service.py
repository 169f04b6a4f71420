"""What the kubelet hears on the driver's sockets, and what becomes of the sockets themselves."""

from __future__ import annotations

import asyncio
import os
import socket
import tempfile
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from grpclib.client import Channel

from launcherkit.rpc.client import unix_channel
from launcherkit.rpc.methods import call, opened
from launcherkit.rpc.unix_socket import PATH_BYTES
from launcherkit_plugin.dra import kubelet_sockets
from launcherkit_plugin.dra.claim_record import PreparedDevice
from launcherkit_plugin.dra.device_state import DeviceState, conditions
from launcherkit_plugin.dra.kubelet_sockets import KubeletSockets, SocketPaths, socket_paths
from launcherkit_plugin.dra.node_service import (
    ClaimServiceV1,
    ClaimServiceV1Beta1,
    Healths,
    HealthServiceV1,
    HealthServiceV1Alpha1,
)
from launcherkit_plugin.dra.prepare import Preparer
from launcherkit_plugin.dra.proto import pluginregistration_v1_pb2 as registration
from launcherkit_plugin.model.device import ClaimRef, Problem
from launcherkit_plugin.model.errors import CLAIM_FILES_FAILED, DEVICE_TAKEN
from launcherkit_plugin.telemetry.metrics import Metrics
from launcherkit_plugin.telemetry.reporter import Reporter
from tests.plugin.kubelet.parts import Lines

DRIVER = "pci.launcherkit.io"
UID = "12345678-aaaa-4bbb-8ccc-123456789abc"
GPU = PreparedDevice("gpu", "node-1", "pci-0000-01-00-0", "r", "0000:01:00.0", ("x.io/claim=a",), "share")
REGISTRATION = registration.DESCRIPTOR.services_by_name["Registration"].methods_by_name


class Answers(Preparer):
    """Claims by UID: devices, or what is wrong."""

    def __init__(self, **claims: tuple[PreparedDevice, ...] | Exception) -> None:
        self.claims = claims
        self.unprepared: list[str] = []

    async def prepare(self, ref: ClaimRef) -> tuple[PreparedDevice, ...]:
        found = self.claims[ref.uid]
        if isinstance(found, Exception):
            raise found
        return found

    async def unprepare(self, ref: ClaimRef) -> None:
        found = self.claims.get(ref.uid)
        if isinstance(found, Exception):
            raise found
        self.unprepared.append(ref.uid)


class Told(Metrics):
    def __init__(self) -> None:
        self.claims: list[tuple[str, str]] = []
        self.registrations: list[str] = []
        self.events: list[tuple[str, str, str]] = []

    def claim(self, action: str, seconds: float, outcome: str) -> None:
        self.claims.append((action, outcome))

    def registered(self, resource: str, outcome: str) -> None:
        self.registrations.append(outcome)

    def event(self, type: str, reason: str, message: str) -> None:  # noqa: A002  # Kubernetes' name
        self.events.append((type, reason, message))


class Driver:
    """A driver's sockets in a kubelet's folder."""

    def __init__(self, folder: str, answers: Answers, pod_uid: str = "") -> None:
        self.folder = Path(folder)
        (self.folder / "plugins" / DRIVER).mkdir(parents=True, exist_ok=True)
        (self.folder / "plugins_registry").mkdir(exist_ok=True)
        self.log, self.reported = Lines(), Told()
        reporter = Reporter(self.log, self.reported, self.reported)
        self.healths = Healths(())
        self.changes = 0
        self.paths = socket_paths(folder, DRIVER, pod_uid)
        services = [
            *(service(answers, reporter) for service in (ClaimServiceV1, ClaimServiceV1Beta1)),
            *(service(self.healths, lambda: 1234.5, 0.01) for service in (HealthServiceV1Alpha1, HealthServiceV1)),
        ]
        self.sockets = KubeletSockets(DRIVER, self.paths, services, self.healths, reporter, self._changed)

    def _changed(self) -> None:
        self.changes += 1

    @asynccontextmanager
    async def serving(self, *beside: str) -> AsyncIterator[None]:
        """The block runs when these sockets are there, and those that are ``beside``."""
        keeping = asyncio.create_task(self.sockets.serve_forever())
        try:
            await self.until(lambda: self.there() == sorted([*self.paths, *beside]))
            yield
        finally:
            keeping.cancel()
            await asyncio.wait({keeping})
            await self.sockets.end()

    def there(self) -> list[str]:
        """The sockets in both folders."""
        return sorted(str(path) for path in self.folder.rglob("*") if path.is_socket())

    @staticmethod
    async def until(condition: Callable[[], object]) -> None:
        async with asyncio.timeout(30):
            while not condition():
                await asyncio.sleep(0.01)

    @asynccontextmanager
    async def dialled(self, path: str | None = None) -> AsyncIterator[Channel]:
        channel = unix_channel(path or self.paths.service)
        try:
            yield channel
        finally:
            channel.close()

    async def claims(self, service: Any, method: str, *uids: str) -> dict[str, Any]:
        """Prepare or unprepare."""
        wire = service.wire
        request = getattr(wire, f"{method}Request")(
            claims=[wire.Claim(namespace="vms", name="gpu", uid=uid) for uid in uids]
        )
        async with self.dialled() as channel:
            answer = await call(channel, service.service.methods_by_name[method], request)
        return dict(answer.claims)


@pytest.fixture
def folder() -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix="dra-") as folder:
        yield folder


def serve(driver: Driver, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    async def served() -> None:
        async with driver.serving():
            await work()

    asyncio.run(served())


# Claims

TAKEN = DEVICE_TAKEN("0000:01:00.0 is somebody else's", "Wait.")


@pytest.mark.parametrize("service", [ClaimServiceV1, ClaimServiceV1Beta1])
def test_every_claim_that_is_asked_for_is_in_the_answer_with_devices_or_an_error(folder: str, service: Any) -> None:
    driver = Driver(folder, Answers(a=(GPU,), b=TAKEN, c=ZeroDivisionError("oh")))

    async def work() -> None:
        claims = await driver.claims(service, "NodePrepareResources", "a", "b", "c")
        assert {uid: bool(claim.error) for uid, claim in claims.items()} == {"a": False, "b": True, "c": True}
        (device,) = claims["a"].devices
        assert list(device.request_names) == ["gpu"]
        assert (device.pool_name, device.device_name) == ("node-1", "pci-0000-01-00-0")
        assert list(device.cdi_device_ids) == ["x.io/claim=a"]
        assert getattr(device, "share_id", None) == ("share" if service is ClaimServiceV1 else None)
        assert claims["b"].error == "error[LK812]: 0000:01:00.0 is somebody else's; help: Wait."
        assert claims["c"].error == "internal error in prepare: ZeroDivisionError; the log of the plugin has more"

    serve(driver, work)
    assert any("ZeroDivisionError" in line for line in driver.log.lines)
    assert sorted(driver.reported.claims) == [("prepare", "done"), ("prepare", "failed"), ("prepare", "refused")]


def test_a_refusal_names_its_own_claim_and_no_other(folder: str) -> None:
    text = "0000:01:00.0 can't be prepared for ResourceClaim vms/gpu: {} has it"
    others = ("pod vms/a", "ResourceClaim vms/gpu-2", "ResourceClaim with the UID u-1", "pod uid:1-2", "pod b/vms.gpu")
    answers = Answers()
    driver = Driver(folder, answers)

    async def work() -> None:
        for other in others:
            answers.claims["a"] = DEVICE_TAKEN(text.format(other), "Wait.")
            claims = await driver.claims(ClaimServiceV1, "NodePrepareResources", "a")
            assert text.format(f"a {other.split()[0]}") in claims["a"].error

    serve(driver, work)
    assert all(text.format(other) in "".join(driver.log.lines) for other in others)


def test_what_goes_wrong_again_and_again_is_logged_once_until_it_is_well(folder: str) -> None:
    answers = Answers(a=TAKEN)
    driver = Driver(folder, answers)

    async def work() -> None:
        for found in (TAKEN, TAKEN, (GPU,), TAKEN):
            answers.claims["a"] = found
            await driver.claims(ClaimServiceV1, "NodePrepareResources", "a")

    serve(driver, work)
    assert len([line for line in driver.log.lines if "LK812" in line]) == 2


def test_a_claim_that_can_not_be_unprepared_is_an_event_of_the_node(folder: str) -> None:
    """The kubelet shows it nowhere: the pod stays Terminating."""
    driver = Driver(folder, Answers(a=CLAIM_FILES_FAILED("a file can't be removed", "Mend it.")))

    async def work() -> None:
        claims = await driver.claims(ClaimServiceV1, "NodeUnprepareResources", "a", "b")
        assert claims["a"].error == "error[LK815]: a file can't be removed; help: Mend it."
        assert not claims["b"].error

    serve(driver, work)
    text = "ResourceClaim vms/gpu can't be unprepared, so its pod doesn't end: a file can't be removed"
    assert driver.reported.events == [("Warning", "UnprepareFailed", text)]


# Health


@pytest.mark.parametrize("service", [HealthServiceV1Alpha1, HealthServiceV1])
def test_healths_are_sent_whole_at_each_change_and_again_before_they_are_forgotten(folder: str, service: Any) -> None:
    driver = Driver(folder, Answers())
    wire = service.wire

    def put(*sick: str) -> None:
        problem = Problem("driver", "bound to nouveau, not to a VFIO driver" + "ü" * 1000)
        states = {name: DeviceState(name, problem if name in sick else None) for name in ("a", "b")}
        driver.healths.put(states, lambda _: "node-1")

    async def work() -> None:
        put()
        async with (
            driver.dialled() as channel,
            opened(channel, service.service.methods_by_name["NodeWatchResources"]) as stream,
        ):
            await stream.send_message(wire.NodeWatchResourcesRequest(), end=True)
            heard: Any = None
            for _ in range(3):
                heard = await stream.recv_message()
                assert [device.health for device in heard.devices] == [wire.HEALTHY, wire.HEALTHY]
            put("b")
            while heard.devices[1].health == wire.HEALTHY:
                heard = await stream.recv_message()
            well, ill = heard.devices
            assert (well.device.pool_name, well.device.device_name, well.health) == ("node-1", "a", wire.HEALTHY)
            assert (ill.health, ill.last_updated_time) == (wire.UNHEALTHY, 1234)
            assert ill.message.startswith("bound to nouveau")
            assert len(ill.message.encode()) <= 1024
            await stream.cancel()

    serve(driver, work)


def test_that_something_else_is_in_use_is_no_illness() -> None:
    assert DeviceState("a", Problem("group-in-use", "a pod has b")).healthy


def test_of_a_card_for_a_container_it_is_told_whether_its_driver_is_ready() -> None:
    well = DeviceState("a", None, in_container=True)
    ill = well._replace(problem=Problem("node", "its driver has no device node for containers"))
    reported = [condition for state in (well, ill) for condition in conditions(state, "2026-01-01T00:00:00Z")]
    assert [(each["type"], each["status"], each["reason"]) for each in reported] == [
        ("DriverReady", "True", "Prepared"),
        ("DriverReady", "False", "Node"),
    ]


# Registration


def test_the_kubelet_finds_the_driver_and_says_whether_it_takes_it(folder: str) -> None:
    driver = Driver(folder, Answers())

    async def work() -> None:
        async with driver.dialled(driver.paths.registration) as channel:
            info = await call(channel, REGISTRATION["GetInfo"], registration.InfoRequest())
            assert (info.type, info.name, info.endpoint) == ("DRAPlugin", DRIVER, driver.paths.service)
            assert list(info.supported_versions) == [
                "v1.DRAPlugin",
                "v1beta1.DRAPlugin",
                "v1alpha1.DRAResourceHealth",
                "v1.DRAResourceHealth",
            ]
            notify = REGISTRATION["NotifyRegistrationStatus"]
            await call(channel, notify, registration.RegistrationStatus(plugin_registered=True))
            assert driver.sockets.registered
            refusal = registration.RegistrationStatus(plugin_registered=False, error="no such version")
            await call(channel, notify, refusal)
            assert not driver.sockets.registered

    serve(driver, work)
    assert driver.reported.registrations == ["done", "refused"]
    assert [reason for _, reason, _ in driver.reported.events] == ["DriverRefused"]
    assert any(f"the kubelet refuses {DRIVER}: no such version" in line for line in driver.log.lines)
    assert driver.changes == 2


def test_sockets_are_named_as_the_kubelet_expects_and_short_enough() -> None:
    plain = SocketPaths("/k/plugins_registry/d.io-reg.sock", "/k/plugins/d.io/dra.sock")
    assert socket_paths("/k", "d.io") == plain
    of_pod = SocketPaths(f"/k/plugins_registry/d.io-{UID}-reg.sock", f"/k/plugins/d.io/dra-{UID}.sock")
    assert socket_paths("/k", "d.io", UID) == of_pod
    long = "driver-with-a-rather-long-name.example.org"
    shortened = socket_paths("/var/lib/kubelet", long, UID)
    assert all(len(path) <= PATH_BYTES for path in shortened)
    assert shortened != socket_paths("/var/lib/kubelet", long, UID.replace("1", "2"))
    assert shortened.registration.endswith("-reg.sock")


def leave_dead(path: str) -> None:
    """The socket of a process that was killed."""
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(path)


def test_what_killed_pods_have_left_is_removed_and_what_answers_stays(folder: str) -> None:
    first = Driver(folder, Answers(), UID)
    second = Driver(folder, Answers(), UID.replace("1", "2"))
    for path in (*socket_paths(folder, DRIVER, UID.replace("1", "3")), *socket_paths(folder, DRIVER)):
        leave_dead(path)
    other = f"{folder}/plugins_registry/other.io-reg.sock"
    leave_dead(other)

    async def both() -> None:
        async with first.serving(other), second.serving(other, *first.paths):
            pass
        assert second.there() == [other]

    asyncio.run(both())


def test_a_second_driver_without_a_pod_is_reported_and_takes_nothing(folder: str) -> None:
    first, second = Driver(folder, Answers()), Driver(folder, Answers())

    async def work() -> None:
        keeping = asyncio.create_task(second.sockets.serve_forever())
        await second.until(lambda: any("LK716" in line for line in second.log.lines))
        keeping.cancel()
        await second.sockets.end()
        async with first.dialled(first.paths.registration) as channel:
            await call(channel, REGISTRATION["GetInfo"], registration.InfoRequest())

    serve(first, work)


def test_a_socket_that_was_removed_is_made_again(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kubelet_sockets, "LOOK_SECONDS", 0.01)
    driver = Driver(folder, Answers())

    async def work() -> None:
        watch = HealthServiceV1Alpha1.service.methods_by_name["NodeWatchResources"]
        async with driver.dialled() as channel, opened(channel, watch) as stream:
            await stream.send_message(HealthServiceV1Alpha1.wire.NodeWatchResourcesRequest(), end=True)
            await stream.recv_message()
            os.unlink(driver.paths.registration)
            while await stream.recv_message() is not None:
                pass  # the stream ends, so nobody waits for it
        await driver.until(lambda: driver.there() == sorted(driver.paths))

    serve(driver, work)
    assert not [line for line in driver.log.lines if "did not finish" in line]


def test_a_kubelet_that_is_not_there_yet_is_waited_for(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kubelet_sockets, "LOOK_SECONDS", 0.01)
    driver = Driver(folder, Answers())
    registry = Path(folder) / "plugins_registry"
    registry.rmdir()

    async def work() -> None:
        keeping = asyncio.create_task(driver.sockets.serve_forever())
        await driver.until(lambda: driver.log.lines)
        registry.mkdir()
        await driver.until(lambda: driver.there() == sorted(driver.paths))
        keeping.cancel()
        with suppress(asyncio.CancelledError):
            await keeping
        await driver.sockets.end()

    asyncio.run(work())
    (waiting,) = [line for line in driver.log.lines if "waiting" in line]
    assert "plugins_registry: there is no such folder" in waiting
