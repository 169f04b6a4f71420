"""How close devices are to each other, in the words of nvidia-smi topo -m."""

from __future__ import annotations

from pathlib import Path

import pytest

from launcherkit.colour import PLAIN
from launcherkit.host.source import Host
from launcherkit.show.host import topology_of
from launcherkit.show.matrix import Matrix, draw_matrix, matrix_of
from tests.show.machines import topology
from tests.support.hosttree import HostTree

ROOT = ("pci0000:00",)
PORT = (*ROOT, "0000:00:01.0")
SWITCH = (*PORT, "0000:02:00.0")


def matrix(tmp_path: Path, *ways: tuple[str, ...], nodes: tuple[int, ...] = (0, 0), group: int | None = None) -> Matrix:
    """Of two cards behind these bridges."""
    tree = HostTree(tmp_path)
    for number, way in enumerate(ways):
        address = f"0000:{0xA0 + number:02x}:00.0"
        tree.function(address, driver="vfio-pci", group=group or number, numa=nodes[number], parents=way)
    return matrix_of(topology_of(Host.from_sysfs(tmp_path).scan(), (), every=False))


@pytest.mark.parametrize(
    ("one", "other", "closeness"),
    [
        ((*SWITCH, "0000:03:00.0"), (*SWITCH, "0000:03:01.0"), "PIX"),
        (PORT, PORT, "PIX"),
        ((*SWITCH, "0000:03:00.0"), (*SWITCH, "0000:03:01.0", "0000:04:00.0", "0000:05:00.0"), "PXB"),
        (PORT, (*ROOT, "0000:00:02.0"), "PHB"),
        (ROOT, PORT, "PHB"),
        (PORT, ("pci0000:40", "0000:40:01.0"), "NODE"),
    ],
)
def test_closeness_is_what_the_way_between_two_devices_goes_through(
    tmp_path: Path, one: tuple[str, ...], other: tuple[str, ...], closeness: str
) -> None:
    found = matrix(tmp_path, one, other)
    assert [[pair.closeness for pair in row] for row in found.rows] == [["X", closeness], [closeness, "X"]]


@pytest.mark.parametrize(("nodes", "closeness"), [((0, 1), "SYS"), ((-1, -1), "NODE"), ((0, -1), "?")])
def test_between_root_complexes_the_numa_nodes_decide(tmp_path: Path, nodes: tuple[int, int], closeness: str) -> None:
    found = matrix(tmp_path, PORT, ("pci0000:40", "0000:40:01.0"), nodes=nodes)
    assert found.rows[0][1].closeness == closeness


def test_one_slot_and_one_group_are_marked_and_told(tmp_path: Path) -> None:
    tree = HostTree(tmp_path)
    for function in (0, 1):
        tree.function(f"0000:01:00.{function}", class_code=0x020000, driver="vfio-pci", group=7)
    text = draw_matrix(matrix_of(topology_of(Host.from_sysfs(tmp_path).scan(), (), every=False)), PLAIN)
    assert "[0]  0000:01:00.0  X      PIX+*" in text
    assert "+    in the same slot" in text
    assert "*    in the same IOMMU group" in text


def test_a_card_stands_for_its_audio_function_and_its_vfs() -> None:
    assert [str(each.function.address) for each in matrix_of(topology("workstation")).devices] == [
        "0000:01:00.0",
        "0000:61:00.0",
    ]
    assert len(matrix_of(topology("a2-vfs")).devices) == 1


def test_the_row_of_a_slot_is_the_card_and_not_what_comes_before_it() -> None:
    (device,) = matrix_of(topology("rack-server")).devices
    assert str(device.function.address) == "0000:01:00.1"


def test_gpus_behind_one_switch_are_close_on_a_machine_with_eight() -> None:
    found = matrix_of(topology("hgx"))
    gpus = [number for number, device in enumerate(found.devices) if device.function.ids == "10de:20b0"]
    words = [found.rows[one][other].closeness for one in gpus for other in gpus if one < other]
    assert (len(gpus), words.count("PIX"), words.count("SYS")) == (8, 4, 24)
