"""PCI devices on built hosts: what is a device (K1), whether it can be had (K5), what a container gets (K2)."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest

from launcherkit_plugin.devices.grace_list import GONE_SECONDS
from launcherkit_plugin.model.config import ContainerVariable, PciRule, Selector
from launcherkit_plugin.model.device import NO_USAGE, Problem
from launcherkit_plugin.model.errors import DEVICE_UNHEALTHY
from tests.plugin.resources import GPU, RULE, Node, rebind, regroup, usage
from tests.support.errors import raises_code
from tests.support.hosttree import HostTree

CARD, CARD2 = "0000:01:00.0", "0000:e1:00.0"
VARIABLE = "PCI_RESOURCE_NVIDIA_COM_GPU"


@pytest.fixture
def tree(tmp_path: Path) -> HostTree:
    """Two cards with their audio, each in a group of its own."""
    tree = HostTree(tmp_path)
    tree.card("0000:01:00", group=12, numa=0)
    tree.card("0000:e1:00", group=44, numa=1)
    return tree


def looked_at(tree: HostTree, rules: dict[int, PciRule] | None = None, **more: object) -> Node:
    node = Node(tree, rules, **more)  # type: ignore[arg-type]
    node.look()
    return node


# K1


def test_a_device_is_a_card_with_its_numa_node_its_group_and_what_comes_along(tree: HostTree) -> None:
    devices = looked_at(tree).seen[GPU].devices
    assert list(devices) == [CARD, CARD2]
    second = devices[CARD2]
    assert (second.numa_node, second.groups, second.healthy) == (1, frozenset({44}), True)
    assert [str(function) for function in second.functions] == [CARD2, "0000:e1:00.1"]
    assert second.path == ("pci0000:00", "0000:00:01.0")


def test_a_numa_node_that_the_kernel_does_not_know_is_left_out(tmp_path: Path) -> None:
    tree = HostTree(tmp_path)
    tree.card("0000:01:00", group=12, numa=-1)
    assert looked_at(tree).seen[GPU].devices[CARD].numa_node is None


def test_of_what_one_rule_finds_in_a_slot_the_best_class_is_the_device(tree: HostTree) -> None:
    everything = looked_at(tree, {0x03: RULE, 0x04: RULE})
    assert list(everything.seen[GPU].devices) == [CARD, CARD2]


def test_a_companion_resource_has_functions_of_cards_that_another_resource_has(tree: HostTree) -> None:
    audio = PciRule(select=(Selector(),), name="nvidia.com/AUDIO", companion=True)
    seen = looked_at(tree, {0x03: RULE, 0x04: audio}).seen
    assert list(seen["nvidia.com/AUDIO"].devices) == ["0000:01:00.1", "0000:e1:00.1"]
    assert seen["nvidia.com/AUDIO"].companion
    assert list(seen[GPU].devices) == [CARD, CARD2]


def test_whoever_lists_the_functions_of_a_card_one_by_one_has_companions(tree: HostTree) -> None:
    """As NVIDIA's device plugin does, and KubeVirt's own list may."""
    seen = looked_at(tree, {0x03: RULE, 0x04: RULE._replace(name="nvidia.com/AUDIO")}).seen
    assert (seen[GPU].companion, seen["nvidia.com/AUDIO"].companion) == (False, True)
    assert not looked_at(tree, {0x04: RULE._replace(name="nvidia.com/AUDIO")}).seen["nvidia.com/AUDIO"].companion


def test_what_a_pod_holds_is_listed_after_a_restart_too_whatever_became_of_its_driver(tree: HostTree) -> None:
    rebind(tree, CARD2, "nvidia")
    held = usage({GPU: {CARD2: "default/vm"}})
    assert Node(tree, {0x03: RULE._replace(when_bound=True)}).reasons(held) == {CARD: None, CARD2: "driver"}


def test_both_ports_of_a_nic_are_devices_and_so_is_each_vf(tmp_path: Path) -> None:
    tree = HostTree(tmp_path)
    nic = {"vendor": 0x15B3, "device": 0x1017, "class_code": 0x020000, "driver": "vfio-pci"}
    tree.function("0000:05:00.0", group=5, **nic)  # type: ignore[arg-type]
    tree.function("0000:05:00.1", group=6, **nic)  # type: ignore[arg-type]
    tree.function("0000:06:00.0", group=7, **nic | {"driver": "mlx5_core"})  # type: ignore[arg-type]
    for number, group in ((2, 8), (3, 9)):
        tree.vf("0000:06:00.0", f"0000:06:00.{number}", group=group, **nic)  # type: ignore[arg-type]
    rule = PciRule(select=(Selector(),), name="mellanox.com/NIC", when_bound=True)
    devices = looked_at(tree, {0x02: rule}).seen["mellanox.com/NIC"].devices
    assert list(devices) == ["0000:05:00.0", "0000:05:00.1", "0000:06:00.2", "0000:06:00.3"]
    assert all(len(device.functions) == 1 and device.healthy for device in devices.values())


def test_an_nvswitch_is_a_device_and_a_switch_port_is_none(tmp_path: Path) -> None:
    """Both have class 06; the header of their config space tells them apart (V1)."""
    tree = HostTree(tmp_path)
    tree.function("0000:07:00.0", device=0x22A3, class_code=0x068000, header_type=0, driver="vfio-pci", group=30)
    tree.function("0000:06:00.0", device=0x22A4, class_code=0x068000, header_type=1, driver="pcieport", group=30)
    devices = looked_at(tree, {0x06: RULE}).seen[GPU].devices
    assert [(key, device.healthy) for key, device in devices.items()] == [("0000:07:00.0", True)]


def test_an_isa_bridge_with_a_driver_makes_the_group_not_viable(tree: HostTree) -> None:
    tree.function("0000:00:1f.0", class_code=0x060100, header_type=0, driver="lpc_ich", group=12)
    node = looked_at(tree)
    assert node.reasons() == {CARD: "not-viable", CARD2: None}
    rebind(tree, "0000:00:1f.0", None)
    assert node.reasons() == {CARD: None, CARD2: None}
    assert [str(function) for function in node.seen[GPU].devices[CARD].functions] == [CARD, "0000:01:00.1"]


def test_functions_of_an_sriov_vgpu_card_are_not_its_business(tmp_path: Path) -> None:
    tree = HostTree(tmp_path)
    tree.function("0000:41:00.0", driver="nvidia", group=3)
    tree.vf("0000:41:00.0", "0000:41:00.4", vgpu="557", driver="nvidia", group=4)
    assert looked_at(tree).seen == {}


def test_without_a_rule_of_its_own_a_card_counts_once_it_has_been_bound_to_vfio(tree: HostTree) -> None:
    rebind(tree, CARD2, "nvidia")
    node = Node(tree, {0x03: RULE._replace(when_bound=True)})
    assert node.reasons() == {CARD: None}
    rebind(tree, CARD2, "vfio-pci")
    assert node.reasons() == {CARD: None, CARD2: None}
    rebind(tree, CARD2, "nvidia")
    assert node.reasons() == {CARD: None, CARD2: "driver"}


# K5: each of these goes and comes back, with nothing restarted


def test_a_driver_that_is_not_vfios_makes_a_device_unhealthy(tree: HostTree) -> None:
    node = Node(tree)
    rebind(tree, CARD, "nouveau")
    assert node.reasons() == {CARD: "driver", CARD2: None}
    problem = node.seen[GPU].devices[CARD].problem
    assert problem is not None
    assert problem.text == "0000:01:00.0 display controller 10de:2204 is bound to nouveau, not to a VFIO driver"
    rebind(tree, CARD, None)
    assert node.reasons()[CARD] == "driver"
    rebind(tree, CARD, "vfio-pci")
    assert node.reasons() == {CARD: None, CARD2: None}


def test_a_sibling_on_a_host_driver_makes_the_group_not_viable(tree: HostTree) -> None:
    node = Node(tree)
    rebind(tree, "0000:01:00.1", "snd_hda_intel")
    assert node.reasons() == {CARD: "not-viable", CARD2: None}
    rebind(tree, "0000:01:00.1", "vfio-pci")
    assert node.reasons()[CARD] is None


def test_a_group_node_that_vanishes_and_returns(tree: HostTree) -> None:
    node = Node(tree)
    (tree.root / "dev/vfio/12").unlink()
    assert node.reasons() == {CARD: "node", CARD2: None}
    problem = node.seen[GPU].devices[CARD].problem
    assert problem is not None
    assert "/dev/vfio/12 is not there" in problem.text
    tree.node("vfio/12")
    assert node.reasons()[CARD] is None


def test_a_device_that_has_fallen_off_the_bus(tree: HostTree) -> None:
    node, config = Node(tree), tree.path(CARD) / "config"
    answering = config.read_bytes()
    config.write_bytes(b"\xff" * 64)
    assert node.reasons()[CARD] == "config-space"
    config.write_bytes(answering)
    assert node.reasons()[CARD] is None


def test_a_device_that_sleeps_for_good(tree: HostTree) -> None:
    node = Node(tree)
    (tree.path(CARD) / "power_state").write_text("D3cold\n")
    assert node.reasons()[CARD] == "asleep"


def test_without_an_iommu_there_is_no_group(tmp_path: Path) -> None:
    tree = HostTree(tmp_path)
    tree.function(CARD, driver="vfio-pci")
    assert Node(tree).reasons() == {CARD: "no-group"}
    tree.noiommu(CARD, 0)
    node = Node(tree)
    assert node.reasons() == {CARD: "no-group"}
    with raises_code(DEVICE_UNHEALTHY, match="/dev/vfio/noiommu-0 is of VFIO's unsafe no-IOMMU mode"):
        node.grant(CARD)


def test_a_device_that_is_removed_stays_listed_for_a_while_and_comes_back(tree: HostTree) -> None:
    node = Node(tree)
    node.look(now=0.0)
    away = tree.root / "sys/bus/pci/devices" / CARD
    target = away.readlink()
    away.unlink()
    assert node.reasons(now=10.0) == {CARD: "gone", CARD2: None}
    assert node.reasons(now=11.0 + GONE_SECONDS) == {CARD2: None}
    away.symlink_to(target)
    assert node.reasons(now=12.0 + GONE_SECONDS) == {CARD: None, CARD2: None}


def test_a_removed_device_that_a_pod_holds_stays_listed_for_as_long(tree: HostTree) -> None:
    node, held = Node(tree), usage({GPU: {CARD: "default/vm"}})
    node.look(held, now=0.0)
    (tree.root / "sys/bus/pci/devices" / CARD).unlink()
    node.look(held, now=1.0)
    assert node.reasons(held, now=10 * GONE_SECONDS) == {CARD: "gone", CARD2: None}
    assert node.reasons(NO_USAGE, now=10 * GONE_SECONDS + 1) == {CARD2: None}


# K2


def test_a_container_gets_primaries_in_the_order_asked_for_and_each_node_once(tree: HostTree) -> None:
    grant = looked_at(tree).grant(CARD2, CARD)
    assert grant.env == {VARIABLE: "0000:e1:00.0,0000:01:00.0"}
    assert grant.nodes == ("/dev/vfio/vfio", "/dev/vfio/44", "/dev/vfio/12")


def test_readers_that_know_no_sysfs_get_the_siblings_in_the_variable(tree: HostTree) -> None:
    grant = looked_at(tree, {0x03: RULE._replace(environment=ContainerVariable(list_siblings=True))}).grant(CARD2, CARD)
    assert grant.env == {VARIABLE: "0000:e1:00.0,0000:e1:00.1,0000:01:00.0,0000:01:00.1"}


def test_the_prefix_of_the_variable_is_the_rules(tree: HostTree) -> None:
    grant = looked_at(tree, {0x03: RULE._replace(environment=ContainerVariable("PCIDEVICE"))}).grant(CARD)
    assert grant.env == {"PCIDEVICE_NVIDIA_COM_GPU": CARD}


def test_nodes_of_siblings_in_other_groups_come_too(tmp_path: Path) -> None:
    tree = HostTree(tmp_path)
    tree.function(CARD, driver="vfio-pci", group=12)
    tree.function("0000:01:00.1", device=0x1AEF, class_code=0x040300, driver="vfio-pci", group=13)
    tree.function("0000:01:00.2", device=0x1AD8, class_code=0x0C0330, driver="xhci_hcd", group=14)
    node = looked_at(tree)
    assert node.seen[GPU].devices[CARD].groups == {12, 13}
    assert node.grant(CARD).nodes == ("/dev/vfio/vfio", "/dev/vfio/12", "/dev/vfio/13")


def test_without_siblings_a_card_takes_its_own_group_alone(tmp_path: Path) -> None:
    tree = HostTree(tmp_path)
    tree.function(CARD, driver="vfio-pci", group=12)
    tree.function("0000:01:00.1", device=0x1AEF, class_code=0x040300, driver="vfio-pci", group=13)
    assert looked_at(tree, {0x03: RULE._replace(siblings="none")}).grant(CARD).nodes == (
        "/dev/vfio/vfio",
        "/dev/vfio/12",
    )


def test_where_the_group_nodes_are_missing_the_character_devices_are_handed_over(tmp_path: Path) -> None:
    tree = HostTree(tmp_path, nodes=False)
    tree.function(CARD, driver="vfio-pci", group=12, vfio_dev="vfio0")
    tree.function("0000:01:00.1", device=0x1AEF, class_code=0x040300, driver="vfio-pci", group=12, vfio_dev="vfio1")
    tree.node("iommu")
    nodes = ("/dev/iommu", "/dev/vfio/devices/vfio0", "/dev/vfio/devices/vfio1")
    assert looked_at(tree).grant(CARD).nodes == nodes
    assert looked_at(tree, nodes="cdev").grant(CARD).nodes == nodes
    assert Node(tree, nodes="group").reasons() == {CARD: "node"}


def test_with_the_character_devices_vfios_container_is_handed_over_where_it_is(tmp_path: Path) -> None:
    tree = HostTree(tmp_path)
    tree.function(CARD, driver="vfio-pci", group=12, vfio_dev="vfio0")
    tree.node("iommu")
    nodes = ("/dev/vfio/vfio", "/dev/iommu", "/dev/vfio/devices/vfio0")
    assert looked_at(tree, nodes="cdev").grant(CARD).nodes == nodes, "libvirt 12.8 looks whether it exists"


def test_a_pod_that_has_no_dev_iommu_knows_by_sysfs_whether_the_node_has_it(tmp_path: Path) -> None:
    tree = HostTree(tmp_path, nodes=False)
    tree.function(CARD, driver="vfio-pci", group=12, vfio_dev="vfio0")
    assert Node(tree).reasons() == {CARD: "node"}
    (tmp_path / "sys/class/misc/iommu").mkdir(parents=True)
    for choice in ("auto", "cdev"):
        assert looked_at(tree, nodes=choice).grant(CARD).nodes == ("/dev/iommu", "/dev/vfio/devices/vfio0")


def test_character_devices_that_have_changed_places_are_seen(tmp_path: Path) -> None:
    tree = HostTree(tmp_path, nodes=False)
    tree.function(CARD, driver="vfio-pci", group=12, vfio_dev="vfio0")
    tree.function(CARD2, driver="vfio-pci", group=44, vfio_dev="vfio1")
    tree.node("iommu")
    node = looked_at(tree)
    for address, old, new in ((CARD, 0, 1), (CARD2, 1, 0)):
        folder = tree.path(address) / "vfio-dev"
        (folder / f"vfio{old}").rename(folder / f"vfio{new}")
    assert node.grant(CARD).nodes == ("/dev/iommu", "/dev/vfio/devices/vfio1")


def test_both_kinds_of_nodes_are_given_where_the_node_has_iommufd(tmp_path: Path) -> None:
    tree = HostTree(tmp_path)
    tree.function(CARD, driver="vfio-pci", group=12, vfio_dev="vfio0")
    tree.function("0000:01:00.1", device=0x1AEF, class_code=0x040300, driver="vfio-pci", group=12, vfio_dev="vfio1")
    node = looked_at(tree, nodes="both")
    assert node.grant(CARD).nodes == ("/dev/vfio/vfio", "/dev/vfio/12"), "no /dev/iommu"
    tree.node("iommu")
    node.look()
    assert node.grant(CARD).nodes == (
        "/dev/vfio/vfio",
        "/dev/vfio/12",
        "/dev/iommu",
        "/dev/vfio/devices/vfio0",
        "/dev/vfio/devices/vfio1",
    )
    (tmp_path / "dev/vfio/devices/vfio1").unlink()
    device = node.look()[GPU].devices[CARD]
    assert device.problem
    assert "/dev/vfio/devices/vfio1 is not there" in device.problem.text


def test_the_memory_of_grace_goes_to_whoever_gets_all_gpus_that_it_belongs_to(tree: HostTree) -> None:
    directory = tree.root / "sys/class/egm/egm4"
    directory.mkdir(parents=True)
    (directory / "gpu_devices").write_text(f"{CARD}\n{CARD2}\n")
    tree.node("egm4")
    node = looked_at(tree)
    assert "/dev/egm4" not in node.grant(CARD).nodes
    assert node.grant(CARD, CARD2).nodes[-1] == "/dev/egm4"
    (directory / "gpu_devices").write_text("")
    assert "/dev/egm4" not in node.grant(CARD, CARD2).nodes, "whose it is isn't known"


def test_two_cards_never_get_a_mix_of_nodes(tmp_path: Path) -> None:
    tree = HostTree(tmp_path)
    tree.card("0000:01:00", group=12)
    tree.function(CARD2, driver="vfio-pci", group=44, vfio_dev="vfio0")
    (tree.root / "dev/vfio/44").unlink()
    tree.node("iommu")
    node = looked_at(tree)
    assert node.seen[GPU].devices[CARD].healthy
    assert node.seen[GPU].devices[CARD2].healthy
    with raises_code(DEVICE_UNHEALTHY, match="can't go to one container together"):
        node.grant(CARD, CARD2)


def test_groups_and_nodes_are_those_of_the_moment(tree: HostTree) -> None:
    node = looked_at(tree)
    regroup(tree, "0000:01:00", 12, 77)
    assert node.grant(CARD).nodes == ("/dev/vfio/vfio", "/dev/vfio/77")


def test_a_sibling_that_was_bound_since_comes_along(tmp_path: Path) -> None:
    tree = HostTree(tmp_path)
    tree.function(CARD, driver="vfio-pci", group=12)
    tree.function("0000:01:00.1", device=0x1AEF, class_code=0x040300, driver="snd_hda_intel", group=13)
    node = looked_at(tree)
    assert node.grant(CARD).nodes == ("/dev/vfio/vfio", "/dev/vfio/12")
    rebind(tree, "0000:01:00.1", "vfio-pci")
    tree.node("vfio/13")
    assert node.grant(CARD).nodes == ("/dev/vfio/vfio", "/dev/vfio/12", "/dev/vfio/13")


def _driver_taken(tree: HostTree) -> None:
    rebind(tree, CARD, "nvidia")


def _sibling_taken(tree: HostTree) -> None:
    rebind(tree, "0000:01:00.1", "snd_hda_intel")


def _node_taken(tree: HostTree) -> None:
    (tree.root / "dev/vfio/12").unlink()


def _container_node_taken(tree: HostTree) -> None:
    (tree.root / "dev/vfio/vfio").unlink()


def _function_taken(tree: HostTree) -> None:
    (tree.root / "sys/bus/pci/devices" / CARD).unlink()
    (tree.root / "sys/kernel/iommu_groups/12/devices" / CARD).unlink()


def _stranger_added(tree: HostTree) -> None:
    tree.function("0000:02:00.0", class_code=0x010802, driver="nvme", group=12)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (_driver_taken, "is bound to nvidia, not to a VFIO driver"),
        (_sibling_taken, "0000:01:00.1 audio device 10de:1aef.* is bound to snd_hda_intel"),
        (_node_taken, "/dev/vfio/12 is not there"),
        (_container_node_taken, "/dev/vfio/vfio is not there"),
        (_function_taken, "0000:01:00.0 is no longer in sysfs"),
        (_stranger_added, "0000:02:00.0 storage controller .* is bound to nvme"),
    ],
)
def test_what_has_changed_since_the_last_look_is_refused_by_name(tree: HostTree, change: object, words: str) -> None:
    node = looked_at(tree)
    change(tree)  # type: ignore[operator]
    with raises_code(DEVICE_UNHEALTHY, match=words):
        node.grant(CARD2, CARD)
    with raises_code(DEVICE_UNHEALTHY, match=words):
        asyncio.run(node.provider.check(node.seen[GPU], [CARD]))


def test_what_is_well_passes_the_check_before_the_start(tree: HostTree) -> None:
    node = looked_at(tree)
    asyncio.run(node.provider.check(node.seen[GPU], [CARD, CARD2]))


# K8, as far as it shows


def test_what_could_not_be_bound_says_so(tree: HostTree) -> None:
    rebind(tree, CARD, "nvidia")
    node = Node(
        tree, {0x03: RULE._replace(bind=True)}, failure=lambda _: Problem("failed", "the unbind did not return")
    )
    assert node.reasons() == {CARD: "failed", CARD2: None}


def test_a_host_without_sysfs_any_more_has_no_devices_that_can_be_had(tree: HostTree) -> None:
    node = looked_at(tree)
    shutil.rmtree(tree.root / "sys/bus/pci/devices")
    assert node.reasons() == {CARD: "gone", CARD2: "gone"}
