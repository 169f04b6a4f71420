"""Which PCIe switches are published of a device (D2): on trees that are made at random, and on a recorded host."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from launcherkit.host.source import Host
from launcherkit.model.address import PciAddress
from launcherkit_plugin.dra.switches import Switches
from tests.support.hosttree import HostTree
from tests.support.imports import ROOT

NVIDIA, AMD, MELLANOX, BROADCOM = 0x10DE, 0x1002, 0x15B3, 0x1000
GPU, NIC, AUDIO = 0x030000, 0x020000, 0x040300
ROOT_PORT = ("pci0000:00", "0000:00:01.0")


def bridge(tree: HostTree, address: str, vendor: int, parents: tuple[str, ...]) -> None:
    tree.function(address, vendor=vendor, class_code=0x060400, driver="pcieport", header_type=1, parents=parents)


def attributes(tree: HostTree, address: str) -> dict[str, int | bool | str]:
    facts = Host.from_sysfs(tree.root).scan()
    return Switches(facts).attributes(facts.functions[PciAddress.parse(address)])


@pytest.fixture
def tree(tmp_path: Path) -> HostTree:
    return HostTree(tmp_path)


def below(tree: HostTree, *switches: tuple[str, str, int], root: tuple[str, ...] = ROOT_PORT) -> tuple[str, ...]:
    """The path below switches, each given by its ports and vendor."""
    path = root
    for upstream, downstream, vendor in switches:
        for port in (upstream, downstream):
            if not (tree.root / "sys/bus/pci/devices" / port).exists():
                bridge(tree, port, vendor, path)
            path = (*path, port)
    return path


def test_a_device_at_a_root_port_has_no_switch(tree: HostTree) -> None:
    tree.function("0000:01:00.0", parents=ROOT_PORT)
    assert attributes(tree, "0000:01:00.0") == {}


def test_the_nearest_switch_and_those_above_it_are_named_by_their_upstream_ports(tree: HostTree) -> None:
    outer, inner = ("0000:01:00.0", "0000:02:00.0", BROADCOM), ("0000:03:00.0", "0000:04:01.0", BROADCOM)
    tree.function("0000:05:00.0", parents=below(tree, outer, inner))
    assert attributes(tree, "0000:05:00.0") == {
        "launcherkit.io/pcieSwitch": "0000:03:00.0",
        "launcherkit.io/pcieSwitch0": "0000:01:00.0",
        "launcherkit.io/pcieSwitch1": "0000:03:00.0",
    }


def test_a_bridge_to_conventional_pci_is_no_switch(tree: HostTree) -> None:
    bridge(tree, "0000:01:00.0", BROADCOM, ROOT_PORT)
    tree.function("0000:02:00.0", parents=(*ROOT_PORT, "0000:01:00.0"))
    switch = ("0000:03:00.0", "0000:04:00.0", BROADCOM)
    path = below(tree, switch, root=("pci0000:40", "0000:40:01.0"))
    bridge(tree, "0000:05:00.0", BROADCOM, path)
    tree.function("0000:06:00.0", parents=(*path, "0000:05:00.0"))
    assert attributes(tree, "0000:02:00.0") == {}
    assert attributes(tree, "0000:06:00.0")["launcherkit.io/pcieSwitch"] == "0000:03:00.0"


def test_the_root_complex_of_a_vmd_is_no_switch(tree: HostTree) -> None:
    path = ("pci0000:00", "0000:00:0e.0", "pci10000:e0", "10000:e0:06.0")
    tree.function("10000:e1:00.0", class_code=0x010802, driver="nvme", parents=path)
    tree.function("10000:e4:00.0", parents=below(tree, ("10000:e2:00.0", "10000:e3:00.0", BROADCOM), root=path))
    assert attributes(tree, "10000:e1:00.0") == {}
    assert attributes(tree, "10000:e4:00.0")["launcherkit.io/pcieSwitch"] == "10000:e2:00.0"


def test_a_switch_that_is_part_of_a_card_is_not_the_one_that_it_shares(tree: HostTree) -> None:
    board = "0000:01:00.0"
    own = below(tree, (board, "0000:02:00.0", BROADCOM), ("0000:03:00.0", "0000:04:00.0", AMD))
    tree.function("0000:05:00.0", vendor=AMD, parents=own)
    audio = (*own[:-1], "0000:04:01.0")
    bridge(tree, audio[-1], AMD, audio[:-1])
    tree.function("0000:06:00.0", vendor=AMD, class_code=AUDIO, parents=audio)
    tree.function(
        "0000:07:00.0", vendor=MELLANOX, class_code=NIC, parents=below(tree, (board, "0000:02:08.0", BROADCOM))
    )
    for address in ("0000:05:00.0", "0000:07:00.0"):
        assert attributes(tree, address)["launcherkit.io/pcieSwitch"] == board


def test_a_switch_in_a_network_card_with_a_gpu_below_it_is_shared(tree: HostTree) -> None:
    """ConnectX-8 and BlueField have one that others use."""
    switch = "0000:01:00.0"
    nic, gpu = (below(tree, (switch, f"0000:02:0{port}.0", MELLANOX)) for port in (0, 1))
    tree.function("0000:03:00.0", vendor=MELLANOX, class_code=NIC, parents=nic)
    tree.vf("0000:03:00.0", "0000:03:01.0", vendor=MELLANOX, class_code=NIC)
    tree.function("0000:04:00.0", vendor=NVIDIA, parents=gpu)
    for address in ("0000:03:00.0", "0000:03:01.0", "0000:04:00.0"):
        assert attributes(tree, address)["launcherkit.io/pcieSwitch"] == switch


def test_two_cards_below_a_switch_of_their_vendor_share_it(tree: HostTree) -> None:
    switch = "0000:01:00.0"
    for port in (0, 1):
        path = below(tree, (switch, f"0000:02:0{port}.0", MELLANOX))
        tree.function(f"0000:0{port + 3}:00.0", vendor=MELLANOX, class_code=NIC, parents=path)
    assert attributes(tree, "0000:03:00.0") == attributes(tree, "0000:04:00.0") != {}


def test_a_virtual_function_has_the_switches_of_its_card_and_not_its_own_one(tree: HostTree) -> None:
    path = below(tree, ("0000:01:00.0", "0000:02:00.0", BROADCOM), ("0000:03:00.0", "0000:04:00.0", MELLANOX))
    tree.function("0000:05:00.0", vendor=MELLANOX, class_code=NIC, parents=path)
    vf = tree.vf("0000:05:00.0", "0000:05:02.0", vendor=MELLANOX, class_code=NIC)
    assert vf.parent == tree.path("0000:05:00.0").parent
    assert attributes(tree, "0000:05:02.0") == attributes(tree, "0000:05:00.0")
    assert attributes(tree, "0000:05:02.0")["launcherkit.io/pcieSwitch"] == "0000:01:00.0"


# Trees at random.

SHAPE = st.recursive(st.just(()), lambda inner: st.lists(inner, min_size=1, max_size=3).map(tuple), max_leaves=8)


def built(
    tree: HostTree, shape: tuple[object, ...], path: tuple[str, ...], above: list[str], free: Iterator[int]
) -> Iterator[tuple[str, list[str]]]:
    """Each endpoint of a tree, with the switches above it: a tuple is a switch, an empty one a GPU or a NIC."""
    bus = next(free)
    upstream = f"0000:{bus:02x}:00.0"
    if not shape:
        vendor, class_code = (NVIDIA, GPU) if bus % 2 else (MELLANOX, NIC)
        tree.function(upstream, vendor=vendor, class_code=class_code, parents=path)
        yield upstream, above
        return
    behind = next(free)
    bridge(tree, upstream, BROADCOM, path)
    for number, inner in enumerate(shape):
        downstream = f"0000:{behind:02x}:{number:02x}.0"
        bridge(tree, downstream, BROADCOM, (*path, upstream))
        assert isinstance(inner, tuple)
        yield from built(tree, inner, (*path, upstream, downstream), [*above, upstream], free)


@settings(max_examples=25)
@given(st.lists(SHAPE, min_size=1, max_size=3))
def test_of_any_tree_the_switches_are_those_that_it_was_built_with(shapes: list[tuple[object, ...]]) -> None:
    with tempfile.TemporaryDirectory(prefix="tree-") as folder:
        tree = HostTree(Path(folder))
        free = iter(range(1, 256))
        for number, shape in enumerate(shapes):
            root = f"pci0000:{number * 32:02x}"
            port = f"0000:{number * 32:02x}:01.0"
            bridge(tree, port, 0x8086, (root,))
            for address, above in built(tree, shape, (root, port), [], (bus for bus in free if bus % 32)):
                levels = {f"launcherkit.io/pcieSwitch{level}": switch for level, switch in enumerate(above[:4])}
                nearest = {"launcherkit.io/pcieSwitch": above[-1]} if above else {}
                assert attributes(tree, address) == nearest | levels


def test_on_a_recorded_hgx_each_network_card_shares_the_switch_of_two_gpus() -> None:
    facts = Host.from_snapshot(str(ROOT / "tests/data/hosts/hgx.json")).scan()
    switches = Switches(facts)
    cards: dict[object, list[int]] = {}
    for function in facts.functions.values():
        if function.vendor in (NVIDIA, MELLANOX) and function.class_code >> 16 in (2, 3):
            cards.setdefault(switches.attributes(function)["launcherkit.io/pcieSwitch"], []).append(function.vendor)
    assert {switch: sorted(vendors) for switch, vendors in cards.items()} == {
        f"0000:{bus}:00.0": [NVIDIA, NVIDIA, MELLANOX] for bus in ("01", "41", "81", "a1")
    }
