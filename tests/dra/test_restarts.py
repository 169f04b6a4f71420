"""The DRA driver as a process that is killed, ended and started again, on full disks, with cards that fail."""

from __future__ import annotations

import resource
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from launcherkit_lab.kubelet import NotAdmitted
from tests.dra import wire
from tests.dra.held import NotPrepared
from tests.dra.node import DRIVER, GPU, RULE, Node, running_node
from tests.dra.scheduler import Unschedulable
from tests.plugin.resources import rebind
from tests.support.hosttree import HostTree

pytestmark = pytest.mark.slow  # each starts a process of its own, and some wait

FIRST = "0000:01:00.0"
VARIABLE = "PCI_RESOURCE_EXAMPLE_COM_GPU"


@pytest.fixture
def tree(tmp_path: Path) -> HostTree:
    """Two cards of two functions each, in groups of their own."""
    tree = HostTree(tmp_path)
    tree.card("0000:01:00", group=10)
    tree.card("0000:02:00", group=11)
    return tree


@pytest.fixture
def node(tree: HostTree) -> Iterator[Node]:
    """A driver that runs."""
    with running_node(tree.root) as node:
        node.start()
        yield node


def test_slices_come_back_after_the_kubelet_has_wiped_them(node: Node) -> None:
    node.claim("one")
    pod = node.pod("vm", "one")
    before = node.run(pod)
    slices = node.api.devices()
    node.manager.stop()
    node.manager.start()
    node.wait_until_ready()
    assert node.api.devices() == slices
    assert node.run(pod) == before


def test_a_driver_that_was_killed_knows_what_claims_have(node: Node) -> None:
    before = node.left()
    uid = node.claim("one")
    pod = node.pod("vm", "one")
    container = node.run(pod)
    node.restart()
    node.manager.stop()
    node.manager.start()
    node.wait_until_ready()
    assert node.run(pod) == container
    node.restart()
    assert node.answer("one", uid, "NodeUnprepareResources").error == ""
    assert node.left() == before


def test_a_driver_that_ends_takes_its_sockets_with_it_and_nothing_else(node: Node) -> None:
    node.claim("one")
    node.run(node.pod("vm", "one"))
    before = node.left()
    assert node.end() == 0
    assert list(node.manager.registry.iterdir()) == []
    data = node.manager.registry.parent / "plugins" / DRIVER
    assert not [path for path in data.iterdir() if path.is_socket()]
    assert node.left() == before


def test_a_pod_ends_when_the_driver_is_back(node: Node) -> None:
    before = node.left()
    node.claim("one")
    pod = node.pod("vm", "one")
    node.run(pod)
    node.end()
    node.wait(lambda: not node.manager.drivers(), "the driver gone")
    assert not node.manager.unprepare(pod)
    node.start()
    node.delete(pod)
    assert node.left() == before


def test_sockets_that_somebody_removes_are_made_again(node: Node) -> None:
    data = node.manager.registry.parent / "plugins" / DRIVER
    for path in (node.manager.registry / f"{DRIVER}-reg.sock", data / "dra.sock"):
        wiped = len(node.api.wiped)
        path.unlink()
        node.wait(path.exists, f"{path} again")
        node.wait_until_ready()
        node.claim(path.stem.replace(".", "-"))
        node.delete(node.pod("vm", path.stem.replace(".", "-")))
        assert len(node.api.wiped) == wiped


@pytest.mark.parametrize("room", [0, 10, 200])
def test_a_full_disk_leaves_nothing_half_done(node: Node, room: int) -> None:
    """Files can't grow beyond some bytes: wherever it fails, nothing is given, and it goes on when there is room."""
    before = node.left()
    node.claim("one")
    pod = node.pod("vm", "one")
    assert node.process is not None
    limits = resource.prlimit(node.process.process.pid, resource.RLIMIT_FSIZE, (room, resource.RLIM_INFINITY))
    with pytest.raises(NotPrepared, match="LK"):
        node.manager.prepare(pod)
    assert node.left() == before
    resource.prlimit(node.process.process.pid, resource.RLIMIT_FSIZE, limits)
    assert VARIABLE in node.run(pod).env


def test_claims_are_given_back_though_the_disk_is_full(node: Node) -> None:
    before = node.left()
    node.claim("one")
    pod = node.pod("vm", "one")
    node.run(pod)
    assert node.process is not None
    resource.prlimit(node.process.process.pid, resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
    node.manager.delete(pod)
    assert node.left() == before


def test_a_claim_that_can_not_be_given_back_is_an_event_of_ours(node: Node) -> None:
    """The kubelet writes it to its log, and its pod stays without a word. Others read Events of a node, too."""
    uid = node.claim("one")
    pod = node.pod("vm", "one")
    node.run(pod)
    file = node.folder / "cdi" / f"{DRIVER}_{uid}.json"
    file.unlink()
    file.mkdir()
    (file / "kept").touch()
    assert not node.manager.unprepare(pod)
    assert "default/one" not in node.cluster.event(str(file))["message"]
    shutil.rmtree(file)
    node.delete(pod)


def test_a_cdi_folder_that_is_not_there_is_made(node: Node) -> None:
    shutil.rmtree(node.folder / "cdi")
    node.claim("one")
    assert VARIABLE in node.run(node.pod("vm", "one")).env


def test_a_card_that_can_not_be_had_is_unhealthy_and_tainted(node: Node, tree: HostTree) -> None:
    health = node.manager.health
    node.wait(lambda: set(health(DRIVER).values()) == {(wire.HEALTHY, "")}, "both healthy")
    rebind(tree, FIRST, "nvidia")
    sick = "pci-0000-01-00-0"
    node.wait(lambda: health(DRIVER).get(sick, (0, ""))[0] == wire.UNHEALTHY, "one unhealthy")
    assert set(health(DRIVER)) == {sick, "pci-0000-02-00-0"}
    assert "nvidia" in health(DRIVER)[sick][1]
    node.wait(lambda: node.api.devices()[sick].get("taints"), "the taint")
    node.claim("one")
    node.claim("two")
    node.pod("vm", "one")
    assert node.given("one") == ["pci-0000-02-00-0"]
    with pytest.raises(Unschedulable):
        node.pod("other", "two")
    rebind(tree, FIRST, "vfio-pci")
    node.wait(lambda: not node.api.devices()[sick].get("taints"), "the taint gone")
    node.pod("other", "two")


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
    assert "LK" in shared.answer("one", uid).error
    asked = shared.kubelet.asked_for_pods
    shared.kubelet.wait(lambda: shared.kubelet.asked_for_pods > asked + 1, "the plugin has seen the pod")
    shared.kubelet.delete("other")
    shared.run(pod)
    with pytest.raises(NotAdmitted):
        shared.kubelet.call_allocate(plugin, ["0000:03:00.0"])
    shared.kubelet.wait_for(plugin, {"0000:03:00.0": False})
    shared.manager.delete(pod)
    shared.kubelet.wait_for(plugin, {"0000:03:00.0": True})


def test_a_card_that_a_pod_still_has_from_the_device_plugin_is_tainted_until_that_has_ended(tree: HostTree) -> None:
    with running_node(tree.root) as node:
        node.configure(resources=[{**RULE, "select": [{"addresses": [FIRST]}], "dra": False}])
        node.start(wait=False)
        node.kubelet.wait_for(GPU, {FIRST: True})
        node.kubelet.admit("vm", [("compute", GPU, 1)])
        node.configure(resources=[{**RULE, "select": [{"addresses": [FIRST]}]}])
        node.wait_until_ready()
        (name,) = node.api.devices()
        assert [taint["key"] for taint in node.api.devices()[name]["taints"]] == ["launcherkit.io/group-in-use"]
        node.claim("one")
        with pytest.raises(Unschedulable):
            node.pod("other", "one")
        node.kubelet.delete("vm")
        node.wait(lambda: not node.api.devices()[name].get("taints"), "the taint gone")
        node.run(node.pod("other", "one"))


def test_a_second_instance_takes_over_without_a_gap(node: Node) -> None:
    node.claim("one")
    pod = node.pod("vm", "one")
    container = node.run(pod)
    with node.replaced(POD_UID="12345678-aaaa-4bbb-8ccc-123456789abc") as first:
        node.wait(lambda: len(node.manager.instances(DRIVER)) == 2, "both instances")
        wiped = len(node.api.wiped)
        assert first.end() == 0
        node.wait(lambda: len(node.manager.instances(DRIVER)) == 1, "the first one gone")
        assert len(node.api.wiped) == wiped
        assert node.manager.run(pod)["compute"] == container
        node.delete(pod)
        assert node.left() == set()
