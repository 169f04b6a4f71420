"""The double itself, with the least of drivers: it does what the real parts have been seen to do."""

from __future__ import annotations

import json
import random
import socket
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.dra import wire
from tests.dra.api import Api, Refused
from tests.dra.limits import wrong_in_slice
from tests.dra.manager import FAST, Manager, NotPrepared, Pod, running_manager
from tests.dra.reference import DRIVER, Reference, running_reference, slice_of
from tests.dra.runtime import NotCreated, Runtime, wrong_in
from tests.dra.scheduler import DeviceClass, Scheduler, Unschedulable, requested

GPUS = ({"name": "gpu-0"}, {"name": "gpu-1"})


class Node:
    """All parts of the double, and a driver."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "k"
        self.cdi = folder / "cdi"
        self.api = Api()
        self.runtime = Runtime(self.cdi)
        self.scheduler = Scheduler(self.api, {"gpu": DeviceClass(DRIVER)})

    def publish(self) -> None:
        self.api.replace_slices(DRIVER, [slice_of(*GPUS)])

    def pod(self, name: str, claim: str, request: str = "") -> Pod:
        """A scheduled pod with a container that has a claim."""
        self.scheduler.reserve(claim, name)
        return Pod(name, (claim,), {"compute": [(claim, request)], "sidecar": []})


@pytest.fixture
def node() -> Iterator[Node]:
    with tempfile.TemporaryDirectory(prefix="dra-") as folder:
        yield Node(Path(folder))


@pytest.fixture
def kubelet(node: Node) -> Iterator[Manager]:
    with running_manager(node.folder, node.api, node.runtime) as manager:
        yield manager


@pytest.fixture
def driver(node: Node, kubelet: Manager) -> Iterator[Reference]:
    """Registered, with two devices and a claim for one."""
    with running_reference(node.folder, node.cdi, node.api) as driver:
        kubelet.wait_for(DRIVER)
        node.publish()
        node.api.create_claim("one", [requested("gpu", "gpu")])
        yield driver


# Registration


def test_a_driver_is_registered_and_told_so(driver: Reference, kubelet: Manager) -> None:
    kubelet.wait(lambda: driver.notified == [(True, "")], "the notification")
    assert kubelet.drivers() == {DRIVER: str(driver.endpoint)}


def test_health_is_asked_for_whatever_was_declared(node: Node, kubelet: Manager) -> None:
    with running_reference(node.folder, node.cdi, node.api, versions=("v1.DRAPlugin",)):
        kubelet.wait_for(DRIVER)
        kubelet.wait(lambda: kubelet.health(DRIVER), "health")
        assert kubelet.health(DRIVER) == {"gpu-0": (wire.UNHEALTHY, "it smokes")}


@pytest.mark.parametrize(
    ("versions", "kind", "wrong"),
    [
        (("v1beta1",), "DRAPlugin", "could not find a supported service"),
        (("v1alpha1.DRAResourceHealth",), "DRAPlugin", "could not find a supported service"),
        (("v1.DRAPlugin",), "Other", "no handler registered for plugin type: Other"),
    ],
)
def test_a_registration_that_is_wrong_is_refused_again_and_again(
    node: Node, kubelet: Manager, versions: tuple[str, ...], kind: str, wrong: str
) -> None:
    driver = Reference(node.folder, node.cdi, node.api, versions=versions)
    driver.kind = kind
    driver.start()
    try:
        kubelet.wait(lambda: len(driver.notified) >= 2, "two refusals")
        assert all(not registered and wrong in error for registered, error in driver.notified)
        assert kubelet.drivers() == {}
    finally:
        driver.stop()


def test_the_first_known_version_is_taken(node: Node, kubelet: Manager) -> None:
    node.api.create_claim("one", [requested("gpu", "gpu")])
    with running_reference(
        node.folder, node.cdi, node.api, versions=("v9.DRAPlugin", "v1beta1.DRAPlugin", "v1.DRAPlugin")
    ):
        kubelet.wait_for(DRIVER)
        assert kubelet.version(DRIVER) == "v1beta1"
        node.publish()
        kubelet.run(node.pod("vm", "one"))


def test_a_socket_that_nobody_serves_is_no_driver(node: Node, kubelet: Manager) -> None:
    stale = kubelet.registry / f"{DRIVER}-reg.sock"
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(stale))
    kubelet.wait(lambda: kubelet.refused, "a refusal")
    assert kubelet.drivers() == {}
    with running_reference(node.folder, node.cdi, node.api):
        kubelet.wait_for(DRIVER)


def test_of_two_instances_the_one_that_came_last_is_called(node: Node, kubelet: Manager, driver: Reference) -> None:
    with running_reference(node.folder, node.cdi, node.api, instance="-2") as second:
        kubelet.wait(lambda: kubelet.drivers() == {DRIVER: str(second.endpoint)}, "the second one")
        kubelet.run(node.pod("vm", "one"))
        assert (driver.calls, len(second.calls)) == ([], 1)
    kubelet.wait(lambda: kubelet.drivers() == {DRIVER: str(driver.endpoint)}, "the first one again")
    assert node.api.slices()


# Slices


def test_slices_are_wiped_when_the_kubelet_starts(node: Node, driver: Reference, kubelet: Manager) -> None:
    assert node.api.slices()
    kubelet.restart()
    assert node.api.slices() == []


def test_slices_are_wiped_some_time_after_the_connection_is_lost(
    node: Node, driver: Reference, kubelet: Manager
) -> None:
    driver.stop()
    node.api.wait(lambda: not node.api.slices(), "slices gone")
    assert node.api.wiped[-1] == DRIVER


def test_slices_stay_where_a_driver_is_back_in_time(node: Node, driver: Reference, kubelet: Manager) -> None:
    wiped = len(node.api.wiped)
    driver.stop()
    kubelet.wait(lambda: not kubelet.drivers(), "the driver gone")
    driver.start()
    kubelet.wait_for(DRIVER)
    assert node.api.slices()
    assert len(node.api.wiped) == wiped


@pytest.mark.parametrize(
    ("device", "wrong"),
    [
        ({"name": "Gpu"}, "names of devices"),
        ({"name": "g", "attributes": {"a": {"string": "x" * 65}}}, "64 bytes"),
        ({"name": "g", "attributes": {"a" * 33: {"int": 1}}}, "name"),
        ({"name": "g", "attributes": {"a": {"ints": [1]}}}, "ints"),
        ({"name": "g", "attributes": {"a": {"int": True}}}, "int"),
        ({"name": "g", "attributes": {"a": {}}}, "exactly one value"),
        ({"name": "g", "attributes": {f"a{n}": {"int": n} for n in range(33)}}, "33 attributes"),
        ({"name": "g", "capacity": {"window64": {"value": "a lot"}}}, "capacity"),
        ({"name": "g", "taints": [{"key": "k", "effect": "Never"}]}, "taint"),
        ({"name": "g", "taints": [{"key": f"k{n}", "effect": "NoSchedule"} for n in range(17)]}, "17 taints"),
        ({"name": "g", "consumesCounters": [{"counterSet": f"s{n}", "counters": {}} for n in range(3)]}, "consumes"),
        ({"name": "g", "basic": {}}, "keys"),
    ],
)
def test_what_the_api_refuses_of_a_device(device: dict[str, Any], wrong: str) -> None:
    assert wrong in "; ".join(wrong_in_slice(slice_of(device)))
    with pytest.raises(Refused):
        Api().replace_slices(DRIVER, [slice_of(device)])


def test_what_the_api_refuses_of_a_slice() -> None:
    many = [{"name": f"g{n}"} for n in range(128)]
    tainted = [{**device, "taints": [{"key": "k", "effect": "NoSchedule"}]} for device in many]
    sets = [{"name": f"s{n}", "counters": {"c": {"value": "1"}}} for n in range(8)]
    shared = {**slice_of(), "sharedCounters": sets}
    del shared["devices"]
    assert not list(wrong_in_slice(slice_of(*many)))
    assert not list(wrong_in_slice(slice_of(*tainted[:64])))
    assert not list(wrong_in_slice(shared))
    for wrong in (
        slice_of(*many, {"name": "one-more"}),
        slice_of(*tainted[:65]),
        slice_of(many[0], many[0]),
        {**shared, "devices": []},
        {**shared, "sharedCounters": [*sets, {"name": "s9", "counters": {"c": {"value": "1"}}}]},
        {**shared, "sharedCounters": [{"name": "s", "counters": {f"c{n}": {"value": "1"} for n in range(33)}}]},
    ):
        assert list(wrong_in_slice(wrong))


# Claims


def test_a_pod_gets_what_its_claim_was_given(node: Node, driver: Reference, kubelet: Manager) -> None:
    containers = kubelet.run(node.pod("vm", "one"))
    assert containers["compute"].env == {"DEVICE_0": "gpu-0"}
    assert containers["sidecar"].env == {}


def test_two_pods_on_a_claim_are_prepared_once_and_unprepared_after_the_last(
    node: Node, driver: Reference, kubelet: Manager
) -> None:
    first, second = node.pod("first", "one"), node.pod("second", "one")
    kubelet.run(first)
    kubelet.run(second)
    assert [method for method, _ in driver.calls] == ["NodePrepareResources"]
    kubelet.delete(first)
    assert [method for method, _ in driver.calls] == ["NodePrepareResources"]
    kubelet.delete(second)
    assert [method for method, _ in driver.calls] == ["NodePrepareResources", "NodeUnprepareResources"]


@pytest.mark.parametrize(
    ("attribute", "value", "wrong"),
    [
        ("error", "LK000: no", "NodePrepareResources failed for ResourceClaim one: LK000: no"),
        ("skips", True, "NodePrepareResources skipped 1 ResourceClaims"),
        ("answer_for_other", True, "unknown claim UID other"),
    ],
)
def test_a_wrong_answer_keeps_the_pod_from_starting(
    node: Node, driver: Reference, kubelet: Manager, attribute: str, value: object, wrong: str
) -> None:
    setattr(driver, attribute, value)
    with pytest.raises(NotPrepared, match=wrong):
        kubelet.prepare(node.pod("vm", "one"))
    assert wrong in kubelet.events[-1]


@pytest.mark.parametrize(("attribute", "value"), [("request_suffix", "/sub"), ("cdi_suffix", " blank")])
def test_an_answer_that_would_help_no_container_is_complained_of(
    node: Node, driver: Reference, kubelet: Manager, attribute: str, value: str
) -> None:
    setattr(driver, attribute, value)
    kubelet.prepare(node.pod("vm", "one"))
    assert len(kubelet.complaints) == 1
    kubelet.complaints.clear()


def test_a_call_beyond_the_deadline_is_repeated_while_it_goes_on(
    node: Node, driver: Reference, kubelet: Manager
) -> None:
    driver.slow.clear()
    pod = node.pod("vm", "one")
    running = threading.Thread(target=kubelet.run, args=(pod,))
    running.start()
    kubelet.wait(lambda: len(driver.calls) == 2, "the second call")
    assert "DEADLINE_EXCEEDED" in kubelet.events[0]
    driver.slow.set()
    running.join()


def test_a_claim_that_was_made_again_is_another_one(node: Node, driver: Reference, kubelet: Manager) -> None:
    old = node.pod("old", "one")
    kubelet.run(old)
    node.api.delete_claim("one")
    node.api.create_claim("one", [requested("gpu", "gpu")])
    kubelet.run(node.pod("new", "one"))
    assert len(driver.calls) == 2
    kubelet.delete(old)
    assert len(kubelet.runtime.names()) == 1


def test_a_claim_that_is_not_allocated_or_not_the_pods_is_not_prepared(
    node: Node, driver: Reference, kubelet: Manager
) -> None:
    with pytest.raises(NotPrepared, match="not allocated"):
        kubelet.prepare(Pod("vm", ("one",), {}))
    node.pod("vm", "one")
    with pytest.raises(NotPrepared, match="not allowed"):
        kubelet.prepare(Pod("other", ("one",), {}))
    with pytest.raises(NotPrepared, match="not found"):
        kubelet.prepare(Pod("vm", ("two",), {}))


def test_a_pod_stays_terminating_while_the_driver_is_away(node: Node, driver: Reference, kubelet: Manager) -> None:
    pod = node.pod("vm", "one")
    kubelet.run(pod)
    driver.stop()
    kubelet.wait(lambda: not kubelet.drivers(), "the driver gone")
    assert not kubelet.unprepare(pod)
    assert len(kubelet.errors) == 1
    driver.start()
    kubelet.delete(pod)
    assert kubelet.runtime.names() == set()


def test_after_a_restart_of_the_kubelet_all_is_prepared_again(node: Node, driver: Reference, kubelet: Manager) -> None:
    pod = node.pod("vm", "one")
    kubelet.run(pod)
    kubelet.stop()
    kubelet.start()
    kubelet.run(pod)
    assert [method for method, _ in driver.calls] == ["NodePrepareResources"] * 2


# The scheduler


@pytest.fixture
def scheduler() -> Scheduler:
    return Scheduler(
        Api(), {"gpu": DeviceClass(DRIVER), "big": DeviceClass(DRIVER, lambda device: "big" in device["name"])}
    )


def offer(scheduler: Scheduler, *devices: dict[str, Any], **counters: str) -> Callable[[str, int], list[str]]:
    """Publish devices beside a counter set; gives what claims for so many get."""
    api = scheduler._api
    slices = [slice_of(*devices, count=2)]
    shared = {key: value for key, value in slices[0].items() if key != "devices"}
    sets = {name: {"value": value} for name, value in counters.items()} or {"none": {"value": "0"}}
    api.replace_slices(DRIVER, [{**shared, "sharedCounters": [{"name": "set", "counters": sets}]}, *slices])

    def claim(device_class: str, count: int) -> list[str]:
        name = f"claim-{len(api.claims())}"
        api.create_claim(name, [requested("gpu", device_class, count)])
        found = scheduler.reserve(name, f"pod-of-{name}")
        return [result["device"] for result in found["status"]["allocation"]["devices"]["results"]]

    return claim


def consuming(name: str, amount: int) -> dict[str, Any]:
    return {"name": name, "consumesCounters": [{"counterSet": "set", "counters": {"group": {"value": str(amount)}}}]}


def test_a_counter_that_is_used_up_keeps_the_other_device(scheduler: Scheduler) -> None:
    claim = offer(scheduler, consuming("one", 1), consuming("two", 1), {"name": "three"}, group="1")
    assert claim("gpu", 1) == ["one"]
    assert claim("gpu", 1) == ["three"]
    with pytest.raises(Unschedulable):
        claim("gpu", 1)
    scheduler.release("claim-0", "pod-of-claim-0")
    assert claim("gpu", 1) == ["one"]


def test_within_a_claim_counters_count_too(scheduler: Scheduler) -> None:
    claim = offer(scheduler, consuming("one", 1), consuming("two", 1), consuming("big", 2), group="2")
    with pytest.raises(Unschedulable):
        claim("gpu", 3)
    assert claim("gpu", 2) == ["one", "two"]
    with pytest.raises(Unschedulable):
        claim("big", 1)


def test_a_tainted_device_is_not_given_unless_it_is_tolerated(scheduler: Scheduler) -> None:
    taint = {"key": "launcherkit.io/busy", "effect": "NoSchedule"}
    claim = offer(scheduler, {"name": "one", "taints": [taint]})
    with pytest.raises(Unschedulable):
        claim("gpu", 1)
    tolerant = requested("gpu", "gpu", tolerations=[{"key": "launcherkit.io/busy", "operator": "Exists"}])
    scheduler._api.create_claim("tolerant", [tolerant])
    scheduler.reserve("tolerant", "vm")


def test_the_first_that_is_available_is_given_under_its_whole_name(scheduler: Scheduler) -> None:
    offer(scheduler, {"name": "small"})
    exactly = {"deviceClassName": "big"}, {"deviceClassName": "gpu"}
    alternatives = [{"name": name, **one} for name, one in zip(("first", "second"), exactly, strict=True)]
    scheduler._api.create_claim("either", [{"name": "req", "firstAvailable": alternatives}])
    (result,) = scheduler.reserve("either", "vm")["status"]["allocation"]["devices"]["results"]
    assert (result["request"], result["device"]) == ("req/second", "small")


def test_a_pool_that_is_not_whole_is_not_used(scheduler: Scheduler) -> None:
    scheduler._api.replace_slices(DRIVER, [slice_of({"name": "one"}, count=2)])
    scheduler._api.create_claim("one", [requested("gpu", "gpu")])
    with pytest.raises(Unschedulable):
        scheduler.reserve("one", "vm")


def test_chance_changes_the_order_alone() -> None:
    given = set()
    for seed in range(20):
        scheduler = Scheduler(Api(), {"gpu": DeviceClass(DRIVER)}, random.Random(seed))
        given.add(offer(scheduler, *({"name": f"g{n}"} for n in range(4)))("gpu", 1)[0])
    assert len(given) > 1


# The runtime

SPEC = {"cdiVersion": "0.5.0", "kind": "example.com/gpu"}


def device(name: str, **edits: object) -> dict[str, object]:
    return {"name": name, "containerEdits": edits}


def write(folder: Path, name: str, *devices: object, **more: object) -> Runtime:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(json.dumps({**SPEC, "devices": devices, **more}))
    return Runtime(folder)


def test_what_several_files_say_of_a_container_is_merged(tmp_path: Path) -> None:
    (tmp_path / "node").touch()
    node = {"path": "/dev/vfio/1", "hostPath": str(tmp_path / "node")}
    mount = {"hostPath": str(tmp_path / "node"), "containerPath": "/etc/m", "options": ["ro", "bind"]}
    write(tmp_path, "a.json", device("0", env=["A=1"], deviceNodes=[node]), containerEdits={"env": ["ALL=yes"]})
    runtime = write(tmp_path, "b.json", device("x", env=["A=2", "B=3"], mounts=[mount]), kind="example.com/other")
    container = runtime.create(["example.com/gpu=0", "example.com/other=x"])
    assert container.env == {"A": "2", "B": "3", "ALL": "yes"}
    assert container.nodes == {"/dev/vfio/1": str(tmp_path / "node")}
    assert set(container.mounts) == {"/etc/m"}


@pytest.mark.parametrize(
    ("edits", "wrong"),
    [
        ({"env": ["A"]}, "env"),
        ({"deviceNodes": [{"path": "dev/x"}]}, "node"),
        ({"deviceNodes": [{"path": "/dev/x", "permissions": "rwx"}]}, "permissions"),
        ({"mounts": [{"hostPath": "/x"}]}, "mount"),
        ({"devices": []}, "edits"),
        ({}, "edits nothing"),
    ],
)
def test_a_file_that_is_invalid_fails_the_container(tmp_path: Path, edits: dict[str, object], wrong: str) -> None:
    runtime = write(tmp_path, "a.json", device("0", **edits))
    with pytest.raises(NotCreated, match=wrong):
        runtime.create(["example.com/gpu=0"])


def test_a_file_says_the_version_of_what_it_has() -> None:
    named = device("0", env=["A=1"])
    assert "0.5.0" not in wrong_in({**SPEC, "devices": [named]})
    assert "is needed" in wrong_in({**SPEC, "cdiVersion": "0.4.0", "devices": [named]})
    assert "cdiVersion" in wrong_in({**SPEC, "cdiVersion": "7", "devices": [named]})


def test_a_device_without_a_file_or_with_two_fails_the_container(tmp_path: Path) -> None:
    write(tmp_path, "a.json", device("0", env=["A=1"]))
    runtime = write(tmp_path, "b.json", device("0", env=["A=1"]))
    for name in ("0", "1"):
        with pytest.raises(NotCreated, match=f"unresolvable CDI devices example.com/gpu={name}"):
            runtime.create([f"example.com/gpu={name}"])


def test_a_node_that_is_not_there_fails_the_container(tmp_path: Path) -> None:
    runtime = write(tmp_path, "a.json", device("0", deviceNodes=[{"path": "/dev/vfio/4711"}]))
    with pytest.raises(NotCreated, match="failed to stat"):
        runtime.create(["example.com/gpu=0"])


def test_the_pace_of_tests_is_that_of_the_kubelet_but_quicker() -> None:
    assert FAST.deadline / FAST.again == pytest.approx(45 / 6)
    assert FAST.lost / FAST.again == pytest.approx(30 / 6)
