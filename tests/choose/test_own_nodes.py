"""A visible device node says that a device was allocated only in a container that sees its own alone (S2)."""

from __future__ import annotations

from pathlib import Path

import pytest

from launcherkit import Host, translate
from launcherkit.choose.siblings import sees_only_own_nodes
from launcherkit.model.address import MdevAddress
from tests.support.domains import domain, hostdevs
from tests.support.facts import AUDIO, UUID, at, detail, facts, function, mdev
from tests.support.hosttree import HostTree

GPU, SOUND = "0000:e1:00.0", "0000:e1:00.1"
OWN = ["/dev/vfio/vfio", "/dev/iommu", "/dev/vfio/1", "/dev/vfio/2", "/dev/vfio/90", "/dev/vfio/devices/vfio5"]


@pytest.mark.parametrize(
    ("nodes", "container_dev", "own"),
    [
        (OWN, True, True),
        ([], True, True),
        (OWN, False, False),
        (None, True, False),
        ([*OWN, "/dev/vfio/7"], True, False),
        ([*OWN, "/dev/vfio/devices/vfio7"], True, False),
        ([*OWN, "/dev/vfio/noiommu-0"], True, False),
    ],
)
def test_every_node_is_of_the_cards_at_hand(nodes: list[str] | None, container_dev: bool, own: bool) -> None:
    host = facts(
        function(GPU, group=1),
        function(SOUND, AUDIO, group=2),
        function("0000:e2:00.0", group=7),
        details={SOUND: detail(vfio_dev="vfio5")},
        mdevs=[mdev()],
        nodes=nodes,
        container_dev=container_dev,
    )
    assert sees_only_own_nodes([at(GPU), MdevAddress(UUID)], host) == own


@pytest.fixture
def tree(tmp_path: Path) -> HostTree:
    """A card whose audio has a group of its own, all on vfio-pci with their nodes; another card, too."""
    tree = HostTree(tmp_path)
    tree.function(GPU, driver="vfio-pci", group=44)
    tree.function(SOUND, class_code=0x040300, device=0x1AEF, driver="vfio-pci", group=45)
    tree.function("0000:01:00.0", driver="vfio-pci", group=3)
    for group in (44, 45):
        tree.node(f"vfio/{group}")
    (tmp_path / "dev/vfio/3").unlink(missing_ok=True)
    return tree


def attached(tree: HostTree) -> list[str]:
    result = translate(domain(), env={"PCI_RESOURCE_X": GPU}, host=Host.from_sysfs(tree.root))
    not_attached = [note.text for note in result.notes if note.topic == "stayed"]
    assert len(not_attached) == 2 - len(hostdevs(result.domain_xml)), not_attached
    return [each.source for each in hostdevs(result.domain_xml)]


def test_in_a_container_with_its_own_nodes_the_sibling_comes(tree: HostTree) -> None:
    assert attached(tree) == [GPU, SOUND]


@pytest.mark.parametrize("node", ["kmsg", "mem", "cpu_dma_latency"])
def test_in_a_privileged_container_and_on_a_plain_host_it_stays_with_a_note(tree: HostTree, node: str) -> None:
    (tree.root / "dev" / node).touch()
    assert attached(tree) == [GPU]


def test_where_dev_vfio_was_mounted_as_a_whole_it_stays_with_a_note(tree: HostTree) -> None:
    tree.node("vfio/3")
    assert attached(tree) == [GPU]


def test_a_snapshot_of_the_container_decides_as_the_container_does(tree: HostTree, tmp_path: Path) -> None:
    from launcherkit.host.snapshot import dump

    for container, expected in ((True, [GPU, SOUND]), (False, [GPU])):
        if not container:
            (tree.root / "dev/kmsg").touch()
        file = tmp_path / "host.json"
        file.write_text(dump(Host.from_sysfs(tree.root).scan()))
        result = translate(domain(), env={"PCI_RESOURCE_X": GPU}, host=Host.from_snapshot(file))
        assert [each.source for each in hostdevs(result.domain_xml)] == expected
