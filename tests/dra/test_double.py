"""The double itself, with the least of drivers: it does what the real parts have been seen to do."""

from __future__ import annotations

import socket
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.dra import wire
from tests.dra.api import Api
from tests.dra.held import NotPrepared, Pod
from tests.dra.manager import FAST, Manager, running_manager
from tests.dra.reference import DRIVER, Reference, running_reference, slice_of
from tests.dra.runtime import Runtime
from tests.dra.scheduler import DeviceClass, Scheduler, requested
from tests.support.waiting import PATIENCE

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
    kubelet.pace = kubelet.pace._replace(lost=PATIENCE)
    driver.stop()
    kubelet.wait(lambda: not kubelet.drivers(), "the driver gone")
    driver.start()
    kubelet.wait_for(DRIVER)
    assert node.api.slices()
    assert len(node.api.wiped) == wiped


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
    kubelet.pace = FAST
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
    new = node.pod("new", "one")
    with pytest.raises(NotPrepared, match="same name"):
        kubelet.prepare(new)
    kubelet.delete(old)
    kubelet.run(new)
    assert [method for method, _ in driver.calls] == [
        f"Node{what}Resources" for what in ("Prepare", "Unprepare", "Prepare")
    ]


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


def test_the_pace_of_tests_is_that_of_the_kubelet_but_quicker() -> None:
    assert FAST.deadline / FAST.again == pytest.approx(45 / 6)
    assert FAST.lost / FAST.again == pytest.approx(30 / 6)
