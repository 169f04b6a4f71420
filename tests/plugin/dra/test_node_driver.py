"""The DRA drivers of a daemon: from its first turn to its end, over restarts and new configurations."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from launcherkit.rpc.client import unix_channel
from launcherkit.rpc.methods import call
from launcherkit_plugin.daemon.dra_drivers import DraDrivers
from launcherkit_plugin.dra.claim_files import ClaimPlaces
from launcherkit_plugin.dra.claim_store import ClaimStore
from launcherkit_plugin.dra.node_driver import NodeDriver
from launcherkit_plugin.dra.node_service import ClaimServiceV1
from launcherkit_plugin.model.config import DraConfig
from launcherkit_plugin.model.device import AwaitedDevice, AwaitingClaim, ClaimRef, Problem
from launcherkit_plugin.telemetry.reporter import Reporter
from tests.plugin.dra.desk import CARDS, DRIVER, REF, ClaimDesk, dra_name
from tests.plugin.kubelet.parts import Lines
from tests.plugin.resources import rebind

ONE = f"{CARDS[0]}.0"


class Stage(ClaimDesk):
    """A desk whose claims are the business of a daemon's drivers. It is the cluster's side, too."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        (folder / "kubelet/plugins_registry").mkdir(parents=True)
        self.slices: dict[str, Sequence[Mapping[str, Any]]] = {}
        self.statuses: list[Sequence[Mapping[str, Any]]] = []
        self.reported: list[ClaimRef] = []
        """Whose status each was."""
        self.events: list[str] = []
        self.made: list[str] = []
        self.log = Lines()
        self.awaiting: Sequence[AwaitingClaim] | None = None
        self.wanted = 0

    def want_claims(self) -> None:
        self.wanted += 1

    def publish_slices(self, driver: str, specs: Sequence[Mapping[str, Any]]) -> None:
        self.slices[driver] = specs

    def claim_status(self, namespace: str, name: str, uid: str, devices: Sequence[Mapping[str, Any]]) -> None:
        self.statuses.append(devices)
        self.reported.append(ClaimRef(namespace, name, uid))

    def event(self, type: str, reason: str, message: str) -> None:  # noqa: A002  # Kubernetes' name
        self.events.append(reason)

    def drivers(self) -> DraDrivers:
        return DraDrivers(self._make, str(self.folder / "kubelet/plugins"))

    def _make(self, config: DraConfig) -> NodeDriver:
        self.made.append(config.driver)
        places = ClaimPlaces(config.driver, str(self.folder / "kubelet"), config.cdi_folder)
        reporter = Reporter(self.log, events=self)
        store = ClaimStore(places, self.boot, in_thread=lambda _, work: asyncio.to_thread(work))
        return NodeDriver(config, store, self.allocator, self, reporter, {"NODE_NAME": "node-1"}, lambda: None)

    def turn(self, drivers: DraDrivers, config: DraConfig | None, problem: Problem | None = None) -> None:
        """What the daemon's loop does; with a problem that the first card has."""
        self.look()
        facts = self.node.facts()
        found = self.node.provider.resources(facts, self.allocator.usage(), 0.0)
        if problem is not None:
            devices = {**found[0].devices, ONE: found[0].devices[ONE]._replace(problem=problem)}
            found = (found[0]._replace(devices=devices), *found[1:])
        drivers.listed(facts, found, config)

    async def ask(self, method: str, driver: str = DRIVER) -> Any:
        """The kubelet asks for the one claim."""
        path = self.folder / "kubelet/plugins" / driver / "dra.sock"
        async with asyncio.timeout(30):
            while not path.exists():
                await asyncio.sleep(0.01)
        channel = unix_channel(str(path))
        try:
            wire = ClaimServiceV1.wire
            request = getattr(wire, f"{method}Request")(claims=[wire.Claim(**REF._asdict())])
            answer = await call(channel, ClaimServiceV1.service.methods_by_name[method], request)
            return answer.claims[REF.uid]
        finally:
            channel.close()


@pytest.fixture
def stage() -> Iterator[Stage]:
    with TemporaryDirectory(prefix="dra-") as folder:
        stage = Stage(Path(folder))
        stage.allocate()
        yield stage


def run(stage: Stage, work: Callable[[DraDrivers], Coroutine[Any, Any, None]]) -> None:
    """Something is done with a daemon's drivers, which end after it."""

    async def daemon() -> None:
        drivers = stage.drivers()
        try:
            await work(drivers)
        finally:
            await drivers.close()

    asyncio.run(daemon())


def config_of(stage: Stage, driver: str = DRIVER) -> DraConfig:
    return DraConfig(driver=driver, cdi_folder=stage.places.cdi)


def test_where_nobody_asks_for_a_driver_there_is_none(stage: Stage) -> None:
    async def work(drivers: DraDrivers) -> None:
        drivers.start(None)
        stage.turn(drivers, None)
        assert drivers.unregistered() == []

    run(stage, work)
    assert (stage.made, stage.slices) == ([], {})


def test_devices_are_published_and_claims_of_them_prepared_with_their_conditions(stage: Stage) -> None:
    async def work(drivers: DraDrivers) -> None:
        drivers.start(config_of(stage))
        stage.turn(drivers, config_of(stage))
        assert drivers.unregistered() == [DRIVER]
        names = [device["name"] for spec in stage.slices[DRIVER] for device in spec.get("devices", ())]
        assert names == ["pci-0000-01-00-0", "pci-0000-02-00-0", "pci-0000-03-00-0"]
        answer = await stage.ask("NodePrepareResources")
        assert [device.device_name for device in answer.devices] == ["pci-0000-01-00-0"]
        stage.turn(drivers, config_of(stage))
        stage.turn(drivers, config_of(stage))
        rebind(stage.tree, "0000:01:00.1", "snd_hda_intel")
        stage.turn(drivers, config_of(stage))
        await stage.ask("NodeUnprepareResources")
        stage.turn(drivers, config_of(stage))

    run(stage, work)
    assert not list(stage.folder.rglob("*.sock"))
    reported = [
        {condition["type"]: condition["status"] for condition in device["conditions"]}
        for devices in stage.statuses
        for device in devices
    ]
    assert reported == [
        {"BoundToVfio": "True", "GroupViable": "True"},
        {"BoundToVfio": "True", "GroupViable": "False"},
    ]
    assert set(stage.reported) == {REF}
    condition = stage.statuses[1][0]["conditions"][1]
    assert condition["reason"] == "NotViable"
    assert "0000:01:00.1" in condition["message"]
    assert time.strptime(condition["lastTransitionTime"], "%Y-%m-%dT%H:%M:%SZ")


def test_what_claims_have_is_held_from_the_start_on_whatever_the_configuration_says(stage: Stage) -> None:
    stage.prepare()

    async def work(drivers: DraDrivers) -> None:
        stage.restart()
        drivers.start(None)
        assert stage.held() == {ONE: "ResourceClaim vms/gpu"}
        stage.turn(drivers, None)
        assert stage.slices == {DRIVER: []}
        assert not (await stage.ask("NodeUnprepareResources")).error
        stage.turn(drivers, None)
        assert (stage.held(), drivers.unregistered()) == ({}, [])

    run(stage, work)
    assert stage.made == [DRIVER]


def test_a_driver_with_another_name_takes_over_when_the_claims_of_the_first_have_ended(stage: Stage) -> None:
    async def work(drivers: DraDrivers) -> None:
        drivers.start(config_of(stage))
        stage.turn(drivers, config_of(stage))
        await stage.ask("NodePrepareResources")
        other = config_of(stage, "other.example.org")
        stage.turn(drivers, other)
        assert stage.slices[DRIVER] == []
        assert drivers.unregistered() == ["other.example.org", DRIVER]
        assert stage.held() == {ONE: "ResourceClaim vms/gpu"}
        await stage.ask("NodeUnprepareResources")
        stage.turn(drivers, other)
        assert drivers.unregistered() == ["other.example.org"]

    run(stage, work)


def test_a_record_that_can_not_be_read_is_an_event_once(stage: Stage) -> None:
    stage.prepare()
    Path(stage.places.records, "u-1.json").write_text("")

    async def work(drivers: DraDrivers) -> None:
        drivers.start(config_of(stage))
        stage.turn(drivers, config_of(stage))
        stage.turn(drivers, config_of(stage))
        assert stage.events == ["BadClaimRecord"]

    run(stage, work)


# Binding conditions

CLEANING = Problem("cleaning", "a pod had it")
WAITS = AwaitingClaim(REF, (AwaitedDevice(DRIVER, "gpu", "node-1", dra_name(ONE)),))
READY, FAILED = "launcherkit.io/Ready", "launcherkit.io/Failed"


def first_card(stage: Stage) -> dict[str, Any]:
    """What is published of it beside name and attributes."""
    devices = {device["name"]: device for spec in stage.slices[DRIVER] for device in spec.get("devices", ())}
    kept = ("taints", "bindsToNode", "bindingConditions", "bindingFailureConditions")
    return {key: devices[dra_name(ONE)][key] for key in kept if key in devices[dra_name(ONE)]}


def test_a_card_that_is_being_cleaned_is_waited_for_where_it_is_seen_who_waits(stage: Stage) -> None:
    taint = {"taints": [{"key": "launcherkit.io/cleaning", "effect": "NoSchedule"}]}
    awaited = {"bindsToNode": True, "bindingConditions": [READY], "bindingFailureConditions": [FAILED]}

    async def work(drivers: DraDrivers) -> None:
        config = config_of(stage)
        stage.awaiting = ()
        stage.turn(drivers, config, CLEANING)
        assert (first_card(stage), stage.wanted) == (taint, 0), "off by default"
        stage.awaiting, waiting = None, config._replace(binding_conditions=True)
        stage.turn(drivers, waiting, CLEANING)
        assert (first_card(stage), stage.wanted) == (taint, 1), "nobody would say that it is ready"
        stage.awaiting = ()
        stage.turn(drivers, waiting, CLEANING)
        assert first_card(stage) == awaited
        stage.turn(drivers, waiting)
        assert first_card(stage) == {}

    run(stage, work)


def test_a_claim_is_told_when_its_card_is_ready_and_when_it_never_will_be(stage: Stage) -> None:
    def said() -> tuple[str, str]:
        conditions = {one["type"]: one["status"] for one in stage.statuses[-1][0]["conditions"]}
        return conditions[READY], conditions[FAILED]

    async def work(drivers: DraDrivers) -> None:
        config = config_of(stage)._replace(binding_conditions=True)
        other = WAITS._replace(ref=REF._replace(uid="u-5"), devices=(WAITS.devices[0]._replace(driver="x.io"),))
        stage.awaiting = (WAITS, other)
        for problem, status in (
            (CLEANING, ("False", "False")),
            (None, ("True", "False")),
            (Problem("quarantined", "it came back wrong"), ("False", "True")),
        ):
            stage.turn(drivers, config, problem)
            assert said() == status
        assert first_card(stage)["taints"], "and the next claim gets another card"
        assert stage.reported == [REF] * 3
        assert stage.held() == {}, "a claim that waits holds nothing"

    run(stage, work)
