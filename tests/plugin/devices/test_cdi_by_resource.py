"""CDI files by resource, as Kata asks for devices: ``<resource>=<ID>`` of all that a pod has."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from launcherkit.host.source import Host
from launcherkit.process.edge import guarded
from launcherkit_plugin.__main__ import run
from launcherkit_plugin.daemon.wiring import Wiring, assemble
from launcherkit_plugin.devices.cdi import CdiFiles, GrantedNodes, check_kinds
from launcherkit_plugin.host.work_queue import WorkQueue
from launcherkit_plugin.model.config import CdiConfig, Config, PciRule, Selector, VgpuRule
from launcherkit_plugin.model.device import NO_USAGE
from launcherkit_plugin.model.errors import CDI_KIND_REFUSED
from launcherkit_plugin.telemetry.reporter import Reporter
from launcherkit_plugin.vgpu.lifecycle import Stopped
from tests.plugin.resources import GPU, RULE, Node, rebind, usage
from tests.plugin.vgpu.kernel import Kernel
from tests.plugin.vgpu.node import Node as VgpuNode
from tests.support.errors import raises_code
from tests.support.hosttree import HostTree
from tests.support.provoked import provoked
from tests.support.waiting import PATIENCE

CARD, CARD2 = "0000:01:00.0", "0000:e1:00.0"
AUDIO = PciRule(select=(Selector(),), name="nvidia.com/AUDIO", companion=True)


@pytest.fixture
def tree(tmp_path: Path) -> HostTree:
    """Two cards with their audio, each in a group of its own."""
    tree = HostTree(tmp_path / "host")
    tree.card("0000:01:00", group=12)
    tree.card("0000:e1:00", group=44)
    return tree


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "cdi"


def by_resource(folder: Path, part: str = "pci", **more: Any) -> GrantedNodes:
    return GrantedNodes(CdiFiles(str(folder), part, by_resource=True), **more)


def turned(node: Node) -> Node:
    """A turn of the daemon, and the next one's work on the host, which goes by what that has seen."""
    node.look()
    node.provider.reconcile(node.facts(), NO_USAGE, 0.0)
    return node


def said(folder: Path) -> dict[str, dict[str, list[str]]]:
    """The paths of the nodes in all files, by kind and device."""
    found: dict[str, dict[str, list[str]]] = {}
    for file in folder.glob("*.json"):
        spec = json.loads(file.read_text())
        assert spec["cdiVersion"] == "0.5.0"
        assert spec["kind"] not in found
        found[spec["kind"]] = {
            device["name"]: [node["path"] for node in device["containerEdits"]["deviceNodes"]]
            for device in spec["devices"]
        }
    return found


def test_each_resource_has_a_file_with_its_devices_by_the_ids_that_the_kubelet_knows(
    tree: HostTree, folder: Path
) -> None:
    turned(Node(tree, {0x03: RULE, 0x04: AUDIO}, granted=by_resource(folder)))
    nodes = {"01": ["/dev/vfio/vfio", "/dev/vfio/12"], "e1": ["/dev/vfio/vfio", "/dev/vfio/44"]}
    assert said(folder) == {
        GPU: {CARD: nodes["01"], CARD2: nodes["e1"]},
        "nvidia.com/AUDIO": {"0000:01:00.1": nodes["01"], "0000:e1:00.1": nodes["e1"]},
    }


def test_what_only_claims_get_is_in_no_file(tree: HostTree, folder: Path) -> None:
    turned(Node(tree, {0x03: RULE._replace(dra=True), 0x04: AUDIO}, granted=by_resource(folder)))
    assert list(said(folder)) == ["nvidia.com/AUDIO"]


def test_with_iommufd_there_is_the_character_device_alone(tmp_path: Path, folder: Path) -> None:
    tree = HostTree(tmp_path / "host")
    tree.function(CARD, driver="vfio-pci", group=12, vfio_dev="vfio0")
    tree.node("iommu")
    node = turned(Node(tree, nodes="cdev", granted=by_resource(folder)))
    assert said(folder) == {GPU: {CARD: ["/dev/vfio/devices/vfio0"]}}
    assert node.grant(CARD).nodes == ("/dev/vfio/devices/vfio0",)


def test_allocate_gives_the_same_nodes_and_no_variables_where_that_is_configured(tree: HostTree, folder: Path) -> None:
    grant = turned(Node(tree, granted=by_resource(folder, environment=False))).grant(CARD2)
    assert (grant.env, grant.annotations) == ({}, {})
    assert grant.nodes == ("/dev/vfio/vfio", "/dev/vfio/44")
    assert grant.cdi == (f"{GPU}={CARD2}",)
    grant = turned(Node(tree, granted=by_resource(folder))).grant(CARD2)
    assert grant.env == {"PCI_RESOURCE_NVIDIA_COM_GPU": CARD2}


def test_the_file_of_a_resource_goes_with_its_last_device(tree: HostTree, folder: Path) -> None:
    node = turned(Node(tree, {0x03: RULE, 0x04: AUDIO}, granted=by_resource(folder)))
    for address in ("0000:01:00.0", "0000:e1:00.0"):
        rebind(tree, address, "nvidia")
    rebind(tree, "0000:01:00.1", "snd_hda_intel")
    turned(node)
    assert list(said(folder)) == []
    rebind(tree, CARD2, "vfio-pci")
    turned(node)
    assert {kind: list(devices) for kind, devices in said(folder).items()} == {
        GPU: [CARD2],
        "nvidia.com/AUDIO": ["0000:e1:00.1"],
    }


def wiring(tree: HostTree) -> Wiring:
    root = str(tree.root)
    return Wiring(
        Host.from_sysfs(root), root, Reporter(lambda *_, **__: None), WorkQueue(stall=PATIENCE), Stopped(), proc=root
    )


def test_files_of_resources_of_an_earlier_configuration_are_removed_and_others_left_alone(
    tree: HostTree, folder: Path
) -> None:
    earlier = {"nvidia.com/OLD": {CARD: ("/dev/vfio/12",)}}
    for part in ("pci", "mdev", "vf"):
        by_resource(folder, part).replace(earlier)
        GrantedNodes(CdiFiles(str(folder), part)).replace(earlier)
    (folder / "nvidia.com-gpu.json").write_text("{}")
    cdi = CdiConfig(str(folder), kind="resource")
    node = Node(tree)
    setup = assemble(Config(pci=(RULE,), cdi=cdi), wiring(tree))
    for reconciler in setup.reconcilers:
        reconciler.reconcile(node.facts(), usage({}), 0.0)
    assert [file.name for file in folder.iterdir()] == ["nvidia.com-gpu.json"]


def test_a_vgpu_has_the_name_of_its_slot_before_and_while_it_is_there(folder: Path) -> None:
    kernel = Kernel()
    kernel.card(CARD)
    rules = (VgpuRule(("GRID T4-*",), mode="dynamic"),)
    node = VgpuNode(kernel, mdevs=rules, granted=by_resource(folder, "mdev"))
    node.turn()
    name = "nvidia.com/GRID_T4-1Q"
    slot = node.healthy(name)[0]
    grant = node.allocate(name, slot)
    made = {name: {slot: ["/dev/vfio/vfio", f"/dev/vfio/{kernel.facts().mdevs[slot].iommu_group}"]}}
    assert grant.cdi == (f"{name}={slot}",)
    assert said(folder) == made
    node.hold(name, slot)
    node.turn()
    node.turn()
    assert said(folder) == made
    node.usage = usage({})
    node.turn()
    node.clock.now += 61
    node.turn()
    node.turn()
    assert said(folder) == {}


@pytest.mark.parametrize("name", ["nvidia.com/GPU", "a/b", "x-1.example/A_b-2"])
def test_names_that_cdi_can_say_are_kinds(name: str) -> None:
    check_kinds([(name, "vm"), (name, "kata")], CdiConfig(kind="resource"))


@pytest.mark.parametrize("name", ["nvidia.com/GPU.shared", "1b36.pci.launcherkit.io/A", "nvidia.com/2204", "n.com/3D"])
def test_a_name_that_cdi_can_not_say_is_refused(name: str) -> None:
    with raises_code(CDI_KIND_REFUSED, match=name):
        check_kinds([("nvidia.com/GPU", "vm"), (name, "vm")], CdiConfig(kind="resource"))
    with raises_code(CDI_KIND_REFUSED, match=name):
        check_kinds([(name, "kata")], None)
    check_kinds([(name, "vm")], CdiConfig())
    check_kinds([(name, "container")], CdiConfig(kind="resource"))


def test_it_is_refused_at_the_start_and_by_discover(
    tree: HostTree, folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = folder.parent / "plugin.yaml"
    resources = "resources: [{name: nvidia.com/GPU.large, select: [{classes: ['03']}]}]"
    path.write_text(f"{resources}\ncdi: {{kind: resource, folder: {folder}}}\n")
    code = guarded(lambda: run(["discover", "--config", str(path), "--host", str(tree.root)], {}), {})
    (reported,) = provoked("cdi", "LK841")
    assert code == 78
    assert reported.replace("LK841", "error[LK841]") in capfd.readouterr().err.splitlines()
    assert not folder.exists()
    config = Config(pci=(RULE._replace(name="nvidia.com/GPU.large"),), cdi=CdiConfig(str(folder), kind="resource"))
    setup = assemble(config, wiring(tree))
    node = Node(tree)
    offered = [found for each in setup.providers for found in each.resources(node.facts(), NO_USAGE, 0.0)]
    with raises_code(CDI_KIND_REFUSED, match=r"GPU\.large"):
        setup.check(offered)
