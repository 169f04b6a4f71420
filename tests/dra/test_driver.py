"""The DRA driver, as a process on a built host, against a kubelet that does all that the real one was seen to do."""

from __future__ import annotations

import json
import resource
import shutil
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.dra import wire
from tests.dra.held import NotPrepared, Pod
from tests.dra.node import DRIVER, GPU, RULE, Node, running_node
from tests.dra.plugins import Plugin
from tests.dra.runtime import Container
from tests.dra.scheduler import Unschedulable, requested
from tests.plugin.resources import rebind
from tests.support.hosttree import HostTree
from tests.support.kubelet import NotAdmitted

FIRST, SECOND = "0000:01:00.0", "0000:02:00.0"
VARIABLE = "PCI_RESOURCE_EXAMPLE_COM_GPU"
ATTRIBUTES = "/var/run/kubernetes.io/dra-device-attributes"


@contextmanager
def two_cards() -> Iterator[HostTree]:
    """Of two functions each, in groups of their own."""
    with tempfile.TemporaryDirectory(prefix="host-") as folder:
        tree = HostTree(Path(folder))
        tree.card("0000:01:00", group=10)
        tree.card("0000:02:00", group=11, numa=1)
        yield tree


@pytest.fixture(scope="module")
def lasting() -> Iterator[Node]:
    """One driver for all tests that don't trouble it."""
    with two_cards() as tree, running_node(tree.root) as node:
        node.start()
        yield node


@pytest.fixture
def node(lasting: Node) -> Iterator[Node]:
    """A driver; nothing that a test has done with it stays."""
    yield lasting
    lasting.clear()


@pytest.fixture
def tree() -> Iterator[HostTree]:
    with two_cards() as tree:
        yield tree


@pytest.fixture
def own(tree: HostTree) -> Iterator[Node]:
    """A driver of the test's own."""
    with running_node(tree.root) as node:
        node.start()
        yield node


def bdf(name: str) -> str:
    """The address of a device of a slice: ``pci-0000-01-00-0``."""
    domain, bus, slot, function = name.removeprefix("pci-").split("-")
    return f"{domain}:{bus}:{slot}.{function}"


def groups_of(container: Container) -> set[str]:
    """The nodes of IOMMU groups that a container has."""
    return set(container.nodes) - {"/dev/vfio/vfio"}


def metadata(container: Container, path: str) -> dict[str, Any]:
    """What a metadata file says, in the version that readers of today know; in every other it says the same."""
    text, decoder = container.read(f"{ATTRIBUTES}/{path}/{DRIVER}-metadata.json"), json.JSONDecoder()
    by_version: dict[str, dict[str, Any]] = {}
    while text := text.strip():
        value, end = decoder.raw_decode(text)
        text = text[end:]
        by_version[value.pop("apiVersion")] = value
    found = by_version["metadata.resource.k8s.io/v1alpha1"]
    assert all(other == found for other in by_version.values())
    return found


# From the claim to the container


def test_a_claim_gets_a_card_with_all_that_a_launcher_needs(node: Node) -> None:
    node.claim("one")
    container = node.run(node.pod("vm", "one"))
    (device,) = node.given("one")
    group = {FIRST: 10, SECOND: 11}[bdf(device)]
    assert container.env[VARIABLE] == bdf(device)
    assert set(container.nodes) == {"/dev/vfio/vfio", f"/dev/vfio/{group}"}
    shown = metadata(container, "resourceclaims/one/gpu")
    assert shown["kind"] == "DeviceMetadata"
    (request,) = shown["requests"]
    (described,) = request["devices"]
    assert (request["name"], described["driver"], described["name"]) == ("gpu", DRIVER, device)
    assert described["attributes"]["resource.kubernetes.io/pciBusID"] == {"string": bdf(device)}


def test_the_newest_service_is_called(node: Node) -> None:
    assert node.manager.version(DRIVER) == "v1"


def test_a_claim_of_a_template_is_found_under_the_name_that_the_pod_gives_it(node: Node) -> None:
    node.claim("vm-gpu-x7x7x", pod_claim="gpu-claim")
    container = node.run(node.pod("vm", "vm-gpu-x7x7x"))
    shown = metadata(container, "resourceclaimtemplates/gpu-claim/gpu")
    assert shown["podClaimName"] == "gpu-claim"


def test_nothing_of_a_claim_is_left_after_its_pod(node: Node) -> None:
    before = node.left()
    node.claim("one")
    pod = node.pod("vm", "one")
    node.run(pod)
    assert node.left() != before
    node.delete(pod)
    assert node.left() == before


def test_two_devices_of_one_request_are_both_in_the_container(node: Node) -> None:
    node.claim("both", requested("gpu", "gpu", count=2))
    container = node.run(node.pod("vm", "both"))
    assert sorted(container.env[VARIABLE].split(",")) == [FIRST, SECOND]
    assert groups_of(container) == {"/dev/vfio/10", "/dev/vfio/11"}


def test_two_requests_of_one_claim_go_to_two_containers(node: Node) -> None:
    """Each with its own nodes and variable, so a container that lists both has the variable of the last one (D9)."""
    node.claim("both", requested("a", "gpu"), requested("b", "gpu"))
    node.scheduler.reserve("both", "vm")
    containers = node.manager.run(Pod("vm", ("both",), {"one": [("both", "a")], "two": [("both", "b")]}))
    one, two = containers["one"], containers["two"]
    assert sorted([one.env[VARIABLE], two.env[VARIABLE]]) == [FIRST, SECOND]
    assert len(groups_of(one)) == len(groups_of(two)) == 1
    assert not groups_of(one) & groups_of(two)


def test_a_container_that_has_all_of_a_claim_has_all_its_requests(node: Node) -> None:
    node.claim("both", requested("a", "gpu"), requested("b", "gpu"))
    container = node.run(node.pod("vm", "both"))
    assert groups_of(container) == {"/dev/vfio/10", "/dev/vfio/11"}
    assert {path.split("/")[-2] for path in container.mounts} >= {"a", "b"}


def test_an_alternative_is_answered_under_the_name_of_its_request(node: Node) -> None:
    one = {"name": "sub", "deviceClassName": "gpu"}
    node.claim("either", {"name": "req", "firstAvailable": [one]})
    container = node.run(node.pod("vm", "either", request="req"))
    assert VARIABLE in container.env
    assert metadata(container, "resourceclaims/either/req")


def test_devices_of_other_drivers_are_left_to_them(node: Node) -> None:
    uid = node.claim("one")
    pod = node.pod("vm", "one")
    status = node.api.claim("default", "one")["status"]
    other = {"request": "nic", "driver": "nic.example.com", "pool": "node-1", "device": "nic-0"}
    status["allocation"]["devices"]["results"].append(other)
    node.api.set_status("one", status)
    answers = prepared(node, ("default", "one", uid))
    assert [device.device_name for device in answers[uid].devices] == [node.given("one")[0]]
    assert pod.uid


def prepared(node: Node, *claims: tuple[str, str, str], method: str = "NodePrepareResources") -> dict[str, Any]:
    """The driver's own answers to a call for claims, by UID: whatever the kubelet would think of it."""
    return node.manager.plugin(DRIVER).call(method, list(claims), 60.0)


# Repeats, restarts


def test_what_is_prepared_again_is_answered_the_same(node: Node) -> None:
    uid = node.claim("one")
    node.pod("vm", "one")
    first = prepared(node, ("default", "one", uid))
    before = node.left()
    again = prepared(node, ("default", "one", uid))
    assert first[uid].SerializeToString() == again[uid].SerializeToString()
    assert node.left() == before


def test_calls_for_one_claim_at_the_same_time_agree(node: Node) -> None:
    uid = node.claim("one")
    node.pod("vm", "one")
    answers: list[Any] = []
    threads = [
        threading.Thread(target=lambda: answers.append(prepared(node, ("default", "one", uid))[uid])) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({answer.SerializeToString() for answer in answers}) == 1
    assert answers[0].error == ""


def test_slices_come_back_after_the_kubelet_has_wiped_them(own: Node) -> None:
    own.claim("one")
    pod = own.pod("vm", "one")
    before = own.run(pod)
    slices = own.api.devices()
    own.manager.stop()
    own.manager.start()
    own.wait_until_ready()
    assert own.api.devices() == slices
    assert own.run(pod) == before


def test_a_driver_that_was_killed_knows_what_claims_have(own: Node) -> None:
    before = own.left()
    uid = own.claim("one")
    pod = own.pod("vm", "one")
    container = own.run(pod)
    own.restart()
    own.manager.stop()
    own.manager.start()
    own.wait_until_ready()
    assert own.run(pod) == container
    own.restart()
    assert prepared(own, ("default", "one", uid), method="NodeUnprepareResources")[uid].error == ""
    assert own.left() == before


def test_a_driver_that_ends_takes_its_sockets_with_it_and_nothing_else(own: Node) -> None:
    own.claim("one")
    own.run(own.pod("vm", "one"))
    before = own.left()
    assert own.end() == 0
    assert list(own.manager.registry.iterdir()) == []
    data = own.manager.registry.parent / "plugins" / DRIVER
    assert not [path for path in data.iterdir() if path.is_socket()]
    assert own.left() == before


def test_a_pod_ends_when_the_driver_is_back(own: Node) -> None:
    before = own.left()
    own.claim("one")
    pod = own.pod("vm", "one")
    own.run(pod)
    own.end()
    own.wait(lambda: not own.manager.drivers(), "the driver gone")
    assert not own.manager.unprepare(pod)
    own.start()
    own.delete(pod)
    assert own.left() == before


def test_sockets_that_somebody_removes_are_made_again(own: Node) -> None:
    data = own.manager.registry.parent / "plugins" / DRIVER
    for path in (own.manager.registry / f"{DRIVER}-reg.sock", data / "dra.sock"):
        wiped = len(own.api.wiped)
        path.unlink()
        own.wait(path.exists, f"{path} again")
        own.wait_until_ready()
        own.claim(path.stem.replace(".", "-"))
        own.delete(own.pod("vm", path.stem.replace(".", "-")))
        assert len(own.api.wiped) == wiped


def test_an_older_kubelet_calls_the_older_service(node: Node) -> None:
    uid = node.claim("one")
    node.pod("vm", "one")
    older = Plugin(DRIVER, node.manager.drivers()[DRIVER], "v1beta1.DRAPlugin", lambda: None)
    try:
        answer = older.call("NodePrepareResources", [("default", "one", uid)], 60.0)[uid]
    finally:
        older.close()
    assert [device.device_name for device in answer.devices] == node.given("one")


def test_a_claim_may_have_the_longest_of_names(node: Node) -> None:
    name = ".".join(["n" * 63] * 4)[:253]
    node.claim(name)
    container = node.run(node.pod("vm", name))
    assert metadata(container, f"resourceclaims/{name}/gpu")["metadata"]["name"] == name


# What is refused


def test_a_device_that_another_claim_has_is_refused(node: Node) -> None:
    uid = node.claim("one")
    node.run(node.pod("vm", "one"))
    other = node.claim("two")
    node.pod("other", "two")
    status = node.api.claim("default", "two")["status"]
    status["allocation"]["devices"]["results"][0]["device"] = node.given("one")[0]
    node.api.set_status("two", status)
    answer = prepared(node, ("default", "two", other))[other]
    assert "error[LK" in answer.error or "LK" in answer.error
    assert "one" in answer.error
    assert not any(other in name for name in node.left())
    assert any(uid in name for name in node.left())


def test_every_claim_that_is_asked_for_is_answered(node: Node) -> None:
    good = node.claim("good")
    node.pod("vm", "good")
    bad = node.claim("bad")
    answers = prepared(node, ("default", "good", good), ("default", "bad", bad), ("default", "none", "no-uid"))
    assert set(answers) == {good, bad, "no-uid"}
    assert answers[good].error == ""
    assert answers[bad].error
    assert answers["no-uid"].error


def test_a_claim_of_another_uid_is_refused(node: Node) -> None:
    old = node.claim("one")
    node.pod("vm", "one")
    node.api.delete_claim("one")
    new = node.claim("one")
    node.pod("vm", "one")
    assert prepared(node, ("default", "one", old))[old].error
    assert prepared(node, ("default", "one", new))[new].error == ""


def test_a_claim_made_again_under_its_name_waits_for_the_old_one(node: Node) -> None:
    """The kubelet refuses it as long as it remembers the old one; the driver doesn't rely on that."""
    before = node.left()
    node.claim("one")
    old = node.pod("old", "one")
    first = node.run(old)
    node.api.delete_claim("one")
    uid = node.claim("one")
    new = node.pod("new", "one")
    assert "LK" in prepared(node, ("default", "one", uid))[uid].error
    assert metadata(first, "resourceclaims/one/gpu")["metadata"]["uid"] != uid
    node.manager.delete(old)
    second = node.run(new)
    assert metadata(second, "resourceclaims/one/gpu")["metadata"]["uid"] == uid
    node.delete(new)
    assert node.left() == before


def test_a_claim_that_was_allocated_again_gets_what_it_has_now(node: Node) -> None:
    """Its pod was deleted by force, and nobody has told the driver."""
    uid = node.claim("one")
    node.pod("vm", "one")
    assert prepared(node, ("default", "one", uid))[uid].error == ""
    status = node.api.claim("default", "one")["status"]
    (result,) = status["allocation"]["devices"]["results"]
    former = result["device"]
    result["device"] = "pci-0000-02-00-0" if former == "pci-0000-01-00-0" else "pci-0000-01-00-0"
    node.api.set_status("one", status)
    (device,) = prepared(node, ("default", "one", uid))[uid].devices
    assert device.device_name == result["device"]
    node.cluster.complaints.clear()  # of a status of the former device that came after that
    assert not any(former in name for name in node.left())


def test_what_was_never_prepared_is_unprepared_without_an_error(node: Node) -> None:
    answers = prepared(node, ("default", "none", "nobody"), method="NodeUnprepareResources")
    assert answers["nobody"].error == ""


def test_claims_that_would_share_a_group_with_somebody_are_refused(node: Node) -> None:
    uid = node.claim("admin", requested("gpu", "gpu", adminAccess=True))
    node.pod("vm", "admin")
    status = node.api.claim("default", "admin")["status"]
    status["allocation"]["devices"]["results"][0]["adminAccess"] = True
    node.api.set_status("admin", status)
    assert "adminAccess" in prepared(node, ("default", "admin", uid))[uid].error


def test_parameters_of_other_drivers_are_none_of_its_business(node: Node) -> None:
    uid = node.claim("one", config=[{"requests": [], "opaque": {"driver": "other.example.com", "parameters": []}}])
    node.pod("vm", "one")
    assert prepared(node, ("default", "one", uid))[uid].error == ""


# The cluster is away, the disk is full


def test_while_the_api_is_away_prepare_says_so_in_time_and_unprepare_works(node: Node) -> None:
    before = node.left()
    node.claim("one")
    ended = node.pod("vm", "one")
    node.run(ended)
    node.claim("two")
    begun = node.pod("other", "two")
    node.cluster.set_away(True)
    with pytest.raises(NotPrepared, match="LK"):
        node.manager.prepare(begun)
    node.manager.delete(ended)
    node.cluster.set_away(False)
    node.run(begun)
    node.manager.delete(begun)
    assert node.left() == before


@pytest.mark.parametrize("room", [0, 10, 200])
def test_a_full_disk_leaves_nothing_half_done(own: Node, room: int) -> None:
    """Files can't grow beyond some bytes: wherever it fails, nothing is given, and it goes on when there is room."""
    before = own.left()
    own.claim("one")
    pod = own.pod("vm", "one")
    assert own.process is not None
    limits = resource.prlimit(own.process.process.pid, resource.RLIMIT_FSIZE, (room, resource.RLIM_INFINITY))
    with pytest.raises(NotPrepared, match="LK"):
        own.manager.prepare(pod)
    assert own.left() == before
    resource.prlimit(own.process.process.pid, resource.RLIMIT_FSIZE, limits)
    assert VARIABLE in own.run(pod).env


def test_claims_are_given_back_though_the_disk_is_full(own: Node) -> None:
    before = own.left()
    own.claim("one")
    pod = own.pod("vm", "one")
    own.run(pod)
    assert own.process is not None
    resource.prlimit(own.process.process.pid, resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
    own.manager.delete(pod)
    assert own.left() == before


def test_a_claim_that_can_not_be_given_back_is_an_event_of_ours(own: Node) -> None:
    """The kubelet writes it to its log, and its pod stays without a word."""
    uid = own.claim("one")
    pod = own.pod("vm", "one")
    own.run(pod)
    file = own.folder / "cdi" / f"{DRIVER}_{uid}.json"
    file.unlink()
    file.mkdir()
    assert not own.manager.unprepare(pod)
    assert "default/one" in own.cluster.event(str(file))["message"]
    file.rmdir()
    own.delete(pod)


def test_a_cdi_folder_that_is_not_there_is_made(own: Node) -> None:
    shutil.rmtree(own.folder / "cdi")
    own.claim("one")
    assert VARIABLE in own.run(own.pod("vm", "one")).env


# Health


def test_a_card_that_can_not_be_had_is_unhealthy_and_tainted(own: Node, tree: HostTree) -> None:
    health = own.manager.health
    own.wait(lambda: set(health(DRIVER).values()) == {(wire.HEALTHY, "")}, "both healthy")
    rebind(tree, FIRST, "nvidia")
    sick = "pci-0000-01-00-0"
    own.wait(lambda: health(DRIVER).get(sick, (0, ""))[0] == wire.UNHEALTHY, "one unhealthy")
    assert set(health(DRIVER)) == {sick, "pci-0000-02-00-0"}
    assert "nvidia" in health(DRIVER)[sick][1]
    own.wait(lambda: own.api.devices()[sick].get("taints"), "the taint")
    own.claim("one")
    own.claim("two")
    own.pod("vm", "one")
    assert own.given("one") == ["pci-0000-02-00-0"]
    with pytest.raises(Unschedulable):
        own.pod("other", "two")
    rebind(tree, FIRST, "vfio-pci")
    own.wait(lambda: not own.api.devices()[sick].get("taints"), "the taint gone")
    own.pod("other", "two")


def test_nothing_is_published_again_that_has_not_changed(node: Node) -> None:
    writes = node.api.writes
    node.claim("one")
    pod = node.pod("vm", "one")
    node.run(pod)
    node.delete(pod)
    assert node.api.writes == writes


# Both worlds


@pytest.fixture
def shared(tree: HostTree) -> Iterator[Node]:
    """Two cards of different models in one group: one the device plugin's, the other DRA's."""
    tree.function("0000:03:00.0", group=12, driver="vfio-pci", device=0x1111)
    tree.function("0000:03:01.0", group=12, driver="vfio-pci", device=0x2222)
    select = {"vendors": ["10de"], "classes": ["03"]}
    with running_node(tree.root) as node:
        node.configure(
            resources=[
                {"name": "example.com/PLUGIN", "select": [{**select, "devices": ["1111"]}]},
                {**RULE, "select": [{**select, "devices": ["2222"]}]},
            ]
        )
        node.start()
        yield node


def test_a_group_is_not_split_between_a_pod_of_the_device_plugin_and_a_claim(shared: Node) -> None:
    plugin = "example.com/PLUGIN"
    shared.kubelet.wait_for(plugin, {"0000:03:00.0": True})
    uid = shared.claim("one")
    pod = shared.pod("vm", "one")
    shared.kubelet.admit("other", [("compute", plugin, 1)])
    assert "LK" in prepared(shared, ("default", "one", uid))[uid].error
    asked = shared.kubelet.asked_for_pods
    shared.kubelet.wait(lambda: shared.kubelet.asked_for_pods > asked + 1, "the plugin has seen the pod")
    shared.kubelet.delete("other")
    shared.run(pod)
    with pytest.raises(NotAdmitted):
        shared.kubelet.call_allocate(plugin, ["0000:03:00.0"])
    shared.kubelet.wait_for(plugin, {"0000:03:00.0": False})
    shared.manager.delete(pod)
    shared.kubelet.wait_for(plugin, {"0000:03:00.0": True})


def test_the_device_plugin_does_not_advertise_what_is_for_claims(node: Node) -> None:
    assert GPU not in node.kubelet.resources()


# The kubelet's own ways


def test_a_second_instance_takes_over_without_a_gap(own: Node) -> None:
    own.claim("one")
    pod = own.pod("vm", "one")
    container = own.run(pod)
    with own.replaced(POD_UID="12345678-aaaa-4bbb-8ccc-123456789abc") as first:
        own.wait(lambda: len(own.manager.instances(DRIVER)) == 2, "both instances")
        wiped = len(own.api.wiped)
        assert first.end() == 0
        own.wait(lambda: len(own.manager.instances(DRIVER)) == 1, "the first one gone")
        assert len(own.api.wiped) == wiped
        assert own.manager.run(pod)["compute"] == container
        own.delete(pod)
        assert own.left() == set()
