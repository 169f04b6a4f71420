"""What the log and an Event say of a node: also of one that has nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from launcherkit import Host
from launcherkit.model.address import PciAddress
from launcherkit.model.host import HostFacts
from launcherkit_plugin.model.device import Device, Problem, Resource
from launcherkit_plugin.telemetry.summary import NAMED, other_gpus, summary
from tests.support.hosttree import HostTree

CARD = PciAddress.parse("0000:e1:00.0")
WELL = Device("0000:e1:00.0", functions=(CARD,))
ILL = WELL._replace(problem=Problem("driver", "bound to nvidia"))


def cards(*devices: Device, name: str = "nvidia.com/GPU") -> Resource:
    return Resource(name, "PCI_RESOURCE_NVIDIA_COM_GPU", {device.id: device for device in devices})


@pytest.fixture
def tree(tmp_path: Path) -> HostTree:
    return HostTree(tmp_path)


def scan(tree: HostTree) -> HostFacts:
    return Host.from_sysfs(tree.root).scan()


def test_a_node_without_gpus_and_without_an_iommu_says_both(tree: HostTree) -> None:
    tree.function("0000:02:00.0", class_code=0x010802, driver="nvme")
    assert summary(scan(tree), []) == (
        "NothingToAdvertise",
        "nothing to advertise among 1 PCI function; there are no IOMMU groups, so the IOMMU is off or missing",
    )


def test_a_gpu_that_the_host_uses_is_named_with_its_driver(tree: HostTree) -> None:
    tree.function("0000:02:00.0", class_code=0x030000, driver="amdgpu", group=12)
    tree.function("0000:02:00.1", class_code=0x040300, driver="snd_hda_intel", group=12)
    tree.function("0000:03:00.0", class_code=0x030000, group=13)
    reason, text = summary(scan(tree), [])
    assert reason == "NothingToAdvertise"
    assert text.startswith(
        "nothing to advertise among 3 PCI functions; not advertised: 0000:02:00.0 display controller "
    )
    assert text.endswith(" (no driver)")
    assert "(driver amdgpu), 0000:03:00.0" in text
    assert "02:00.1" not in text


def test_what_is_advertised_is_counted_whatever_its_health(tree: HostTree) -> None:
    tree.card("0000:e1:00", group=44)
    host = scan(tree)
    found = summary(host, [cards(WELL), cards(name="amd.com/GPU")])
    assert found == ("DevicesFound", "advertised: 1 of nvidia.com/GPU")
    assert summary(host, [cards(ILL)]) == found


def test_a_card_whose_vgpus_are_advertised_is_advertised(tree: HostTree) -> None:
    tree.card("0000:e1:00", group=44)
    vgpu = Device("af2a4c3e", card="0000:e1:00.0")
    assert other_gpus(scan(tree), [cards(vgpu)]) == ""
    assert other_gpus(scan(tree), [cards()]) != ""


def test_of_many_gpus_some_are_named(tree: HostTree) -> None:
    for number in range(NAMED + 2):
        tree.function(f"0000:{number + 1:02x}:00.0", class_code=0x030200, group=number)
    text = other_gpus(scan(tree))
    assert text.count("display controller") == NAMED
    assert text.endswith(" and 2 more")
