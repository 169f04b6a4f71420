"""Machines of the lab as people write them: what of one is wrong, and what QEMU is told of one that isn't."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

from launcherkit_lab.boot import boot_script, modules
from launcherkit_lab.description import KINDS, Description, DescriptionError, Function, read_description, ready
from launcherkit_lab.devices import options as qemu_options
from launcherkit_lab.driver.build import IDS, NAME, VFS
from launcherkit_lab.faults import FAULTS, IMPOSSIBLE
from launcherkit_lab.plugged import device_options, function_id
from launcherkit_lab.qmp import addresses

PAGE = (Path(__file__).parents[2] / "docs" / "how-to" / "lab.md").read_text()
DEVICE = "/sys/bus/pci/devices/0000:01:00.0"
CARD = "cards: [{name: gpu, functions: [%s]}]\n"


def described(folder: Path, text: str) -> Description:
    (folder / "my.yaml").write_text(text)
    return read_description(str(folder / "my.yaml"))


def options(folder: Path, text: str) -> list[str]:
    return [*device_options(described(folder, text))]


@pytest.mark.parametrize("name", ready())
def test_a_ready_machine_has_each_device_behind_a_parent_that_comes_before_it(name: str) -> None:
    made = {"pcie.0"}
    seen: Counter[tuple[str, str]] = Counter()
    for option in device_options(read_description(name)):
        values = dict(word.split("=", 1) for word in option.split(",")[1:])
        if bus := values.get("bus"):
            assert bus.removesuffix(".0") in made | {"pcie"}, option
            if "addr" in values:
                seen[bus, values["addr"]] += 1
        made.add(values.get("id", ""))
    assert seen
    assert max(seen.values()) == 1


def test_the_ready_machines_say_what_they_are() -> None:
    assert set(ready()) >= {"workstation", "rtx2", "hgx", "nvme-vfs", "nic-vfs", "vgpu", "memory-nodes"}
    assert all(read_description(name).about for name in ready())


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (CARD % "{kind: gpu}", r"cards\[0\]\.functions\[0\]\.kind: gpu is none; there are display,"),
        (CARD % "{kind: display, vendor: ffff}", "ffff is read where there is no function"),
        (CARD % "{kind: display, device: ffff}", "ffff is read where there is no function"),
        (CARD % "{kind: audio, bar: 1G}", "has no option for the size of its BAR"),
        (CARD % "{kind: compute, bar: 100M}", "100M is no power of two"),
        (CARD % "{kind: compute, bar: 1T}", "1T is no power of two"),
        (CARD % "{kind: display, bar: 1G}", "from 16M to 256M"),
        (CARD % "{kind: display, vfs: 2}", "secondary-vga has no SR-IOV"),
        (CARD % "{kind: nvme}, {kind: nvme, vfs: 2}", "is the first of its card"),
        (CARD % "{kind: nic, vfs: 8}", "igb has 7"),
        (CARD % "{kind: nvme, vfDriver: vfio-pci}", "there are no vfs"),
        (CARD % "{kind: nvme, vfs: 2, vfDriver: nvidia}, {kind: mdev-parent}", "a machine has one of the two"),
        (
            CARD % "{kind: nvme, vendor: 8086, device: '5845'}",
            r"functions\[0\]\.vendor: Input should be a valid string",
        ),
        (CARD % "{kind: nvme, vfz: 2}", "Extra inputs are not permitted"),
        (CARD % "", r"cards\[0\]\.functions: List should have at least 1"),
        ("cards: [{name: gpu, at: there, functions: [{kind: usb}]}]", "there is no root complex or switch"),
        ("switches: [{name: s, at: there}]", r"switches\[0\]\.at: there is no root complex"),
        ("switches: [{name: first}]", "the name first is given 2 times"),
        ("processors: 4\nrootComplexes: [{name: a, node: 0}]", "processors: with root complexes"),
        ("processors: 1\nmemoryNodes: 1", "processors: with root complexes or memoryNodes there are 2"),
        ("memoryNodes: 1\nrootComplexes: [{name: a, node: 3}]", r"rootComplexes\[0\]\.node: 3 is none; the last is 2"),
        (
            "switches: [{name: s}]\ncards: [{name: gpu, at: s, group: g, functions: [{kind: usb}]}]",
            "Linux gives each card a group of its own",
        ),
        (
            "rootComplexes: [{name: a, node: 0}]\ncards: ["
            + ", ".join(f"{{name: {name}, group: g, functions: [{{kind: usb}}]}}" for name in ("b", "c, at: a"))
            + "]",
            "group g: its cards are at 2 root complexes",
        ),
        (
            "cards: [" + ", ".join(f"{{name: c{n}, group: g, functions: [{{kind: usb}}]}}" for n in range(9)) + "]",
            "group g: at most 8 cards",
        ),
        (
            "cards: [" + ", ".join(f"{{name: c{n}, functions: [{{kind: usb}}]}}" for n in range(27)) + "]",
            "first: a root complex has 26 slots, not 27",
        ),
        ("a: [", "no YAML"),
    ],
)
def test_what_is_wrong_is_reported_with_its_place(tmp_path: Path, text: str, expected: str) -> None:
    with pytest.raises(DescriptionError, match=expected):
        described(tmp_path, text)


def test_all_that_is_wrong_is_reported_at_once(tmp_path: Path) -> None:
    with pytest.raises(DescriptionError) as raised:
        described(tmp_path, CARD % "{kind: audio, bar: 1G}, {kind: gpu}")
    assert [line.split(": ")[1] for line in str(raised.value).splitlines()] == [
        "cards[0].functions[0].bar",
        "cards[0].functions[1].kind",
    ]


def test_a_file_that_is_not_there_is_reported_with_the_ready_machines() -> None:
    with pytest.raises(DescriptionError, match="one of the ready machines: hgx"):
        read_description("nowhere")


def test_cards_of_a_group_are_behind_functions_of_one_slot_without_acs(tmp_path: Path) -> None:
    card = "{name: %s, group: g, functions: [{kind: usb}]}"
    ports = [each for each in options(tmp_path, f"cards: [{card % 'a'}, {card % 'b'}]") if "root-port" in each]
    slots = [re.findall(r"addr=(0x\w+)\.(\d)", port)[0] for port in ports]
    assert slots == [("0x5", "0"), ("0x5", "1")]
    assert all("disable-acs=on" in port and "multifunction=on" in port for port in ports)
    alone = options(tmp_path, CARD % "{kind: usb}")[0]
    assert "disable-acs" not in alone
    assert "multifunction" not in alone


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        ("{kind: display, bar: 64M}", "vgamem_mb=64"),
        ("{kind: compute, bar: 2G}", "membar=2048M"),
        ("{kind: nvme, vfs: 3}", "sriov_max_vfs=3,sriov_vq_flexible=6,sriov_vi_flexible=3"),
        ("{kind: nvme, vendor: '8086'}", "use-intel-id=on"),
        ("{kind: nvme, device: '5845'}", "use-intel-id=on"),
        ("{kind: nvme, vendor: '8086', device: '5845'}", "use-intel-id=on"),
    ],
)
def test_qemu_is_told_of_sizes_vfs_and_ids(tmp_path: Path, function: str, expected: str) -> None:
    assert any(option.endswith(expected) for option in options(tmp_path, CARD % function))


def test_an_nvme_controller_with_qemus_own_ids_has_no_option_for_them(tmp_path: Path) -> None:
    assert not any("use-intel-id" in option for option in options(tmp_path, CARD % "{kind: nvme, vendor: 1b36}"))


@pytest.mark.parametrize(
    ("function", "ids", "is_renamed"),
    [
        ("{kind: display}", "1234:1111", False),
        ("{kind: nvme, device: '5845'}", "8086:5845", False),
        ("{kind: nvme, vendor: 1b36}", "1b36:0010", False),
        ("{kind: display, vendor: 10de}", "10de:1111", True),
        ("{kind: nvme, device: 20b0}", "1b36:20b0", True),
        ("{kind: compute, vendor: 10de, device: 20b0}", "10de:20b0", True),
    ],
)
def test_what_is_not_said_of_the_ids_is_qemus(tmp_path: Path, function: str, ids: str, is_renamed: bool) -> None:
    ((described_function,),) = [card.functions for card in described(tmp_path, CARD % function).cards]
    assert (described_function.ids, described_function.is_renamed) == (ids, is_renamed)


def test_each_function_of_a_card_of_several_says_so(tmp_path: Path) -> None:
    both = options(tmp_path, CARD % "{kind: usb}, {kind: usb}")[1:]
    assert all("multifunction=on" in option for option in both)


@pytest.mark.parametrize("kind", KINDS)
def test_a_kind_is_found_on_the_page_with_its_ids(kind: str) -> None:
    (row,) = re.findall(rf"^\| `{kind}` \|.*$", PAGE, re.MULTILINE)
    assert all(ids in row for ids in KINDS[kind].ids)
    assert KINDS[kind].device in row


def test_every_key_is_on_the_page() -> None:
    for model in (Description, Function):
        for name, field in model.model_fields.items():
            assert f"`{field.alias or name}`" in PAGE


def test_drivers_are_bound_in_order_and_vfs_are_made_before_theirs(tmp_path: Path) -> None:
    machine = described(tmp_path, CARD % "{kind: nvme, driver: nvme, vfs: 2, vfDriver: vfio-pci}, {kind: display}")
    named = {function_id(machine.cards[0], index): f"0000:01:00.{index}" for index in (0, 1)}
    lines = boot_script(machine, named, {}).splitlines()
    told = [line for line in lines if "0000:01" in line]
    assert told == [
        "bind 0000:01:00.0 nvme nvme",
        f"echo 0 >{DEVICE}/sriov_drivers_autoprobe",
        f"echo 2 >{DEVICE}/sriov_numvfs",
        f"for link in {DEVICE}/virtfn*; do bind $(basename $(readlink $link)) vfio-pci vfio-pci; done",
    ]


def test_functions_with_other_ids_are_found_anew_before_drivers_are_bound(tmp_path: Path) -> None:
    gpu, plain = "{kind: display, vendor: 10de, device: '2204', driver: vfio-pci}", "{kind: audio, driver: vfio-pci}"
    machine = described(tmp_path, CARD % f"{gpu}, {plain}")
    assert modules(machine) == (IDS,)
    named = {function_id(machine.cards[0], index): f"0000:01:00.{index}" for index in (0, 1)}
    lines = boot_script(machine, named, {IDS: Path("/cache/ids.ko")}).splitlines()
    assert lines[-5:] == [
        "insmod /cache/ids.ko ids=0000:01:00.0=10de:2204",
        f"echo 1 >{DEVICE}/remove",
        "echo 1 >/sys/bus/pci/rescan",
        "bind 0000:01:00.0 vfio-pci vfio-pci",
        "bind 0000:01:00.1 vfio-pci vfio-pci",
    ]


def test_a_machine_has_the_modules_that_its_functions_need(tmp_path: Path) -> None:
    assert modules(described(tmp_path, CARD % "{kind: nvme, vendor: '8086'}")) == ()
    assert modules(described(tmp_path, CARD % "{kind: mdev-parent}")) == (NAME,)
    assert modules(described(tmp_path, CARD % "{kind: mdev-parent, vendor: 10de}")) == (IDS, NAME)
    assert modules(described(tmp_path, CARD % "{kind: nvme, vfs: 2, vfDriver: vfio-pci}")) == ()
    assert modules(described(tmp_path, CARD % "{kind: nvme, vfs: 2, vfDriver: nvidia}")) == (VFS,)


def test_the_driver_of_vgpus_on_vfs_is_loaded_before_it_is_bound(tmp_path: Path) -> None:
    machine = described(tmp_path, CARD % "{kind: nvme, driver: nvme, vfs: 2, vfDriver: nvidia}")
    named = {function_id(machine.cards[0], 0): "0000:01:00.0"}
    lines = boot_script(machine, named, {VFS: Path("/cache/vfs.ko")}).splitlines()
    assert lines[-5:] == [
        "modprobe -a vfio_pci_core vfio_iommu_type1 && insmod /cache/vfs.ko",
        "bind 0000:01:00.0 nvme nvme",
        f"echo 0 >{DEVICE}/sriov_drivers_autoprobe",
        f"echo 2 >{DEVICE}/sriov_numvfs",
        f"for link in {DEVICE}/virtfn*; do bind $(basename $(readlink $link)) nvidia nvidia; done",
    ]


@pytest.mark.parametrize(("memory", "nodes"), [(2048, 0), (2049, 1), (1024, 6)])
def test_numa_nodes_have_all_the_memory_and_a_processor_each_or_none(memory: int, nodes: int) -> None:
    """Else QEMU would not start."""
    words = [*qemu_options(["pxb-pcie,numa_node=0"], memory, nodes)]
    assert sum(int(size) for size in re.findall(r"size=(\d+)M", " ".join(words))) == memory
    assert [("cpus=" in word) for word in words if word.startswith("node,")] == [True, True, *[False] * nodes]


@pytest.mark.parametrize("fault", [*FAULTS, *IMPOSSIBLE])
def test_a_fault_is_on_the_page(fault: str) -> None:
    assert f"`{fault}`" in PAGE.replace("`fault d3cold`", "`d3cold`")


def test_addresses_are_found_behind_bridges() -> None:
    function = {"qdev_id": "gpu.1", "bus": 65, "slot": 0, "function": 1}
    bridge = {"qdev_id": "port", "bus": 64, "slot": 2, "function": 0, "pci_bridge": {"bus": {}, "devices": [function]}}
    nameless = {"qdev_id": "", "bus": 0, "slot": 31, "function": 3}
    assert addresses([{"devices": [nameless, bridge]}]) == {"port": "0000:40:02.0", "gpu.1": "0000:41:00.1"}
