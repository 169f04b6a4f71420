"""The DRA driver as a process, against a kubelet that does all that the real one was seen to do."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from tests.dra.held import NotPrepared, Pod
from tests.dra.node import DRIVER, GPU, Node, running_node
from tests.dra.plugins import Plugin
from tests.dra.runtime import Container
from tests.dra.scheduler import requested
from tests.support.hosttree import HostTree

FIRST, SECOND = "0000:01:00.0", "0000:02:00.0"
VARIABLE = "PCI_RESOURCE_EXAMPLE_COM_GPU"
ATTRIBUTES = "/var/run/kubernetes.io/dra-device-attributes"


@pytest.fixture(scope="module")
def lasting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """One driver for all tests, on a host with two cards of two functions each, in groups of their own."""
    tree = HostTree(tmp_path_factory.mktemp("host"))
    tree.card("0000:01:00", group=10)
    tree.card("0000:02:00", group=11, numa=1)
    with running_node(tree.root) as node:
        node.start()
        yield node


@pytest.fixture
def node(lasting: Node) -> Iterator[Node]:
    """A driver; nothing that a test has done with it stays."""
    yield lasting
    lasting.clear()


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
    node.pod("vm", "one")
    status = node.api.claim("default", "one")["status"]
    other = {"request": "nic", "driver": "nic.example.com", "pool": "node-1", "device": "nic-0"}
    status["allocation"]["devices"]["results"].append(other)
    node.api.set_status("one", status)
    answer = node.answer("one", uid)
    assert [device.device_name for device in answer.devices] == [node.given("one")[0]]


# Repeats, restarts


def test_what_is_prepared_again_is_answered_the_same(node: Node) -> None:
    uid = node.claim("one")
    node.pod("vm", "one")
    first = node.answer("one", uid)
    before = node.left()
    again = node.answer("one", uid)
    assert first.SerializeToString() == again.SerializeToString()
    assert node.left() == before


def test_calls_for_one_claim_at_the_same_time_agree(node: Node) -> None:
    uid = node.claim("one")
    node.pod("vm", "one")
    answers: list[Any] = []
    threads = [threading.Thread(target=lambda: answers.append(node.answer("one", uid))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({answer.SerializeToString() for answer in answers}) == 1
    assert answers[0].error == ""


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
    answer = node.answer("two", other)
    assert "error[LK" in answer.error or "LK" in answer.error
    assert "one" in answer.error
    assert not any(other in name for name in node.left())
    assert any(uid in name for name in node.left())


def test_every_claim_that_is_asked_for_is_answered(node: Node) -> None:
    good = node.claim("good")
    node.pod("vm", "good")
    bad = node.claim("bad")
    asked = [("default", "good", good), ("default", "bad", bad), ("default", "none", "no-uid")]
    answers = node.manager.plugin(DRIVER).call("NodePrepareResources", asked, 60.0)
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
    assert node.answer("one", old).error
    assert node.answer("one", new).error == ""


def test_a_claim_made_again_under_its_name_waits_for_the_old_one(node: Node) -> None:
    """The kubelet refuses it as long as it remembers the old one; the driver doesn't rely on that."""
    before = node.left()
    node.claim("one")
    old = node.pod("old", "one")
    first = node.run(old)
    node.api.delete_claim("one")
    uid = node.claim("one")
    new = node.pod("new", "one")
    assert "LK" in node.answer("one", uid).error
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
    assert node.answer("one", uid).error == ""
    status = node.api.claim("default", "one")["status"]
    (result,) = status["allocation"]["devices"]["results"]
    former = result["device"]
    result["device"] = "pci-0000-02-00-0" if former == "pci-0000-01-00-0" else "pci-0000-01-00-0"
    node.api.set_status("one", status)
    (device,) = node.answer("one", uid).devices
    assert device.device_name == result["device"]
    node.cluster.complaints.clear()  # of a status of the former device that came after that
    assert not any(former in name for name in node.left())


def test_what_was_never_prepared_is_unprepared_without_an_error(node: Node) -> None:
    assert node.answer("none", "nobody", "NodeUnprepareResources").error == ""


def test_who_looks_at_cards_sees_how_they_are_as_it_changes_and_is_in_nobodys_way(node: Node) -> None:
    """Over a kill of the driver, too."""
    node.claim("admin", requested("all", "gpu", 2, adminAccess=True))
    looking = node.run(node.pod("monitor", "admin"))
    assert (looking.nodes, looking.env) == ({}, {})
    (folder,) = looking.mounts.values()
    assert [*looking.mounts] == [f"/var/run/{DRIVER}/admin-access/admin/all"]

    def holders() -> list[str]:
        return [one["holder"] for one in json.loads((folder / "devices.json").read_text())["devices"]]

    assert holders() == ["", ""]
    node.claim("one", requested("gpu", "gpu", 2))
    pod = node.pod("vm", "one")
    assert set(node.run(pod).nodes) == {"/dev/vfio/vfio", "/dev/vfio/10", "/dev/vfio/11"}
    node.wait(lambda: holders() == ["ResourceClaim default/one"] * 2, "the holder")
    node.restart()
    node.delete(pod)
    node.wait(lambda: holders() == ["", ""], "the cards free")


def test_parameters_of_other_drivers_are_none_of_its_business(node: Node) -> None:
    uid = node.claim("one", config=[{"requests": [], "opaque": {"driver": "other.example.com", "parameters": []}}])
    node.pod("vm", "one")
    assert node.answer("one", uid).error == ""


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


def test_nothing_is_published_again_that_has_not_changed(node: Node) -> None:
    writes = node.api.writes
    node.claim("one")
    pod = node.pod("vm", "one")
    node.run(pod)
    node.delete(pod)
    assert node.api.writes == writes


def test_the_device_plugin_does_not_advertise_what_is_for_claims(node: Node) -> None:
    assert GPU not in node.kubelet.resources()
