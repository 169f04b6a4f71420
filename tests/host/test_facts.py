"""What `Host.from_sysfs` reads of a host."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from launcherkit import translate
from launcherkit.errors import NO_SYSFS, UNREADABLE_FILE
from launcherkit.host.source import Host
from launcherkit.model.address import MdevAddress, PciAddress
from launcherkit.model.host import Bar, PciFunction, PciLink
from tests.support.errors import raises_code
from tests.support.faults import failing
from tests.support.hosttree import BAR, HostTree

UUID = "11111111-2222-3333-4444-555555555555"
GPU = PciAddress(0, 0xE1, 0, 0)
AUDIO = PciAddress(0, 0xE1, 0, 1)


@pytest.fixture
def tree(tmp_path: Path) -> HostTree:
    return HostTree(tmp_path)


def at(text: str) -> PciAddress:
    return PciAddress.parse(text)


def test_a_root_without_pci_devices_is_refused(tmp_path: Path) -> None:
    with raises_code(NO_SYSFS, match="sys/bus/pci/devices"):
        Host.from_sysfs(tmp_path)


def test_identity_comes_from_uevent_and_links(tree: HostTree) -> None:
    tree.card("0000:e1:00", group=44, numa=1)
    facts = Host.from_sysfs(tree.root).scan(details=False)
    assert facts.functions[AUDIO] == PciFunction(
        AUDIO, 0x10DE, 0x1AEF, 0x1458, 0x403B, 0x040300, "vfio-pci", 44, 1, None
    )
    assert facts.groups == {44: (GPU, AUDIO)}
    assert not facts.details
    assert facts.nodes is None


def test_without_uevent_the_single_files_are_read(tree: HostTree) -> None:
    for address, files in (("0000:01:00.0", {"uevent": None}), ("0000:02:00.0", {"uevent": "DRIVER=nvidia\n"})):
        tree.function(address, driver="nvidia", files=files)
    first, second = Host.from_sysfs(tree.root).scan(details=False).functions.values()
    assert first._replace(address=second.address) == second
    assert first.model == (0x10DE, 0x2204)
    assert first.class_code == 0x030000
    assert first.driver == "nvidia"


def test_a_uevent_in_another_order_means_the_same(tree: HostTree) -> None:
    lines = "PCI_SLOT_NAME=0000:01:00.0\nOF_NAME=gpu\nPCI_SUBSYS_ID=1458:403B\nPCI_ID=10DE:2204\nPCI_CLASS=30000"
    tree.function("0000:01:00.0", driver="vfio-pci", files={"uevent": lines})
    (function,) = Host.from_sysfs(tree.root).scan(details=False).functions.values()
    assert (function.subsystem_vendor, function.subsystem_device, function.driver) == (0x1458, 0x403B, "vfio-pci")


@pytest.mark.parametrize(
    "files",
    [
        {"uevent": None, "vendor": None},
        {"uevent": "PCI_ID=zz:1\n", "vendor": "junk"},
        {"uevent": b"\xff\0", "device": ""},
    ],
)
def test_a_function_that_vanishes_while_it_is_read_is_absent(tree: HostTree, files: dict[str, str]) -> None:
    tree.function("0000:01:00.0", group=3, files=files)
    host = Host.from_sysfs(tree.root)
    assert not host.scan().functions
    assert not host.facts([at("0000:01:00.0")]).functions


def test_junk_among_the_devices_is_ignored(tree: HostTree) -> None:
    tree.card("0000:e1:00", group=1)
    for junk in ("0000:E1:00.0", "e1:00.0", "00.000.1", "x", "0000:e1:00.8", "\udcff"):
        (tree.root / "sys/bus/pci/devices" / junk).symlink_to("nowhere")
    (tree.root / "sys/bus/pci/devices/0000:01:00.0").symlink_to("nowhere")
    assert set(Host.from_sysfs(tree.root).scan().functions) == {GPU, AUDIO}


def test_unknown_numa_nodes_are_none_and_long_domains_are_read(tree: HostTree) -> None:
    tree.function("10000:e1:00.0", numa=-1)
    tree.function("0000:01:00.0", numa=3, files={"numa_node": None})
    functions = Host.from_sysfs(tree.root).scan().functions
    assert [function.numa_node for function in functions.values()] == [None, None]
    assert PciAddress(0x10000, 0xE1, 0, 0) in functions


def test_details_hold_what_a_bug_report_needs(tree: HostTree) -> None:
    bars = BAR(0xF0000000, 0xF0FFFFFF, 0x40200) + BAR(0, 0, 0) + BAR(1 << 40, (1 << 40) + 0xFFFF, 0x14220C) + "junk\n"
    files = {"resource": bars, "rom": "", "reset_method": "flr bus\n", "driver_override": "vfio-pci\n"}
    tree.function(
        "0000:e1:00.0", driver="vfio-pci", parents=["pci0000:e0", "0000:e0:01.1"], vfio_dev="vfio3", files=files
    )
    detail = Host.from_sysfs(tree.root).scan().details[GPU]
    assert detail.resources == (Bar(0, 0xF0000000, 0xF0FFFFFF, 0x40200), Bar(2, 1 << 40, (1 << 40) + 0xFFFF, 0x14220C))
    assert detail.parents == ("pci0000:e0", "0000:e0:01.1")
    assert detail.has_rom
    assert detail.reset_methods == ("flr", "bus")
    assert detail.revision == 0xA1
    assert (detail.driver_override, detail.driver_module, detail.vfio_dev) == ("vfio-pci", "vfio_pci", "vfio3")
    assert (detail.header_type, detail.config_readable, detail.power_state) == (0, True, "D0")


def test_an_override_of_null_is_none(tree: HostTree) -> None:
    tree.function("0000:e1:00.0")
    assert Host.from_sysfs(tree.root).scan().details[GPU].driver_override is None


def test_config_space_of_all_ones_is_not_readable(tree: HostTree) -> None:
    tree.function("0000:e1:00.0", files={"config": b"\xff" * 64})
    tree.function("0000:e1:00.1", files={"config": None})
    details = Host.from_sysfs(tree.root).scan().details
    assert not details[GPU].config_readable
    assert details[AUDIO].config_readable
    assert details[AUDIO].header_type is None


def test_a_vf_whose_ids_read_as_ones_is_readable(tree: HostTree) -> None:
    tree.function("0000:e1:00.0", files={"config": b"\xff\xff\xff\xff" + bytes(60)})
    assert Host.from_sysfs(tree.root).scan().details[GPU].config_readable


def test_config_space_of_a_sleeping_device_is_left_alone(tree: HostTree) -> None:
    tree.function("0000:e1:00.0", power_state="D3cold", files={"config": b"\xff" * 64})
    detail = Host.from_sysfs(tree.root).scan().details[GPU]
    assert (detail.power_state, detail.config_readable, detail.header_type) == ("D3cold", True, None)


def test_vfs_and_their_vgpu_types_are_read(tree: HostTree) -> None:
    tree.function("0000:e1:00.0", driver="nvidia", group=1)
    tree.vf("0000:e1:00.0", "0000:e1:00.4", vgpu="558", driver="nvidia", group=2)
    tree.vf("0000:e1:00.0", "0000:e1:00.5", vgpu="0", driver="nvidia", group=3)
    facts = Host.from_sysfs(tree.root).scan()
    first, second = at("0000:e1:00.4"), at("0000:e1:00.5")
    assert facts.functions[first].physfn == GPU
    assert (facts.details[GPU].virtfns, facts.details[GPU].sriov_numvfs, facts.details[GPU].sriov_totalvfs) == (
        (first, second),
        2,
        64,
    )
    vgpu = facts.details[first].vgpu
    assert vgpu is not None
    assert vgpu.current_type == 558
    assert vgpu.creatable == ((557, "NVIDIA A40-1B"), (558, "NVIDIA A40-2B"))


def test_a_vf_whose_physical_function_is_gone_is_still_a_vf(tree: HostTree) -> None:
    """S1a: it must not bring the other VFs of its slot as if they were functions of one card."""
    tree.function("0000:e1:00.0", driver="nvidia", group=1)
    directory = tree.vf("0000:e1:00.0", "0000:e1:00.4", driver="vfio-pci", group=2)
    (directory / "physfn").unlink()
    (directory / "physfn").symlink_to("../0000:e0:00.0")
    facts = Host.from_sysfs(tree.root).facts([at("0000:e1:00.4")])
    assert facts.functions[at("0000:e1:00.4")].is_vf
    assert set(facts.functions) == {at("0000:e1:00.4")}


def test_a_count_of_vfs_that_can_not_be_true_ends_at_the_last_link(tree: HostTree) -> None:
    tree.function("0000:e1:00.0", files={"sriov_numvfs": "999999999\n", "sriov_totalvfs": "x"})
    detail = Host.from_sysfs(tree.root).scan().details[GPU]
    assert (detail.virtfns, detail.sriov_numvfs, detail.sriov_totalvfs) == ((), 999999999, None)


def test_mdevs_and_their_parents_are_read(tree: HostTree) -> None:
    tree.function("0000:e1:00.0", driver="nvidia")
    tree.mdev_type("0000:e1:00.0", "nvidia-222", name="GRID T4-1Q", device_api="vfio-pci", available_instances="15")
    tree.mdev_type("0000:e1:00.0", "nvidia-223")
    tree.mdev("0000:e1:00.0", "nvidia-222", UUID, group=60)
    facts = Host.from_sysfs(tree.root).scan()
    mdev = facts.mdevs[UUID]
    assert (mdev.parent, mdev.type_id, mdev.type_name, mdev.iommu_group) == (
        "0000:e1:00.0",
        "nvidia-222",
        "GRID T4-1Q",
        60,
    )
    parent = facts.mdev_parents["0000:e1:00.0"]
    assert parent.address == GPU
    assert [(offered.id, offered.name, offered.available_instances) for offered in parent.types] == [
        ("nvidia-222", "GRID T4-1Q", 15),
        ("nvidia-223", None, None),
    ]


def test_nodes_are_unknown_without_dev_and_listed_with_it(tmp_path: Path) -> None:
    HostTree(tmp_path / "bare", nodes=False)
    assert Host.from_sysfs(tmp_path / "bare").scan().nodes is None
    tree = HostTree(tmp_path / "full")
    tree.node("iommu")
    tree.node("vfio/7")
    tree.node("vfio/devices/vfio0")
    assert Host.from_sysfs(tree.root).scan().nodes == frozenset(
        {
            "/dev/vfio/vfio",
            "/dev/iommu",
            "/dev/vfio/7",
            "/dev/vfio/devices/vfio0",
        }
    )


def test_a_group_of_vfios_no_iommu_mode_is_known_by_its_name_and_of_a_mediated_device_it_means_nothing(
    tree: HostTree,
) -> None:
    tree.card("0000:e1:00", group=44)
    tree.function("0000:01:00.0", driver="vfio-pci")
    tree.noiommu("0000:01:00.0", 0)
    tree.mdev_type(str(GPU), "nvidia-222", device_api="vfio-pci")
    tree.mdev(str(GPU), "nvidia-222", UUID, group=1)
    (tree.root / "sys/kernel/iommu_groups/1/name").write_text("vfio-noiommu\n")
    host = Host.from_sysfs(tree.root)
    by_need = host.facts([PciAddress.parse("0000:01:00.0"), GPU], [MdevAddress(UUID)])
    assert by_need.noiommu == host.scan().noiommu == {0}
    shutil.rmtree(tree.root / "dev")
    assert host.facts([PciAddress.parse("0000:01:00.0")]).noiommu == {0}, "as in a sidecar, which has no nodes"


class TestByNeed:
    def test_the_slot_and_the_whole_group_come_along(self, tree: HostTree) -> None:
        tree.card("0000:e1:00", group=44)
        tree.function("0000:e1:00.2", class_code=0x0C0330, driver="xhci_hcd", group=45)
        tree.function("0000:e2:00.0", driver="nvme", group=45)
        tree.function("0000:e3:00.0", driver="snd_hda_intel", group=44)
        tree.card("0000:01:00", group=3)
        facts = Host.from_sysfs(tree.root).facts([GPU])
        assert sorted(map(str, facts.functions)) == [
            "0000:e1:00.0",
            "0000:e1:00.1",
            "0000:e1:00.2",
            "0000:e2:00.0",
            "0000:e3:00.0",
        ]
        assert facts.groups == {
            44: (GPU, AUDIO, at("0000:e3:00.0")),
            45: (at("0000:e1:00.2"), at("0000:e2:00.0")),
        }
        assert set(facts.details) == set(facts.functions)
        assert facts.nodes == frozenset({"/dev/vfio/vfio", "/dev/vfio/44"})

    def test_what_is_read_agrees_with_a_scan(self, tree: HostTree) -> None:
        tree.node("iommu")
        tree.card("0000:e1:00", group=44)
        tree.function("0000:02:00.0", driver="mlx5_vfio_pci", group=5, vfio_dev="vfio1")
        tree.vf("0000:02:00.0", "0000:02:00.1", driver="vfio-pci", group=6)
        host = Host.from_sysfs(tree.root)
        scanned, needed = host.scan(), host.facts(host.scan().functions)
        assert needed.functions == {
            address: function._replace(numa_node=None) for address, function in scanned.functions.items()
        }
        assert needed.groups == scanned.groups
        assert needed.nodes == scanned.nodes
        unread: dict[str, Any] = {"revision": None, "driver_override": None, "has_rom": False, "reset_methods": ()}
        for address, detail in scanned.details.items():
            bars = () if address == AUDIO else detail.resources
            assert needed.details[address] == detail._replace(**unread, parents=(), resources=bars)
        with_topology = host.facts(scanned.functions, topology=True)
        assert with_topology.details == {at: each._replace(**unread) for at, each in scanned.details.items()}

    def test_many_slots_give_the_same_as_few(self, tree: HostTree) -> None:
        for bus in range(40):
            tree.card(f"0000:{bus:02x}:00", group=bus)
        host = Host.from_sysfs(tree.root)
        primaries = [PciAddress(0, bus, 0, 0) for bus in range(40)]
        together = host.facts(primaries)
        assert len(together.functions) == 80
        for address in primaries:
            alone = host.facts([address])
            assert all(together.functions[key] == value for key, value in alone.functions.items())
            assert alone.groups.items() <= together.groups.items()

    def test_a_vf_comes_without_its_neighbours(self, tree: HostTree) -> None:
        tree.function("0000:e1:00.0", driver="nvidia", group=1)
        for number in (1, 2, 3):
            tree.vf("0000:e1:00.0", f"0000:e1:00.{number}", driver="vfio-pci", group=number + 1)
        assert set(Host.from_sysfs(tree.root).facts([at("0000:e1:00.2")]).functions) == {at("0000:e1:00.2")}

    def test_a_physical_function_comes_with_its_first_vf(self, tree: HostTree) -> None:
        tree.function("0000:e1:00.0", driver="nvidia", group=1)
        tree.vf("0000:e1:00.0", "0000:e1:01.0", vgpu="0", driver="nvidia", group=2)
        tree.vf("0000:e1:00.0", "0000:e1:01.1", vgpu="0", driver="nvidia", group=3)
        facts = Host.from_sysfs(tree.root).facts([GPU])
        first = facts.details[GPU].virtfns[0]
        assert facts.functions[first].physfn == GPU
        assert facts.details[first].vgpu is not None

    def test_no_member_is_missed_where_groups_are_not_listed(self, tree: HostTree) -> None:
        tree.card("0000:e1:00", group=44)
        tree.function("0000:e3:00.0", driver="nvme", group=44)
        for entry in (tree.root / "sys/kernel/iommu_groups/44/devices").iterdir():
            entry.unlink()
        assert Host.from_sysfs(tree.root).facts([GPU]).groups == {44: (GPU, AUDIO, at("0000:e3:00.0"))}

    def test_what_is_not_there_is_left_out(self, tree: HostTree) -> None:
        facts = Host.from_sysfs(tree.root).facts([GPU, GPU], [MdevAddress(UUID)])
        assert facts.known
        assert not facts.functions
        assert not facts.mdevs

    def test_a_named_mdev_comes_with_its_node(self, tree: HostTree) -> None:
        tree.function("0000:e1:00.0", driver="nvidia")
        tree.mdev_type("0000:e1:00.0", "nvidia-222", device_api="vfio-pci")
        tree.mdev("0000:e1:00.0", "nvidia-222", UUID, group=60)
        facts = Host.from_sysfs(tree.root).facts([], [MdevAddress(UUID)])
        assert facts.mdevs[UUID].device_api == "vfio-pci"
        assert facts.nodes == frozenset({"/dev/vfio/vfio", "/dev/vfio/60"})
        assert set(facts.functions) == {GPU}, "what it was made on"

    def test_names_of_character_devices_are_read_only_where_nodes_of_iommufd_are(self, tree: HostTree) -> None:
        """A container may get ``/dev/iommu`` opened, without its node (V2)."""
        tree.function("0000:e1:00.0", driver="vfio-pci", group=1, vfio_dev="vfio3")
        host = Host.from_sysfs(tree.root)
        assert host.facts([GPU]).details[GPU].vfio_dev == "vfio3"
        assert "/dev/vfio/devices/vfio3" in (host.facts([GPU]).nodes or ())
        (tree.root / "dev/vfio/devices").rename(tree.root / "elsewhere")
        assert host.facts([GPU]).details[GPU].vfio_dev is None
        (tree.root / "elsewhere").rename(tree.root / "dev/vfio/devices")
        tree.node("iommu")
        assert host.facts([GPU]).details[GPU].vfio_dev == "vfio3"
        assert host.facts([GPU]).nodes == frozenset(
            {"/dev/vfio/vfio", "/dev/vfio/1", "/dev/iommu", "/dev/vfio/devices/vfio3"}
        )


def test_a_host_is_read_anew_each_time(tree: HostTree) -> None:
    host = Host.from_sysfs(tree.root)
    assert not host.scan().functions
    tree.card("0000:e1:00", group=44)
    assert len(host.scan().functions) == 2
    assert host.facts([GPU]).functions[GPU].driver == "vfio-pci"


def test_reading_leaves_no_file_open(tree: HostTree) -> None:
    tree.card("0000:e1:00", group=44)
    host = Host.from_sysfs(tree.root)
    before = len(os.listdir("/proc/self/fd"))
    host.scan()
    host.facts([GPU, at("0000:09:00.0")])
    assert len(os.listdir("/proc/self/fd")) <= before


def test_this_machine_can_be_read() -> None:
    if not os.path.isdir("/sys/bus/pci/devices"):
        pytest.skip("this machine has no PCI bus in its sysfs")
    host = Host.from_sysfs()
    facts = host.scan()
    assert set(facts.details) == set(facts.functions)
    assert set(host.facts(facts.functions).functions) == set(facts.functions)


# T2: unknown is not absent


@pytest.mark.parametrize("number", [errno.EIO, errno.EACCES, errno.ESTALE])
def test_a_function_that_can_not_be_read_is_unknown_and_stays_a_member_of_its_group(
    tmp_path: Path, number: int
) -> None:
    tree = HostTree(tmp_path)
    tree.card("0000:e1:00", group=44)
    host = Host.from_sysfs(tmp_path)
    with failing(tmp_path / f"sys/bus/pci/devices/{AUDIO}", number):
        for facts in (host.facts([GPU]), host.scan(details=False), host.scan()):
            assert list(facts.functions) == [GPU]
            assert os.strerror(number) in facts.unknown[AUDIO]
            assert facts.groups == {44: (GPU, AUDIO)}
    assert host.scan().unknown == {}


def test_a_variable_that_names_what_can_not_be_read_is_reported_so(tmp_path: Path) -> None:
    HostTree(tmp_path).card("0000:e1:00", group=44)
    env = {"PCI_RESOURCE_A": "0000:e1:00.0"}
    with (
        failing(tmp_path / "sys/bus/pci/devices/0000:e1:00.0", errno.EIO),
        raises_code(UNREADABLE_FILE, match=r"PCI_RESOURCE_A: 0000:e1:00.0 can't be read: .*Input/output error"),
    ):
        translate("<domain type='kvm'><devices/></domain>", env=env, host=Host.from_sysfs(tmp_path))


@pytest.mark.parametrize(
    ("speed", "width", "link"),
    [
        ("16.0 GT/s PCIe", "8", PciLink(16000, 8, 32000, 16)),
        ("2.5 GT/s", "1", PciLink(2500, 1, 32000, 16)),
        ("5 GT/s", "16", PciLink(5000, 16, 32000, 16)),
        ("Unknown speed", "0", PciLink(None, None, 32000, 16)),
        ("Unknown", "255", PciLink(None, None, 32000, 16)),
    ],
)
def test_the_link_of_a_function_is_read_in_every_kernels_spelling(
    tmp_path: Path, speed: str, width: str, link: PciLink
) -> None:
    tree, best = HostTree(tmp_path), {"max_link_speed": "32.0 GT/s PCIe\n", "max_link_width": "16\n"}
    tree.function(
        "0000:01:00.0", files={"current_link_speed": speed + "\n", "current_link_width": width + "\n", **best}
    )
    assert Host.from_sysfs(tmp_path).scan().details[PciAddress.parse("0000:01:00.0")].link == link


def test_what_is_no_pcie_and_a_vf_have_no_link(tmp_path: Path) -> None:
    tree = HostTree(tmp_path)
    tree.function("0000:01:00.0")
    vf = tree.vf("0000:01:00.0", "0000:01:00.4")
    (vf / "current_link_speed").write_text("Unknown\n")
    assert [detail.link for detail in Host.from_sysfs(tmp_path).scan().details.values()] == [None, None]
