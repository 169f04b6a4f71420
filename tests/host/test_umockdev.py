"""Recordings of umockdev are read as the machine they were taken from."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcherkit.errors import UNREADABLE_FILE, LauncherkitError
from launcherkit.host.facts import scan_all
from launcherkit.host.query import read_needed
from launcherkit.host.source import Host
from launcherkit.host.tree import LARGE
from launcherkit.host.umockdev import parse_recording
from launcherkit.model.address import PciAddress
from tests.support.errors import raises_code

SERVER = Path(__file__).parent.parent / "data" / "rack-server.umockdev"
NIC = PciAddress(0, 4, 0, 0)

CARD = r"""
P: /devices/pci0000:e0/0000:e0:01.1/0000:e1:00.0
E: DRIVER=vfio-pci
E: PCI_CLASS=30000
E: PCI_ID=10DE:2204
E: PCI_SLOT_NAME=0000:e1:00.0
E: PCI_SUBSYS_ID=1458:403B
E: SUBSYSTEM=pci
H: config=DE10042200000000A100000300008000
A: numa_node=1\n
A: label=a \"b\" \\n \303\244\n
L: iommu_group=../../../../kernel/iommu_groups/44

P: /devices/pci0000:e0/0000:e0:01.1/0000:e1:00.1
E: PCI_CLASS=40300
E: PCI_ID=10DE:1AEF
E: SUBSYSTEM=pci
L: driver=../../../../bus/pci/drivers/snd_hda_intel
L: iommu_group=../../../../kernel/iommu_groups/44
A: class=0x040300\n
A: vendor=0x10de\n
A: device=0x1aef\n

P: /devices/virtual/vfio/44
N: vfio/44
E: SUBSYSTEM=vfio
"""


def test_a_real_server_is_read() -> None:
    facts = Host.from_umockdev(SERVER).scan()
    assert len(facts.functions) == 47
    nic, detail = facts.functions[NIC], facts.details[NIC]
    assert (nic.vendor, nic.device, nic.driver, nic.numa_node) == (0x8086, 0x10FB, "ixgbe", 0)
    assert detail.parents == ("pci0000:00", "0000:00:02.2")
    assert (detail.sriov_numvfs, detail.sriov_totalvfs, detail.virtfns) == (0, 63, ())
    assert detail.reset_methods == ("flr", "pm", "bus")
    assert detail.resources[0].size == 0x100000
    assert {address for address, one in facts.details.items() if one.sriov_totalvfs} == {NIC, PciAddress(0, 4, 0, 1)}
    port = facts.functions[PciAddress(0, 0, 2, 2)]
    assert port.is_bridge_by_class
    assert facts.details[port.address].header_type == 1
    assert facts.nodes == frozenset({"/dev/vfio/vfio"})


def test_groups_drivers_and_nodes_are_derived() -> None:
    tree = parse_recording(CARD)
    facts = scan_all(tree)
    gpu, audio = PciAddress(0, 0xE1, 0, 0), PciAddress(0, 0xE1, 0, 1)
    assert facts.groups == {44: (gpu, audio)}
    assert facts.functions[gpu].driver == "vfio-pci"
    assert facts.functions[gpu].subsystem_device == 0x403B
    assert facts.functions[audio].driver == "snd_hda_intel"
    assert facts.functions[audio].class_code == 0x040300
    assert facts.details[gpu].header_type == 0
    assert facts.nodes == frozenset({"/dev/vfio/44"})
    assert tree.names("sys/kernel/iommu_groups/44/devices") == [str(gpu), str(audio)]


def test_reading_by_need_works_on_a_recording() -> None:
    facts = read_needed(parse_recording(CARD), [PciAddress(0, 0xE1, 0, 1)], [])
    assert len(facts.functions) == 2
    assert len(facts.groups[44]) == 2


def test_escapes_are_undone() -> None:
    label = parse_recording(CARD).read("sys/devices/pci0000:e0/0000:e0:01.1/0000:e1:00.0/label")
    assert label == 'a "b" \\n ä\n'.encode()


def test_an_attribute_without_an_escape_is_its_own_text() -> None:
    assert parse_recording("P: /devices/x\nA: label=plain text\n").read("sys/devices/x/label") == b"plain text"


def test_without_nodes_nothing_is_known_of_them() -> None:
    assert scan_all(parse_recording("P: /devices/x\nN: ttyS0\n")).nodes is None


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("A: x=1", "line 1: stands before the first device"),
        ("P: /devices/a\nX: y", "line 2: 'X: y' is not one of"),
        ("P: /sys/a", "line 1: '/sys/a' is not a path below /devices"),
        ("P: /devices/a/../../etc", "is not a path below /devices"),
        ("P: /devices/a\nA: novalue", "line 2: 'novalue' is not of the form name=value"),
        ("P: /devices/a\nH: config=0g", "line 2: the value of 'config' is not hex"),
        ("P: /devices/a\nA: x=1\nA: x/y=1", "line 3: 'x/y' can't be a file"),
        ("P: /devices/a\nA: x=1\nP: /devices/a/x", "line 3: '/devices/a/x' lies below an attribute"),
        ("P: /devices/a\nN: vfio/../../x", "line 2: "),
        ("", "holds no device"),
    ],
)
def test_what_is_wrong_is_reported_with_its_line(text: str, line: str) -> None:
    with pytest.raises(LauncherkitError) as caught:
        parse_recording(text, "x.umockdev")
    assert caught.value.code == "LK503"
    assert caught.value.message.startswith("x.umockdev: ")
    assert line in caught.value.message


def test_all_that_is_wrong_is_reported_at_once_up_to_twenty() -> None:
    for wrong, reported in ((3, 3), (1000, 20)):
        with pytest.raises(LauncherkitError) as caught:
            parse_recording("P: /devices/a\n" + "junk\n" * wrong)
        assert len(list(caught.value.leaves())) == reported


def test_a_missing_file_is_reported_as_such(tmp_path: Path) -> None:
    with raises_code(UNREADABLE_FILE, match=r"none\.umockdev: No such file"):
        Host.from_umockdev(tmp_path / "none.umockdev")


_line = st.builds(
    "{}: {}{}{}".format,
    st.sampled_from("PEAHLNSX"),
    st.sampled_from(
        ["/devices/", "/devices/pci0/0000:00:01.0", "SUBSYSTEM", "config", "a/b", "iommu_group", "driver", ""]
    ),
    st.sampled_from(["=", "/", ""]),
    st.text(max_size=12) | st.sampled_from(["pci", "mdev", "0000:00:02.0", "..", "driver", "\\", "\\777", "\\\\"]),
)


@given(st.lists(_line | st.text(max_size=20)).map("\n".join) | st.text())
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        tree = parse_recording(text)
    except LauncherkitError:
        return
    facts = scan_all(tree)
    assert read_needed(tree, facts.functions, []).functions == facts.functions


@pytest.mark.parametrize(
    ("text", "reported"),
    [
        ("P: /devices/x\n" + "\n" * 250_001, "more than 250000 lines or parts of paths"),
        ("P: /devices" + "/x" * 250_001, "more than 250000 lines or parts of paths"),
        ("P: /devices" + "/x" * 4096, "line 1: '/devices/x"),
        ("P: /devices/x\nL: driver=" + "../" * 4096, "line 2: the target of 'driver' is longer"),
        ("P: /devices/x\nA: " + "x/" * 4096 + "x=1", "line 2: 'x/x/"),
    ],
)
def test_what_would_take_much_memory_is_refused_before_it_does(text: str, reported: str) -> None:
    with pytest.raises(LauncherkitError) as caught:
        parse_recording(text)
    assert caught.value.code == "LK503"
    assert reported in caught.value.message


def test_an_attribute_of_escapes_takes_little_more_memory_than_its_text() -> None:
    text = "P: /devices/pci0000:00\nA: a=" + "\\1" * 2_000_000
    tracemalloc.start()
    try:
        tree = parse_recording(text)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 10 * len(text)
    assert tree.read("sys/devices/pci0000:00/a", LARGE) == b"\1" * LARGE
