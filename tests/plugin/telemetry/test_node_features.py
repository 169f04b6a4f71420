"""What Node Feature Discovery makes labels of."""

from __future__ import annotations

import re
from pathlib import Path

from launcherkit import Host
from launcherkit_plugin.model.device import Device, Problem, Resource
from launcherkit_plugin.telemetry.node_features import FeatureFile, features
from tests.support.hosttree import HostTree

LABEL = r"([a-z0-9]([a-z0-9.-]*[a-z0-9])?/)[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?"
CARDS = Resource(
    "nvidia.com/GA102_GEFORCE_RTX_3090",
    "PCI_RESOURCE_NVIDIA_COM_GA102_GEFORCE_RTX_3090",
    {"a": Device("a"), "b": Device("b", problem=Problem("driver", "bound to nvidia"))},
)


def test_a_node_with_an_iommu_and_a_bound_card_says_so(tmp_path: Path) -> None:
    tree = HostTree(tmp_path)
    tree.card("0000:e1:00", group=44)
    tree.function("0000:02:00.0", class_code=0x010802, driver="nvme", group=12)
    host = Host.from_sysfs(tree.root).scan()
    assert features(host, [CARDS]) == {
        "launcherkit.io/iommu": "true",
        "launcherkit.io/vfio": "group",
        "launcherkit.io/vfio-functions": "2",
        "devices.launcherkit.io/GA102_GEFORCE_RTX_3090": "2",
        "healthy.launcherkit.io/GA102_GEFORCE_RTX_3090": "1",
    }


def test_vfios_no_iommu_mode_is_no_iommu(tmp_path: Path) -> None:
    tree = HostTree(tmp_path)
    tree.function("0000:e1:00.0", driver="vfio-pci")
    tree.noiommu("0000:e1:00.0", 0)
    assert features(Host.from_sysfs(tree.root).scan(), [])["launcherkit.io/iommu"] == "false"


def test_a_node_with_nothing_says_that(tmp_path: Path) -> None:
    host = Host.from_sysfs(HostTree(tmp_path, nodes=False).root).scan()
    assert features(host, []) == {
        "launcherkit.io/iommu": "false",
        "launcherkit.io/vfio": "none",
        "launcherkit.io/vfio-functions": "0",
    }


def test_both_sets_of_nodes_are_reported_apart_from_one(tmp_path: Path) -> None:
    tree = HostTree(tmp_path)
    tree.node("iommu")
    assert features(Host.from_sysfs(tree.root).scan(), [])["launcherkit.io/vfio"] == "both"


def test_the_longest_name_of_a_resource_makes_labels_that_kubernetes_takes(tmp_path: Path) -> None:
    host = Host.from_sysfs(HostTree(tmp_path).root).scan()
    longest = Resource("nvidia.com/" + "A" * 63, "X", {})
    for key, value in features(host, [longest]).items():
        assert re.fullmatch(LABEL, key)
        assert re.fullmatch(r"[a-z0-9]{1,63}", value)


def test_the_file_has_a_line_a_label_and_changes_with_them_alone(tmp_path: Path) -> None:
    file = FeatureFile(str(tmp_path))
    assert file.write({"b.io/two": "2", "a.io/one": "1"})
    assert Path(file.path).read_text() == "a.io/one=1\nb.io/two=2\n"
    assert not file.write({"a.io/one": "1", "b.io/two": "2"})
    assert file.write({"a.io/one": "2"})
    assert [path.name for path in tmp_path.iterdir()] == ["launcherkit"]


def test_it_is_taken_away_when_nothing_is_offered_any_more(tmp_path: Path) -> None:
    file = FeatureFile(str(tmp_path))
    file.write({"a.io/one": "1"})
    file.remove()
    file.remove()
    assert list(tmp_path.iterdir()) == []
    assert file.write({"a.io/one": "1"})


def test_nothing_is_written_where_nobody_reads(tmp_path: Path) -> None:
    assert not FeatureFile(str(tmp_path / "features.d")).write({"a.io/one": "1"})
    assert list(tmp_path.iterdir()) == []
