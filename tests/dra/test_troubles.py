"""What may befall the DRA driver beside kills: broken records, another configuration, cards that go."""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.dra import wire
from tests.dra.held import Pod
from tests.dra.node import DRIVER, RULE, Node, running_node
from tests.dra.scheduler import Unschedulable, requested
from tests.support.hosttree import HostTree

pytestmark = pytest.mark.slow  # each starts a process of its own

VARIABLE = "PCI_RESOURCE_EXAMPLE_COM_GPU"
FIRST, SECOND = "pci-0000-01-00-0", "pci-0000-02-00-0"
VGPUS = {"mediatedDevices": [{"name": "example.com/VGPU", "types": ["GRID T4-1Q"], "dra": True}]}


@pytest.fixture
def tree(tmp_path: Path) -> HostTree:
    tree = HostTree(tmp_path / "host")
    tree.card("0000:01:00", group=10)
    tree.card("0000:02:00", group=11)
    return tree


@pytest.fixture
def node(tree: HostTree) -> Iterator[Node]:
    """The driver doesn't run yet."""
    with running_node(tree.root) as node:
        yield node


def running(node: Node) -> Pod:
    """A pod that runs with a card."""
    node.start()
    node.claim("one")
    pod = node.pod("vm", "one")
    node.run(pod)
    return pod


@pytest.mark.parametrize("keep", [0, 40])
def test_a_record_that_is_cut_off_loses_nothing(node: Node, keep: int) -> None:
    """D8: what it had is known by its CDI file; other cards are given, and it ends with its pod."""
    pod = running(node)
    (held,) = node.given("one")
    (record,) = (
        path for path in files_of(node) if path.name.startswith(node.api.claim("default", "one")["metadata"]["uid"])
    )
    node.kill()
    record.write_bytes(record.read_bytes()[:keep])
    node.start()
    uid = node.claim("two")
    node.pod("other", "two")
    assert node.given("two") != [held]
    node.wait(lambda: node.answer("two", uid).error == "", "another card")
    # What the driver has still to write of that card would be refused once the allocation is another.
    node.wait(lambda: "devices" in node.api.claim("default", "two")["status"], "what the driver writes of it")
    status = node.api.claim("default", "two")["status"]
    status["allocation"]["devices"]["results"][0]["device"] = held
    node.api.set_status("two", status)
    node.wait(lambda: str(record) in node.answer("two", uid).error, "the record named")
    node.cluster.event(str(record))
    node.delete(pod)
    # The kubelet asks again as long as its own list has the first pod.
    node.wait(lambda: node.answer("two", uid).error == "", "the card of the broken record")


def files_of(node: Node) -> list[Path]:
    """Of the driver's own folder."""
    own = node.manager.registry.parent / "plugins" / DRIVER
    return [path for path in own.rglob("*") if path.is_file()]


def test_a_claim_keeps_its_card_though_the_configuration_has_another_name_for_it(node: Node) -> None:
    pod = running(node)
    (held,) = node.given("one")
    node.configure(resources=[{**RULE, "name": "example.com/OTHER"}])
    node.wait(
        lambda: any(
            one["attributes"]["resource"] == {"string": "example.com/OTHER"} for one in node.api.devices().values()
        ),
        "the other name",
    )
    uid = node.claim("two")
    node.pod("other", "two")
    status = node.api.claim("default", "two")["status"]
    status["allocation"]["devices"]["results"][0]["device"] = held
    node.api.set_status("two", status)
    error = node.answer("two", uid).error
    assert "a ResourceClaim has it" in error
    assert "default/one" not in error
    node.delete(pod)
    assert node.answer("two", uid).error == ""


def test_a_claim_is_given_back_though_its_card_is_no_longer_configured(node: Node) -> None:
    pod = running(node)
    node.configure(resources=[{**RULE, "select": [{"vendors": ["1002"]}]}])
    node.wait(lambda: not node.api.devices(), "no devices")
    node.delete(pod)
    assert node.left() == set()


def test_a_claim_is_given_back_though_its_card_is_gone(node: Node, tree: HostTree) -> None:
    pod = running(node)
    (held,) = node.given("one")
    slot = "0000:01:00" if held == FIRST else "0000:02:00"
    for function in (f"{slot}.0", f"{slot}.1"):
        path = tree.path(function)
        (tree.root / "sys/bus/pci/devices" / function).unlink()
        shutil.rmtree(path)
    node.wait(lambda: node.manager.health(DRIVER).get(held, (0, ""))[0] != wire.HEALTHY, "it unhealthy")
    node.delete(pod)
    assert node.left() == set()


def test_pods_are_evicted_from_cards_in_trouble_on_request(node: Node, tree: HostTree) -> None:
    node.configure(resources=[RULE], dra={"evict": True})
    tree.function("0000:03:00.0", group=12, driver="nvidia")
    tree.function("0000:03:00.1", group=12, driver="vfio-pci", class_code=0x040300)
    node.configure(
        resources=[{**RULE, "select": [{"addresses": ["0000:01:00.0", "0000:03:00.0"]}]}], dra={"evict": True}
    )
    node.start()
    taints = {name: {taint["effect"] for taint in one.get("taints", ())} for name, one in node.api.devices().items()}
    assert taints == {FIRST: set(), "pci-0000-03-00-0": {"NoExecute"}}


def test_variables_are_left_out_on_request(node: Node) -> None:
    node.configure(resources=[RULE], dra={"environment": False})
    node.start()
    node.claim("one")
    container = node.run(node.pod("vm", "one"))
    assert container.env == {}
    assert len(container.nodes) == 2


def test_a_vgpu_is_claimed_like_a_card(node: Node, tree: HostTree) -> None:
    made = str(uuid.UUID(int=7))
    tree.function("0000:05:00.0", group=15, driver="nvidia", device=0x1EB8)
    tree.mdev_type("0000:05:00.0", "nvidia-222", name="GRID T4-1Q", device_api="vfio-pci", available_instances="0")
    tree.mdev("0000:05:00.0", "nvidia-222", made, group=30)
    node.configure(resources=[], vgpu=VGPUS)
    node.start()
    node.claim("slot")
    container = node.run(node.pod("vm", "slot"))
    assert node.given("slot") == [f"mdev-{made}"]
    assert container.env == {"MDEV_PCI_RESOURCE_EXAMPLE_COM_VGPU": made}
    assert set(container.nodes) == {"/dev/vfio/vfio", "/dev/vfio/30"}
    (path,) = container.mounts
    assert f'"mdevUUID": {{"string": "{made}"}}' in container.read(path)


def test_each_container_of_extended_resources_gets_its_own(node: Node) -> None:
    """The scheduler makes one claim for the pod, with a request for each container."""
    node.start()
    requests = [requested(f"container-{number}-request-0", "gpu") for number in (0, 1)]
    node.claim("vm-extended-resources-x7x7x", *requests)
    node.scheduler.reserve("vm-extended-resources-x7x7x", "vm")
    asked = {str(number): [("vm-extended-resources-x7x7x", f"container-{number}-request-0")] for number in (0, 1)}
    containers = node.manager.run(Pod("vm", ("vm-extended-resources-x7x7x",), asked))
    variables = {containers[name].env[VARIABLE] for name in asked}
    assert variables == {"0000:01:00.0", "0000:02:00.0"}


def test_two_cards_of_one_group_are_never_with_two_pods(node: Node, tree: HostTree) -> None:
    """The scheduler's counters keep them apart, and no slice is written again for what they say."""
    for slot in ("0000:03:00", "0000:04:00"):
        tree.function(f"{slot}.0", group=12, driver="vfio-pci")
    node.configure(resources=[{**RULE, "select": [{"addresses": ["0000:03:00.0", "0000:04:00.0"]}]}])
    node.start()
    writes = node.api.writes
    node.claim("one")
    node.claim("two")
    pod = node.pod("vm", "one")
    node.run(pod)
    with pytest.raises(Unschedulable):
        node.pod("other", "two")
    node.delete(pod)
    assert node.api.writes == writes
    node.run(node.pod("other", "two"))


def test_a_silent_cluster_is_reported_before_the_kubelet_gives_up(node: Node) -> None:
    node.start()
    uid = node.claim("one")
    node.pod("vm", "one")
    node.cluster.silent = True
    assert "LK821" in node.answer("one", uid).error
