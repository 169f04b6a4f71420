"""NUMA nodes of the host, and where on it functions are (P4)."""

from __future__ import annotations

from pathlib import Path

import pytest

from launcherkit.errors import BAD_SNAPSHOT, BadInput, SeveralErrors
from launcherkit.host.snapshot import dump, load
from launcherkit.host.source import Host
from launcherkit.model.host import NumaNode
from tests.support.facts import at
from tests.support.hosttree import HostTree

GPU = "0000:e1:00.0"


@pytest.fixture
def tree(tmp_path: Path) -> HostTree:
    tree = HostTree(tmp_path)
    tree.function(GPU, driver="vfio-pci", group=44, numa=1, parents=["pci0000:e0", "0000:e0:01.1"])
    node(tree, 0, "0-3,8-11\n", "10 21 80\n")
    node(tree, 1, "4-7\n", "21 10 80\n")
    node(tree, 4, "\n", "80 80 10\n")
    return tree


def node(tree: HostTree, number: int, cpus: str, distances: str) -> None:
    folder = tree.root / f"sys/devices/system/node/node{number}"
    folder.mkdir(parents=True)
    (folder / "cpulist").write_text(cpus)
    (folder / "distance").write_text(distances)


def test_nodes_have_their_cpus_and_distances_by_number(tree: HostTree) -> None:
    (tree.root / "sys/devices/system/node/possible").write_text("0-4\n")
    assert Host.from_sysfs(tree.root).scan().numa == {
        0: NumaNode(frozenset({0, 1, 2, 3, 8, 9, 10, 11}), {0: 10, 1: 21, 4: 80}),
        1: NumaNode(frozenset({4, 5, 6, 7}), {0: 21, 1: 10, 4: 80}),
        4: NumaNode(frozenset(), {0: 80, 1: 80, 4: 10}),
    }


def test_what_cannot_be_made_out_is_left_out(tree: HostTree) -> None:
    node(tree, 5, "many\n", "10 x\n")
    found = Host.from_sysfs(tree.root).scan().numa
    assert found[5] == NumaNode(frozenset(), {})
    assert found[0].distances == {}  # three figures for four nodes


def test_they_are_read_by_need_where_they_are_asked_for(tree: HostTree) -> None:
    host = Host.from_sysfs(tree.root)
    without, found = host.facts([at(GPU)]), host.facts([at(GPU)], topology=True)
    assert without.numa == {}
    assert without.details[at(GPU)].parents == ()
    assert found.numa == host.scan().numa
    assert found.functions[at(GPU)].numa_node == 1
    assert found.details[at(GPU)].parents == ("pci0000:e0", "0000:e0:01.1")


def test_a_snapshot_has_them(tree: HostTree) -> None:
    scanned = Host.from_sysfs(tree.root).scan()
    assert load(dump(scanned)) == scanned
    (tree.root / "sys/devices/system/node/node1/distance").unlink()
    assert load(dump(Host.from_sysfs(tree.root).scan())).numa[1].distances == {}


def test_what_is_wrong_in_a_snapshot_is_named() -> None:
    text = '{"format": "launcherkit.io/host/v1", "functions": [], "numa": [{"cpus": "all", "distances": ["near"]}]}'
    with pytest.raises((BadInput, SeveralErrors)) as caught:
        load(text)
    assert {leaf.code for leaf in caught.value.leaves()} == {BAD_SNAPSHOT.code}
    assert "$.numa[0].node" in str(caught.value)
    assert "$.numa[0].cpus" in str(caught.value)
    assert "$.numa[0].distances[0]" in str(caught.value)
