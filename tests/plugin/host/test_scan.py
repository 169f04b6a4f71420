"""One look at the node: everything a little, what may be advertised closely."""

from __future__ import annotations

import errno
from pathlib import Path

from launcherkit.model.address import PciAddress
from launcherkit.model.function import PciFunction
from launcherkit.sources.host import Host
from launcherkit.sources.snapshot import dump
from launcherkit_plugin.devices.fingerprint import fingerprint_of, is_still_so
from launcherkit_plugin.host.look import Progress
from launcherkit_plugin.host.scan import NodeReader, read_node
from tests.plugin.resources import rebind, regroup
from tests.support.faults import failing
from tests.support.hosttree import HostTree

UUID = "11111111-2222-3333-4444-555555555555"


def built(root: Path) -> HostTree:
    tree = HostTree(root)
    tree.card("0000:e1:00", group=44)
    tree.function("0000:02:00.0", class_code=0x010802, driver="nvme", group=12)
    tree.function("0000:03:00.0", device=0x1EB8, class_code=0x030200, driver="nvidia", group=13)
    tree.mdev_type("0000:03:00.0", "nvidia-222", name="GRID T4-1Q", available_instances="15", device_api="vfio-pci")
    tree.mdev("0000:03:00.0", "nvidia-222", UUID, group=90)
    return tree


def test_all_functions_are_known_and_the_wanted_ones_closely(tmp_path: Path) -> None:
    host = Host.from_sysfs(built(tmp_path).root)
    facts = read_node(host, lambda function: function.driver == "vfio-pci", vgpu=False)
    assert [str(address) for address in facts.functions] == [
        "0000:02:00.0",
        "0000:03:00.0",
        "0000:e1:00.0",
        "0000:e1:00.1",
    ]
    assert sorted(map(str, facts.details)) == ["0000:e1:00.0", "0000:e1:00.1"]
    assert facts.details[PciAddress.parse("0000:e1:00.0")].parents == ("pci0000:00", "0000:00:01.0")
    assert facts.groups[12] == (PciAddress.parse("0000:02:00.0"),)
    assert facts.nodes == frozenset({"/dev/vfio/vfio", "/dev/vfio/44"})
    assert (facts.mdevs, facts.mdev_parents) == ({}, {})


def test_mediated_devices_come_with_their_nodes(tmp_path: Path) -> None:
    facts = read_node(Host.from_sysfs(built(tmp_path).root), lambda _: False, vgpu=True)
    assert list(facts.mdevs) == [UUID]
    assert list(facts.mdev_parents) == ["0000:03:00.0"]
    assert facts.nodes == frozenset({"/dev/vfio/vfio", "/dev/vfio/90"})


def test_a_snapshot_can_be_looked_at_like_a_machine(tmp_path: Path) -> None:
    tree, file = built(tmp_path / "host"), tmp_path / "host.json"
    file.write_text(dump(Host.from_sysfs(tree.root).scan()))
    live = read_node(Host.from_sysfs(tree.root), lambda _: True, vgpu=True)
    kept = read_node(Host.from_snapshot(file), lambda _: True, vgpu=True)
    assert kept.functions == live.functions
    assert kept.mdevs == live.mdevs
    assert {address: detail.parents for address, detail in kept.details.items()} == {
        address: detail.parents for address, detail in live.details.items()
    }


def is_display(function: PciFunction) -> bool:
    return function.class_code >> 16 == 0x03


def test_a_second_look_reads_nothing_of_what_is_of_no_interest(tmp_path: Path) -> None:
    tree = built(tmp_path)
    host, reader = Host.from_sysfs(tree.root), NodeReader()
    first = reader.read(host, is_display, vgpu=False)
    with failing(tmp_path / "sys/bus/pci/devices/0000:02:00.0", errno.EIO):
        assert reader.read(host, is_display, vgpu=False) == first
    with failing(tmp_path / "sys/bus/pci/devices/0000:e1:00.0", errno.EIO):
        assert list(map(str, reader.read(host, is_display, vgpu=False).unknown)) == ["0000:e1:00.0"]


def test_a_second_look_sees_what_has_come_gone_and_changed(tmp_path: Path) -> None:
    tree = built(tmp_path)
    host, reader = Host.from_sysfs(tree.root), NodeReader()

    def agrees() -> bool:
        """With a first look."""
        return reader.read(host, is_display, vgpu=True) == NodeReader().read(host, is_display, vgpu=True)

    assert agrees()
    tree.card("0000:e2:00", group=45)
    assert agrees()
    rebind(tree, "0000:03:00.0", None)
    assert agrees()
    regroup(tree, "0000:e2:00", 45, 46)
    assert agrees()
    (tmp_path / "sys/bus/pci/devices/0000:02:00.0").unlink()
    assert agrees()


def test_a_second_look_sees_whom_a_vfio_driver_has(tmp_path: Path) -> None:
    tree = built(tmp_path)
    host, reader = Host.from_sysfs(tree.root), NodeReader()
    disk = PciAddress.parse("0000:02:00.0")
    assert reader.read(host, is_display, vgpu=False).functions[disk].driver == "nvme"
    rebind(tree, str(disk), "vfio-pci")
    tree.link(f"sys/bus/pci/drivers/vfio-pci/{disk}", tree.path(str(disk)))
    assert reader.read(host, is_display, vgpu=False).functions[disk].driver == "vfio-pci"


def test_what_a_device_that_did_not_answer_seemed_to_be_is_not_remembered(tmp_path: Path) -> None:
    tree = built(tmp_path)
    host, reader, progress = Host.from_sysfs(tree.root), NodeReader(), Progress({"0000:e1:00.0"})
    gpu = PciAddress.parse("0000:e1:00.0")
    stalled = reader.read(host.followed(progress.open_tree), is_display, vgpu=False, without=progress.without)
    assert stalled.functions[gpu].driver == "unknown"
    assert reader.read(host, is_display, vgpu=False).functions[gpu].driver == "vfio-pci"


def test_other_rules_look_at_other_functions(tmp_path: Path) -> None:
    host, reader = Host.from_sysfs(built(tmp_path).root), NodeReader()
    assert PciAddress.parse("0000:02:00.0") not in reader.read(host, is_display, vgpu=False).details
    assert PciAddress.parse("0000:02:00.0") in reader.read(host, lambda _: True, vgpu=False).details


def test_a_sight_holds_until_a_driver_or_a_member_changes(tmp_path: Path) -> None:
    tree = built(tmp_path)
    host = Host.from_sysfs(tree.root)
    address = PciAddress.parse("0000:e1:00.0")
    sight = fingerprint_of([address], host.facts([address]), str(tree.root))
    assert is_still_so(sight)
    rebind(tree, "0000:02:00.0", "vfio-pci")
    assert is_still_so(sight), "another group's business"
    rebind(tree, "0000:e1:00.1", None)
    assert not is_still_so(sight)
    rebind(tree, "0000:e1:00.1", "vfio-pci")
    assert is_still_so(sight)
    tree.function("0000:e1:00.2", device=0x1AD8, class_code=0x0C0330, driver="vfio-pci", group=44)
    assert not is_still_so(sight)
