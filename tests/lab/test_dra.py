"""The expectations of DRA drivers, with a stand-in for the API server: this project's meets them, and others don't."""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from launcherkit_lab.api import Api
from launcherkit_lab.conformance.dra import DRA
from launcherkit_lab.conformance.dra_node import DraNode
from launcherkit_lab.conformance.driver import Driver
from launcherkit_lab.conformance.expectation import Result, Status
from launcherkit_lab.conformance.node import Limits
from launcherkit_lab.conformance.trial import selected, tried
from tests.dra import api
from tests.dra.reference import DRIVER, Reference
from tests.lab.bench import BuiltMachine
from tests.lab.dra_driver import dra_results, two_cards
from tests.support.apiserver import CLAIMS, NODES, SLICES, ApiServer
from tests.support.hosttree import HostTree
from tests.support.waiting import PATIENCE

NODE = "node-1"


def test_the_driver_of_this_project_is_conformant(folder: Path) -> None:
    server = ApiServer()
    server.put(NODES, {"metadata": {"name": NODE}})
    with server.running(folder) as kubeconfig:
        results = dra_results(folder, kubeconfig, NODE, "vms", two_cards(folder))
    assert [f"{one.number}: {one.seen}\n{one.log}" for one in results if one.status is not Status.PASSED] == []


class Published(ApiServer):
    """Slices that are deleted come back, as of a driver that watches them."""

    watched = True

    def publish(self, *devices: dict[str, Any], count: int = 1, **more: Any) -> None:
        pool = {"name": NODE, "generation": 1, "resourceSliceCount": count}
        spec = {"driver": DRIVER, "nodeName": NODE, "pool": pool, "devices": list(devices), **more}
        self.put(SLICES, {"metadata": {"name": "0"}, "spec": spec})

    def remove(self, path: str, name: str) -> None:
        there = next(item for item in self.objects[path].values() if item["metadata"]["name"] == name)
        super().remove(path, name)
        if path == SLICES and self.watched:
            self.put(path, {**there, "metadata": {"name": name, "uid": "another"}})


class Claims(api.Api):
    """The claims of a server, for who reads them here."""

    def __init__(self, server: ApiServer) -> None:
        super().__init__()
        self._server = server

    def claim(self, namespace: str, name: str) -> dict[str, Any]:
        with self._server.lock:
            for item in self._server.objects[CLAIMS].values():
                if item["metadata"]["name"] == name:
                    return item
        raise api.Refused(name)


class InProcess(Driver):
    """The least that a DRA driver is."""

    def __init__(self, folder: Path, server: Published) -> None:
        super().__init__([], folder / "log")
        self.server = server
        self.driver = Reference(folder / "kubelet", folder / "cdi", Claims(server))
        self.loses_files = self.leaves_socket = False
        self._runs = False

    @property
    def running(self) -> bool:
        return self._runs

    def start(self) -> None:
        self._runs = True
        self.driver.start()

    def kill(self) -> None:
        if self._runs:
            self._runs = False
            self.driver.vanish()
            for path in (self.driver.endpoint.parent.parent.parent.parent / "cdi").glob("*"):
                if self.loses_files:
                    path.unlink()

    def end(self, seconds: float) -> int | None:
        self._runs = False
        self.driver.stop()
        if self.leaves_socket:
            with socket.socket(socket.AF_UNIX) as left:
                left.bind(str(self.driver.registration))
        return 0


def trial(
    folder: Path, change: Callable[[InProcess], object], *only: str, arrange: Callable[[BuiltMachine], object] = id
) -> list[Result]:
    tree, server = HostTree(folder / "host"), Published()
    tree.function("0000:01:00.0", driver="vfio-pci", group=1)
    server.put(NODES, {"metadata": {"name": NODE}})
    server.publish({"name": "gpu-0"})
    driver = InProcess(folder, server)
    change(driver)
    with server.running(folder) as kubeconfig:
        limits = Limits(health_seconds=0.2, patience=PATIENCE if not only else 0.5)
        machine, kubelet, cdi = BuiltMachine(tree), folder / "kubelet", folder / "cdi"
        arrange(machine)
        node = DraNode(driver, machine, Api(kubeconfig), kubelet, cdi, NODE, "vms", limits)
        with node.running():
            return tried(selected(DRA, only), node)


def test_the_least_of_drivers_meets_what_it_is_about(folder: Path) -> None:
    results = trial(folder, lambda driver: None)
    seen = {one.number: one.seen for one in results if one.status is not Status.PASSED}
    assert {number: text.split()[0] for number, text in seen.items()} == {
        "DRA7": "gpu-0",
        "DRA19": "it",
        "DRA20": "no",
        "DRA21": "gpu-0",
    }, "no function, no metadata"


def set_to(**values: object) -> Callable[[InProcess], None]:
    def change(driver: InProcess) -> None:
        for name, value in values.items():
            owner: Any = driver if hasattr(driver, name) else driver.driver
            assert hasattr(owner, name)
            setattr(owner, name, value)

    return change


def device(**more: Any) -> Callable[[InProcess], None]:
    return lambda driver: driver.server.publish({"name": "gpu-0", **more})


def named(address: str) -> Callable[[InProcess], None]:
    return device(attributes={"resource.kubernetes.io/pciBusID": {"string": address}})


def takes(counters: dict[str, Any]) -> Callable[[InProcess], None]:
    return device(consumesCounters=[{"counterSet": "card", "counters": counters}])


@pytest.mark.parametrize(
    ("number", "change", "seen"),
    [
        ("DRA1", set_to(kind="CSIPlugin"), "its type is 'CSIPlugin'"),
        ("DRA3", lambda it: it.server.publish({"name": "gpu-0"}, count=2), "has 1 slices, and resourceSliceCount 2"),
        ("DRA3", lambda it: it.server.publish({"name": "gpu-0"}, {"name": "gpu-0"}), "has 2 devices gpu-0"),
        ("DRA4", named("01:00.0"), "pciBusID is '01:00.0'"),
        ("DRA4", named("0000:7f:00.0"), "the machine has no function 0000:7f:00.0"),
        ("DRA5", takes({"units": {"value": "1Ki"}}), "takes 1Ki of card/units, of which its pool has 0"),
        ("DRA5", takes({"units": {"value": "500u"}}), "takes 500u of card/units, of which its pool has 0"),
        ("DRA6", set_to(request_suffix="x"), "is allocated to r0; prepared is"),
        ("DRA6", set_to(cdi_suffix="x"), "0 files of"),
        ("DRA7", named("0000:01:00.0"), "a container needs /dev/vfio/1, /dev/vfio/vfio; it gets no node"),
        ("DRA8", set_to(skips=True), "answers for none"),
        ("DRA11", set_to(credulous=True), "a claim without allocation was prepared"),
        ("DRA12", set_to(credulous=True), "a claim of what another one has was prepared"),
        ("DRA13", set_to(keeps_files=True), ".json is left"),
        ("DRA14", set_to(credulous=True), "not prepared"),
        ("DRA15", set_to(loses_files=True), "0 files of"),
        ("DRA17", lambda it: setattr(it.server, "watched", False), "never saw the slices again"),
        ("DRA18", set_to(leaves_socket=True), "-reg.sock is left"),
        ("DRA20", named("0000:01:00.0"), "never saw a taint on gpu-0"),
        ("DRA21", named("0000:01:00.0"), "no guest: vfio 0000:01:00.0: failed to open /dev/vfio/1"),
    ],
)
def test_what_is_wrong_is_found(folder: Path, number: str, change: Callable[[InProcess], object], seen: str) -> None:
    (result,) = trial(folder, change, number)
    assert result.status is Status.FAILED
    assert seen in result.seen


def with_nodes(driver: InProcess) -> None:
    named("0000:01:00.0")(driver)
    driver.driver.nodes = ("/dev/vfio/vfio", "/dev/vfio/1")


def test_a_guest_has_the_function_and_nothing_else(folder: Path) -> None:
    (result,) = trial(folder, with_nodes, "DRA21")
    assert (result.status, result.seen) == (Status.PASSED, "a guest has found 0000:01:00.0")


def test_what_a_guest_finds_besides_is_found(folder: Path) -> None:
    def arrange(machine: BuiltMachine) -> None:
        machine.strange = {"0000:00:02.0": (0x8086, 0x10CA)}

    (result,) = trial(folder, with_nodes, "DRA21", arrange=arrange)
    assert (result.status, result.seen) == (Status.FAILED, "the guest also finds 8086:10ca at 0000:00:02.0")


def test_where_no_guest_can_be_started_it_is_not_tried(folder: Path) -> None:
    def arrange(machine: BuiltMachine) -> None:
        machine.no_guest = "no qemu-system-x86_64 here"

    (result,) = trial(folder, with_nodes, "DRA21", arrange=arrange)
    assert (result.status, result.seen) == (Status.NOT_TRIED, "no qemu-system-x86_64 here")
