"""VFs of SR-IOV vGPU cards: a type is written when a pod asks, and taken back when nobody has it (G4)."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path

import pytest

from launcherkit.host.snapshot import dump, read_snapshot
from launcherkit.host.source import Host
from launcherkit.model.address import PciAddress
from launcherkit_plugin.host.files import DiskFiles
from launcherkit_plugin.host.scan import read_node
from launcherkit_plugin.host.work_queue import WorkQueue
from launcherkit_plugin.model.config import LayoutEntry, VgpuRule
from launcherkit_plugin.model.device import NO_USAGE, Usage
from launcherkit_plugin.model.errors import NO_VGPU_ROOM, UNKNOWN_DEVICE, WRONG_VGPU
from launcherkit_plugin.vgpu.maker import Maker
from launcherkit_plugin.vgpu.pool import Pool
from launcherkit_plugin.vgpu.vf import VfKind
from launcherkit_plugin.vgpu.writer import VgpuWriter
from tests.plugin.vgpu.kernel import A2_4Q, A2_8Q, Gpu, Kernel
from tests.plugin.vgpu.node import Clock, Node, name_of
from tests.support.errors import raises_code
from tests.support.hosttree import HostTree
from tests.support.waiting import PATIENCE

CARD = "0000:41:00.0"
FOUR, EIGHT = "nvidia.com/NVIDIA_A2-4Q", "nvidia.com/NVIDIA_A2-8Q"
_rule = partial(VgpuRule, prefix="PCI_RESOURCE")
DYNAMIC = (_rule(("NVIDIA A2-*",), mode="dynamic"),)
STATIC = (_rule(("NVIDIA_A2-4Q", "743")),)
VF0, VF1 = "0000:41:01.0", "0000:41:01.1"


class VgpuCard:
    def __init__(self) -> None:
        self.kernel = Kernel()
        self.gpu: Gpu = self.kernel.card_of_vfs(CARD, 16, (A2_4Q, A2_8Q), mib=16384)

    def types(self) -> dict[str, str]:
        return {vf: kind.name for vf, kind in self.gpu.given.items()}

    def set(self, vf: str, number: int) -> None:
        self.kernel.write(f"sys/bus/pci/devices/{vf}/nvidia/current_vgpu_type", str(number))


@pytest.fixture
def card() -> VgpuCard:
    return VgpuCard()


@pytest.fixture
def node(card: VgpuCard) -> Node:
    node = Node(card.kernel, vfs=DYNAMIC)
    node.turn()
    return node


def test_static_mode_lists_neither_the_card_nor_vfs_without_a_type(card: VgpuCard) -> None:
    card.set(VF1, 742)
    node = Node(card.kernel, vfs=STATIC)
    node.turn()
    assert {name: node.healthy(name) for name in node.offers} == {FOUR: [VF1]}
    assert node.allocate(FOUR, VF1).env == {"PCI_RESOURCE_NVIDIA_COM_NVIDIA_A2-4Q": VF1}
    node.clock.now += 1000
    node.turn()
    assert card.types() == {VF1: "NVIDIA A2-4Q"}


def test_dynamic_mode_lists_every_vf_for_every_type_that_it_could_have(node: Node) -> None:
    assert (len(node.healthy(FOUR)), len(node.healthy(EIGHT))) == (16, 16)
    assert CARD not in {device.id for name in node.offers for device in node.devices(name)}
    device = node.devices(FOUR)[0]
    assert device.functions == (PciAddress.parse(VF0),)
    assert (device.numa_node, set(device.groups)) == (0, {100})


def test_allocate_writes_the_type_and_hands_out_the_vfs_group(node: Node, card: VgpuCard) -> None:
    grant = node.allocate(FOUR, VF1, VF0)
    assert grant.env == {"PCI_RESOURCE_NVIDIA_COM_NVIDIA_A2-4Q": f"{VF1},{VF0}"}
    assert grant.nodes == ("/dev/vfio/vfio", "/dev/vfio/101", "/dev/vfio/100")
    assert card.types() == {VF0: "NVIDIA A2-4Q", VF1: "NVIDIA A2-4Q"}
    assert node.allocate(FOUR, VF1, VF0) == grant


def test_a_vf_with_a_type_is_no_device_of_another_one(node: Node) -> None:
    node.allocate(FOUR, VF0)
    node.hold(FOUR, VF0)
    node.turn()
    assert VF0 in node.healthy(FOUR)
    assert VF0 not in node.healthy(EIGHT)
    assert node.reasons(EIGHT) == {"other-type"}


def test_the_first_vgpu_of_a_card_fixes_the_others_unless_it_mixes_them(node: Node, card: VgpuCard) -> None:
    card.set(VF0, 742)
    node.turn()
    texts = {device.problem.text for device in node.devices(EIGHT) if device.problem and device.id != VF0}
    assert texts == {f"beside vGPUs of NVIDIA A2-4Q {CARD} takes only NVIDIA A2-4Q"}
    card.gpu.mixed = True
    card.set(VF1, 743)
    node.turn()
    assert (VF1 in node.healthy(EIGHT), len(node.healthy(FOUR))) == (True, 15)
    card.set(f"{CARD[:-4]}01.2", 742)
    node.turn()
    others = {device.problem.reason for device in node.devices(EIGHT) if device.problem and device.id > "0000:41:01.2"}
    assert others == {"no-room"}, "it has vGPUs of that type: it is full, for that size"


def test_where_the_driver_offers_nothing_a_type_has_no_room(node: Node, card: VgpuCard) -> None:
    card.gpu.instances = 0
    card.kernel.reboot()
    node.turn()
    assert (node.reasons(FOUR), node.reasons(EIGHT)) == ({"no-room"}, {"no-room"})
    with raises_code(NO_VGPU_ROOM, match="possible types: none"):
        node.allocate(FOUR, VF0)
    card.gpu.instances = 2
    card.kernel.reboot()
    node.turn()
    node.allocate(FOUR, VF0)
    node.allocate(FOUR, VF1)
    node.hold(FOUR, VF0, VF1)
    node.turn()
    assert node.healthy(FOUR) == [VF0, VF1]


def test_what_the_driver_says_of_a_vgpus_place_is_a_fact_of_its_vf(card: VgpuCard, tmp_path: Path) -> None:
    def state(vf: str) -> tuple[int | None, int | None]:
        vgpu = card.kernel.facts().details[PciAddress.parse(vf)].vgpu
        assert vgpu is not None
        return vgpu.placement, vgpu.gpu_instance

    assert state(VF1) == (None, None)
    card.set(VF0, 742)
    card.set(VF1, 742)
    assert (state(VF0), state(VF1)) == ((0, None), (1, None))
    card.gpu.instances = 4
    card.kernel.reboot()
    card.set(VF1, 742)
    assert state(VF1) == (0, 0)
    facts = card.kernel.facts()
    (tmp_path / "host.json").write_text(dump(facts))
    read = read_snapshot(str(tmp_path / "host.json"))
    assert read.details[PciAddress.parse(VF1)].vgpu == facts.details[PciAddress.parse(VF1)].vgpu


def test_a_full_card_has_only_what_it_has_given_even_after_a_restart(node: Node, card: VgpuCard) -> None:
    taken = node.healthy(FOUR)[:4]
    node.allocate(FOUR, *taken)
    node.hold(FOUR, *taken)
    node.turn()
    assert node.healthy(FOUR) == taken
    assert node.reasons(FOUR) == {"no-room"}
    node.restart()
    node.turn()
    assert node.healthy(FOUR) == taken
    assert len(card.types()) == 4


def test_a_placement_that_the_driver_refuses_is_reported_and_undone(node: Node, card: VgpuCard) -> None:
    with raises_code(NO_VGPU_ROOM, match=r"0000:41:01\.4 can't have vGPU type 742: No space left on device"):
        node.allocate(FOUR, *node.healthy(FOUR)[:5])
    assert card.types() == {}
    assert ("create", "refused") in node.recorded.counted


def test_a_vf_that_has_another_type_is_not_changed(node: Node, card: VgpuCard) -> None:
    card.set(VF0, 743)
    with raises_code(WRONG_VGPU, match=r"0000:41:01\.0 has vGPU type 743, not 742"):
        node.allocate(FOUR, VF0)
    assert card.types() == {VF0: "NVIDIA A2-8Q"}


def test_a_static_vf_that_lost_its_type_is_refused(card: VgpuCard) -> None:
    card.set(VF0, 742)
    node = Node(card.kernel, vfs=STATIC)
    node.turn()
    card.set(VF0, 0)
    with raises_code(UNKNOWN_DEVICE, match=r"0000:41:01\.0 has no vGPU type of NVIDIA A2-4Q"):
        node.allocate(FOUR, VF0)


@pytest.mark.parametrize("rules", [STATIC, DYNAMIC])
def test_a_vf_without_an_iommu_group_is_unhealthy_with_a_type_and_without(
    card: VgpuCard, rules: tuple[VgpuRule, ...]
) -> None:
    card.set(VF0, 742)
    card.kernel.drop(f"sys/bus/pci/devices/{VF0}/iommu_group")
    node = Node(card.kernel, vfs=rules)
    node.turn()
    problem = next(device.problem for device in node.devices(FOUR) if device.id == VF0)
    assert problem is not None
    assert (problem.reason, problem.text.endswith("is in no IOMMU group")) == ("no-group", True)


def test_the_type_of_a_static_vf_that_a_pod_has_is_never_set(card: VgpuCard) -> None:
    card.set(VF0, 742)
    node = Node(card.kernel, vfs=STATIC)
    node.turn()
    node.hold(FOUR, VF0)
    card.set(VF0, 0)
    assert node.work() == []
    assert not node.turn()
    assert card.types() == {}


def test_a_type_that_no_pod_needs_is_taken_back_after_the_grace_time(node: Node, card: VgpuCard) -> None:
    node.allocate(FOUR, VF0, VF1)
    node.hold(FOUR, VF0)
    node.turn()
    node.clock.now += 130
    node.turn()
    node.clock.now += 61
    node.turn()
    assert card.types() == {VF0: "NVIDIA A2-4Q"}
    node.usage = NO_USAGE
    node.clock.now += 1000
    node.turn()
    assert card.types() == {VF0: "NVIDIA A2-4Q"}


def test_a_type_stays_while_a_process_has_the_vf_open(node: Node, card: VgpuCard) -> None:
    node.allocate(FOUR, VF0)
    node.restart()
    card.kernel.open.add("/dev/vfio/100")
    for _ in range(3):
        node.turn()
        node.clock.now += 100
    assert card.types() == {VF0: "NVIDIA A2-4Q"}
    card.kernel.open.clear()
    node.turn()
    assert card.types() == {}


def test_a_pods_vf_gets_its_type_again_after_a_reboot(node: Node, card: VgpuCard) -> None:
    node.allocate(EIGHT, VF0)
    node.hold(EIGHT, VF0, source="checkpoint")
    card.kernel.reboot()
    node.restart()
    node.turn()
    assert card.types() == {VF0: "NVIDIA A2-8Q"}
    assert VF0 in node.healthy(EIGHT)


def test_what_nobody_has_makes_way_for_a_pods_vf(node: Node, card: VgpuCard) -> None:
    card.set(VF1, 742)
    node.hold(EIGHT, VF0)
    node.turn()
    node.turn()
    assert card.types() == {VF0: "NVIDIA A2-8Q"}


def test_one_resource_of_several_types_takes_the_first_that_fits(card: VgpuCard) -> None:
    node = Node(
        card.kernel,
        vfs=(_rule(("NVIDIA A2-8Q", "NVIDIA A2-4Q"), name="nvidia.com/VGPU", mode="dynamic"),),
    )
    node.turn()
    node.allocate("nvidia.com/VGPU", VF0)
    assert card.types() == {VF0: "NVIDIA A2-8Q"}


def test_of_several_types_the_card_is_asked_for_one_that_it_offers(card: VgpuCard) -> None:
    """The preferred type is first, and the driver doesn't offer it beside what the card has."""
    rule = _rule(("NVIDIA A2-8Q", "NVIDIA A2-4Q"), name="nvidia.com/VGPU", mode="dynamic")
    node = Node(card.kernel, vfs=(rule,))
    node.turn()
    card.set(VF1, 742)
    written: list[str] = []
    card.kernel.touched = written.append
    node.allocate("nvidia.com/VGPU", VF0)
    assert card.types() == {VF0: "NVIDIA A2-4Q", VF1: "NVIDIA A2-4Q"}
    assert set(written) == {f"sys/bus/pci/devices/{VF0}/nvidia/current_vgpu_type"}


def test_a_pod_keeps_a_vf_that_left_the_bus_on_the_list(node: Node) -> None:
    node.config = node.config._replace(vfs=(_rule(("*",), name="nvidia.com/VGPU", mode="dynamic"),))
    node.restart()
    node.hold("nvidia.com/VGPU", "0000:99:01.0")
    node.turn()
    assert node.reasons("nvidia.com/VGPU") == {"gone"}


def test_a_pods_device_stays_listed_under_a_written_name_that_has_no_other(card: VgpuCard) -> None:
    """K4."""
    node = Node(card.kernel, vfs=(_rule(("NVIDIA L40-*",), name="nvidia.com/VGPU", mode="dynamic"),))
    node.hold("nvidia.com/VGPU", "0000:99:01.0")
    node.turn()
    assert [(each.id, each.healthy) for each in node.devices("nvidia.com/VGPU")] == [("0000:99:01.0", False)]


def test_details_are_wanted_of_vfs_of_the_cards_meant_alone(card: VgpuCard) -> None:
    node = Node(card.kernel, vfs=(_rule(("*",), parents=("0000:41:*",)),))
    functions = card.kernel.facts().functions
    wanted = [str(address) for address, function in functions.items() if node.providers[0].wants(function)]
    assert len(wanted) == 16
    assert CARD not in wanted


def test_usage_of_a_vf_by_another_type_keeps_it_from_this_one(node: Node, card: VgpuCard) -> None:
    node.allocate(EIGHT, VF0)
    node.hold(EIGHT, VF0)
    node.turn()
    card.set(VF0, 0)
    node.usage = Usage("none", node.usage.held)
    node.turn()
    assert card.types() == {VF0: "NVIDIA A2-8Q"}


def test_a_node_with_sixteen_vfs_on_disk_is_read_as_it_is(tmp_path: Path) -> None:
    tree = HostTree(tmp_path)
    tree.function(CARD, device=0x25B6, class_code=0x030200, driver="nvidia", group=40, numa=1)
    for number in range(16):
        vf = f"0000:41:{number // 8 + 1:02x}.{number % 8}"
        kind = "557" if number < 3 else "558" if number == 3 else "0"
        tree.vf(CARD, vf, vgpu=kind, device=0x25B6, class_code=0x030200, driver="nvidia", group=50 + number, numa=1)
        tree.node(f"vfio/{50 + number}")
    clock, files = Clock(), DiskFiles(str(tmp_path))
    writer = VgpuWriter(Maker(files, clock, clock.sleep), lambda _: False)
    provider = Pool(VfKind((_rule(("*",)),), name_of, writer), writer, WorkQueue(stall=PATIENCE))
    facts = read_node(Host.from_sysfs(tmp_path), provider.wants, vgpu=True)
    resources = provider.resources(facts, Usage("pod-resources", {}), clock.now)
    assert {resource.name: list(resource.devices) for resource in resources} == {
        "nvidia.com/NVIDIA_A40-1B": [VF0, VF1, "0000:41:01.2"],
        "nvidia.com/NVIDIA_A40-2B": ["0000:41:01.3"],
    }
    assert all(device.healthy for resource in resources for device in resource.devices.values())
    grant = asyncio.run(provider.allocate(resources[1], ["0000:41:01.3"]))
    assert grant.nodes == ("/dev/vfio/vfio", "/dev/vfio/53")
    assert provider.resources(facts._replace(nodes=frozenset()), NO_USAGE, clock.now)[1].devices["0000:41:01.3"].problem


def test_a_type_that_only_a_static_rule_permits_is_not_taken_back(card: VgpuCard) -> None:
    rules = (
        _rule(("NVIDIA A2-8Q",)),
        _rule(("NVIDIA A2-4Q",), mode="dynamic"),
    )
    node = Node(card.kernel, vfs=rules)
    card.set(VF0, 743)
    for _ in range(3):
        node.turn()
        node.clock.now += 1000
    assert card.types() == {VF0: "NVIDIA A2-8Q"}
    assert node.healthy(EIGHT) == [VF0]


def test_a_cards_layout_stays_though_a_dynamic_rule_permits_its_types(card: VgpuCard) -> None:
    node = Node(card.kernel, vfs=DYNAMIC, layout=(LayoutEntry(CARD, "NVIDIA A2-4Q", 2),))
    for _ in range(3):
        node.turn()
        node.clock.now += 1000
    assert list(card.types().values()) == ["NVIDIA A2-4Q"] * 2
    assert card.kernel.taken == []


def test_a_vf_that_a_pod_has_under_another_name_is_not_given_again(node: Node) -> None:
    node.allocate(FOUR, VF0)
    node.hold("example.com/OLD-NAME", VF0)
    node.turn()
    assert VF0 not in node.healthy(FOUR)
    assert VF1 in node.healthy(FOUR)
