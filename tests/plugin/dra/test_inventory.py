"""What is published of the devices of a host (D2-D4)."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest

from launcherkit.model.address import PciAddress
from launcherkit.model.host import NO_FACTS
from launcherkit_plugin.daemon.wiring import Wiring, assemble
from launcherkit_plugin.dra.counters import CounterUse
from launcherkit_plugin.dra.inventory import DraDevice, Taint, inventory, quantity
from launcherkit_plugin.host.files import node_host
from launcherkit_plugin.host.scan import read_node
from launcherkit_plugin.host.work_queue import WorkQueue
from launcherkit_plugin.model.config import CardUse, Config, PciRule, Selector, VgpuConfig, VgpuRule
from launcherkit_plugin.model.device import Device, Problem, Resource, Usage
from launcherkit_plugin.telemetry.reporter import Reporter
from launcherkit_plugin.vgpu.lifecycle import Stopped
from launcherkit_plugin.vgpu.mdev_slots import MdevSlot
from tests.support.hosttree import BAR, HostTree
from tests.support.waiting import PATIENCE

DISPLAY = (Selector(classes=("03",)),)
NOBODY = Usage("pod-resources", {})


@pytest.fixture
def tree(tmp_path: Path) -> HostTree:
    return HostTree(tmp_path)


def published(tree: HostTree, config: Config, *, evict: bool = False) -> dict[str, DraDevice]:
    """The inventory of a host by name, as the daemon makes it."""
    host = node_host(str(tree.root))
    wiring = Wiring(host, str(tree.root), Reporter(lambda *_, **__: None), WorkQueue(stall=PATIENCE), Stopped())
    setup = assemble(config, wiring)
    facts = read_node(host, setup.wants, vgpu=True)
    setup.update(facts)
    resources = [found for provider in setup.providers for found in provider.resources(facts, NOBODY, 0.0)]
    return {device.name: device for device in inventory(resources, facts, evict=evict)}


def offer(tree: HostTree, address: str, types: dict[str, int]) -> None:
    """A card on which so many mdevs of each type can be made."""
    tree.function(address, driver="nvidia", group=12)
    for number, (name, available) in enumerate(types.items()):
        tree.mdev_type(address, f"nvidia-{number}", name=name, available_instances=str(available))


def cards(*, name: str | None = "a/GPU") -> Config:
    return Config(pci=(PciRule(select=DISPLAY, name=name, dra=True),))


def test_a_card_with_all_its_functions_is_one_device(tree: HostTree, tmp_path: Path) -> None:
    (tmp_path / "pci.ids").write_text("10de  NVIDIA\n\t2204  GA102 [GeForce RTX 3090]\n")
    big = (0x140000000000, 0x1407FFFFFFFF, 0x14220C)
    lines = [BAR(0xA0000000, 0xA0FFFFFF, 0x40200), BAR(*big)] + [BAR(0, 0, 0)] * 11
    tree.function(
        "0000:e1:00.0", driver="vfio-pci", group=44, numa=1, vfio_dev="vfio0", files={"resource": "".join(lines)}
    )
    audio = {"resource": "".join([BAR(*big)] + [BAR(0, 0, 0)] * 12)}  # nobody's window has room for that (P5)
    tree.function(
        "0000:e1:00.1", device=0x1AEF, class_code=0x040300, driver="vfio-pci", group=44, vfio_dev="vfio1", files=audio
    )
    tree.node("iommu")
    found = published(tree, cards()._replace(pci_ids=str(tmp_path / "pci.ids")))
    assert found == {
        "pci-0000-e1-00-0": DraDevice(
            "pci-0000-e1-00-0",
            "a/GPU",
            "0000:e1:00.0",
            {
                "resource": {"string": "a/GPU"},
                "type": {"string": "card"},
                "functions": {"int": 2},
                "class": {"string": "030000"},
                "vendorID": {"string": "10de"},
                "deviceID": {"string": "2204"},
                "model": {"string": "GA102 [GeForce RTX 3090]"},
                "iommufd": {"bool": True},
                "vfioDriver": {"string": "vfio-pci"},
                "resource.kubernetes.io/numaNode": {"int": 1},
                "resource.kubernetes.io/pciBusID": {"string": "0000:e1:00.0"},
                "resource.kubernetes.io/pcieRoot": {"string": "pci0000:00"},
            },
            {"window64": "32Gi"},
        )
    }


def test_what_is_not_known_is_left_out(tree: HostTree, tmp_path: Path) -> None:
    (tmp_path / "pci.ids").touch()
    tree.function("0000:e1:00.0", group=44, driver="vfio-pci")
    (device,) = published(tree, cards()._replace(pci_ids=str(tmp_path / "pci.ids"))).values()
    assert device.attributes["iommufd"] == {"bool": False}
    assert device.capacity == {"window64": "0"}
    assert not {"model", "card", "resource.kubernetes.io/numaNode"} & set(device.attributes)


def test_a_vf_names_its_card(tree: HostTree) -> None:
    tree.function("0000:81:00.0", vendor=0x8086, device=0x1592, class_code=0x020000, driver="ice", group=3)
    tree.vf("0000:81:00.0", "0000:81:01.0", class_code=0x020000, driver="vfio-pci", group=4)
    rule = PciRule(select=(Selector(virtual=True),), name="a/VF", dra=True)
    (device,) = published(tree, Config(pci=(rule,))).values()
    assert (device.attributes["type"], device.attributes["card"]) == ({"string": "vf"}, {"string": "0000:81:00.0"})


def test_a_domain_of_five_digits_is_published_as_it_is(tree: HostTree) -> None:
    tree.function("10000:e1:00.0", driver="vfio-pci", group=44)
    (device,) = published(tree, cards()).values()
    assert device.name == "pci-10000-e1-00-0"
    assert device.attributes["resource.kubernetes.io/pciBusID"] == {"string": "10000:e1:00.0"}


def test_a_long_text_is_cut_between_characters_and_a_long_resource_left_out(tree: HostTree, tmp_path: Path) -> None:
    (tmp_path / "pci.ids").write_text("10de  NVIDIA\n\t2204  " + "ä" * 40 + "\n")
    tree.card("0000:e1:00", group=44)
    name = f"{'a' * 60}.example.com/GPU"
    (device,) = published(tree, cards(name=name)._replace(pci_ids=str(tmp_path / "pci.ids"))).values()
    assert device.attributes["model"] == {"string": "ä" * 32}
    assert "resource" not in device.attributes


@pytest.mark.parametrize(("evict", "effect"), [(False, "NoSchedule"), (True, "NoExecute")])
def test_a_device_in_trouble_has_a_taint(tree: HostTree, *, evict: bool, effect: str) -> None:
    tree.function("0000:e1:00.0", driver="nvidia", group=44)
    (device,) = published(tree, cards(), evict=evict).values()
    assert device.problem is not None
    assert device.problem.reason == "driver"
    assert device.taints == (Taint("launcherkit.io/driver", "", effect),)


def test_a_device_that_is_being_cleaned_evicts_no_pod_that_waits_for_it() -> None:
    problem = Problem("cleaning", "a pod had it")
    devices = {"0000:e1:00.0": Device("0000:e1:00.0", problem=problem, functions=(PciAddress.parse("0000:e1:00.0"),))}
    (device,) = inventory([Resource("a/GPU", "V", devices, dra=True)], NO_FACTS, evict=True)
    assert device.taints == (Taint("launcherkit.io/cleaning", "", "NoSchedule"),)


def test_two_cards_of_one_group_share_a_counter(tree: HostTree) -> None:
    tree.card("0000:01:00", group=7)
    tree.card("0000:02:00", group=7)
    tree.card("0000:03:00", group=8)
    counters = {name: device.counters for name, device in published(tree, cards()).items()}
    shared = (("group-0000-01-00-0", "group", 1, 1),)
    assert counters == {"pci-0000-01-00-0": shared, "pci-0000-02-00-0": shared, "pci-0000-03-00-0": ()}


def test_groups_that_hang_together_are_counters_of_one_set() -> None:
    devices = {
        f"0000:0{number}:00.0": Device(f"0000:0{number}:00.0", groups=frozenset(groups))
        for number, groups in enumerate([{1, 2}, {2, 3}, {3, 4}, {9}])
    }
    found = inventory([Resource("a/GPU", "V", devices, dra=True)], NO_FACTS)
    assert [[use[:2] for use in device.counters] for device in found] == [
        [("group-0000-00-00-0", "group-0")],
        [("group-0000-00-00-0", "group-0"), ("group-0000-00-00-0", "group-1")],
        [("group-0000-00-00-0", "group-1")],
        [],
    ]


def test_companions_go_along_with_their_cards_and_the_device_plugins_are_not_there(tree: HostTree) -> None:
    tree.card("0000:e1:00", group=44)
    devices = {"0000:e1:00.0": Device("0000:e1:00.0")}
    resources = [Resource("a/A", "A", devices, companion=True, dra=True), Resource("a/B", "B", devices)]
    assert inventory(resources, NO_FACTS) == ()


def test_slots_of_an_empty_card_share_its_room_by_their_type(tree: HostTree) -> None:
    offer(tree, "0000:01:00.0", {"T4-1Q": 16, "T4-2Q": 8, "T4-5Q": 3})
    rule = VgpuRule(("*",), mode="dynamic", dra=True)
    found = published(tree, Config(vgpu=VgpuConfig(mdevs=(rule,))))
    uses = {(device.attributes["vgpuType"]["string"], device.counters) for device in found.values()}
    assert len(found) == 27
    assert uses == {
        (kind, (("card-0000-01-00-0", "card", share, 48),))
        for kind, share in [("T4-1Q", 3), ("T4-2Q", 6), ("T4-5Q", 16)]
    }
    device = next(iter(found.values()))
    assert device.name == f"mdev-{device.id}"
    assert device.attributes["mdevUUID"] == {"string": device.id}
    assert (device.attributes["type"], device.attributes["card"]) == ({"string": "vgpu"}, {"string": "0000:01:00.0"})
    assert "resource.kubernetes.io/pciBusID" not in device.attributes


def test_the_first_vgpu_of_a_card_taints_the_slots_of_other_types(tree: HostTree) -> None:
    offer(tree, "0000:01:00.0", {"T4-1Q": 15, "T4-2Q": 0})
    types = tree.path("0000:01:00.0") / "mdev_supported_types"
    (types / "nvidia-0" / "description").write_text("max_instance=16\n")
    (types / "nvidia-1" / "description").write_text("max_instance=8\n")
    tree.mdev("0000:01:00.0", "nvidia-0", MdevSlot("0000:01:00.0", "nvidia-0", 0).uuid, group=50)
    found = published(tree, Config(vgpu=VgpuConfig(mdevs=(VgpuRule(("*",), mode="dynamic", dra=True),))))
    taints = {(device.attributes["vgpuType"]["string"], device.taints) for device in found.values()}
    assert taints == {("T4-1Q", ()), ("T4-2Q", (Taint("launcherkit.io/other-type", "", "NoSchedule"),))}


def test_slots_of_one_type_that_all_fit_need_no_counter(tree: HostTree) -> None:
    offer(tree, "0000:01:00.0", {"T4-1Q": 16})
    found = published(tree, Config(vgpu=VgpuConfig(mdevs=(VgpuRule(("*",), mode="dynamic", dra=True),))))
    assert {device.counters for device in found.values()} == {()}


@pytest.mark.parametrize("use", ["vm", "container"])
def test_the_whole_card_takes_all_of_it(use: CardUse) -> None:
    card = "0000:01:00.0"
    slots = {f"0-{number}": Device(f"0-{number}", card=card, per_card=4, vgpu_types=("T",)) for number in range(4)}
    whole = {card: Device(card, functions=(PciAddress.parse(card),))}
    resources = [
        Resource("a/V", "V", slots, made_at_start=True, dra=True),
        Resource("a/C", "C", whole, dra=True, use=use),
    ]
    found = inventory(resources, NO_FACTS)
    amounts = {device.id: [use.amount for use in device.counters] for device in found}
    assert amounts == {**{key: [1] for key in slots}, card: [4]}
    assert {use.total for device in found for use in device.counters} == {4}


def test_containers_may_have_all_cards_of_a_group_and_a_vm_takes_its_counter_whole(tree: HostTree) -> None:
    for address in ("0000:01:00.0", "0000:02:00.0"):
        tree.function(address, vendor=0x1002, driver="amdgpu", group=12)
    rule = PciRule(select=DISPLAY, name="a/GPU", dra=True, use="any")
    share = CounterUse("group-0000-01-00-0", "group", 1, 2)
    assert {device.name: device.counters for device in published(tree, Config(pci=(rule,))).values()} == {
        "container-0000-01-00-0": (share,),
        "container-0000-02-00-0": (share,),
        "pci-0000-01-00-0": (share._replace(amount=2),),
        "pci-0000-02-00-0": (share._replace(amount=2),),
    }


def amounts(found: Iterable[DraDevice]) -> dict[str, list[CounterUse]]:
    return {device.id: sorted(device.counters) for device in found}


def test_a_physical_function_takes_all_of_its_vfs_and_these_have_no_counter_without_it(tree: HostTree) -> None:
    pf, vfs = "0000:81:00.0", ["0000:81:01.0", "0000:81:01.1"]
    tree.function(pf, vendor=0x8086, device=0x1592, class_code=0x020000, driver="vfio-pci", group=3)
    for group, vf in enumerate(vfs, 4):
        tree.vf(pf, vf, class_code=0x020000, driver="vfio-pci", group=group)
    network = Selector(classes=("02",))
    rule = PciRule(select=(network._replace(virtual=True), network._replace(virtual=False)), name="a/NIC", dra=True)
    one = CounterUse("card-0000-81-00-0", "card", 1, 2)
    assert amounts(published(tree, Config(pci=(rule,))).values()) == {
        pf: [one._replace(amount=2)],
        **{vf: [one] for vf in vfs},
    }
    alone = published(tree, Config(pci=(rule._replace(select=(network._replace(virtual=True),)),)))
    assert amounts(alone.values()) == {vf: [] for vf in vfs}


def test_physical_functions_that_go_together_are_counted_in_one_set(tree: HostTree) -> None:
    ports = ["0000:81:00.0", "0000:81:00.1"]
    for group, port in enumerate(ports, 3):
        tree.function(port, vendor=0x8086, device=0x1592 + group, class_code=0x020000, driver="vfio-pci", group=group)
        tree.vf(port, f"0000:81:0{group}.0", class_code=0x020000, driver="vfio-pci", group=group + 10)
    network = Selector(classes=("02",))
    rule = PciRule(
        select=(network._replace(virtual=True), network._replace(addresses=(ports[0],))), name="a/NIC", dra=True
    )
    first, second = (CounterUse("card-0000-81-00-0", f"card-{number}", 1, 1) for number in (0, 1))
    assert amounts(published(tree, Config(pci=(rule,))).values()) == {
        ports[0]: [first, second],
        "0000:81:03.0": [first],
        "0000:81:04.0": [second],
    }


def test_a_vf_that_may_have_one_of_two_types_is_two_devices_of_which_one_can_be_had(tree: HostTree) -> None:
    tree.function("0000:41:00.0", driver="nvidia", group=3)
    tree.vf("0000:41:00.0", "0000:41:00.4", vgpu="0", driver="nvidia", group=4)
    rule = VgpuRule(("*",), mode="dynamic", dra=True, prefix="PCI_RESOURCE")
    found = list(published(tree, Config(vgpu=VgpuConfig(vfs=(rule,)))).values())
    assert [device.attributes["vgpuType"]["string"] for device in found] == ["NVIDIA A40-1B", "NVIDIA A40-2B"]
    assert [device.name.rpartition("-")[0] for device in found] == [
        "pci-0000-41-00-4-nvidia-a40-1b",
        "pci-0000-41-00-4-nvidia-a40-2b",
    ]
    assert {device.counters for device in found} == {(("group-0000-41-00-4", "group", 1, 1),)}
    assert {device.attributes["resource.kubernetes.io/pciBusID"]["string"] for device in found} == {"0000:41:00.4"}


def test_a_gone_device_keeps_its_name(tree: HostTree) -> None:
    problem = Problem("gone", "gone")
    here = Device("0000:41:00.4", card="0000:41:00.0", place="0000:41:00.4")
    gone = Device("0000:41:00.4", problem=problem)
    facts = NO_FACTS
    names = [
        inventory([Resource("a/V", "V", {each.id: each}, made_at_start=True, dra=True)], facts)[0].name
        for each in (here, gone)
    ]
    assert names[0] == names[1]


@pytest.mark.parametrize("of_resource", ["a/GPU", "a/OTHER"])
def test_a_card_that_is_gone_keeps_what_cel_asks_for(tree: HostTree, of_resource: str) -> None:
    """A reference to an attribute that is missing ends the allocation of every other card, too."""
    tree.card("0000:e1:00", group=44)
    before = published(tree, cards())
    (here,) = before.values()
    gone = Device(here.id, problem=Problem("gone", "gone"), functions=(PciAddress.parse(here.id),))
    resource = Resource(of_resource, "V", {gone.id: gone}, dra=True)
    (found,) = inventory([resource], NO_FACTS, before=before)
    assert [taint.key for taint in found.taints] == ["launcherkit.io/gone"]
    assert ((found.attributes, found.capacity) == (here.attributes, here.capacity)) is (of_resource == "a/GPU")
    assert "class" in here.attributes


@pytest.mark.parametrize(
    ("amount", "text"),
    [(0, "0"), (1, "1"), (1000, "1k"), (1 << 35, "32Gi"), (3 << 20, "3Mi"), (1500, "1500"), (1 << 51, "2Pi")],
)
def test_a_quantity_is_spelt_as_the_api_server_does(amount: int, text: str) -> None:
    assert quantity(amount) == text
