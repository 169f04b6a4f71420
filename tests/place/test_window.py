"""Room for BARs in the guest's 64-bit PCI window (P5)."""

from __future__ import annotations

from pathlib import Path
from typing import TypeAlias

import pytest

from launcherkit.host.source import Host
from launcherkit.model.address import GuestAddress
from launcherkit.model.address_space import AddressSpace
from launcherkit.model.domain import DomainFacts, ExistingHostdev, PciRoot
from launcherkit.model.host import Bar
from launcherkit.model.plan import Attachment, GuestDevice, Window
from launcherkit.model.window import GIB, MIB, prefetchable, window_beyond_default, window_need
from launcherkit.place.window import plan_window
from tests.support.facts import at, detail, facts, function
from tests.support.hosttree import HostTree

RESOURCES = Path(__file__).parents[1] / "data" / "resource"
PASSED = AddressSpace(None, None, True, 8 * GIB, True, True)
"""A CPU that can have the host's address bits."""
MODEL = AddressSpace(None, 40, False, 8 * GIB, True, True)
"""A CPU of a model, as QEMU makes it."""
PREFETCHABLE = 0x14220C
CARD = "0000:01:00.0"


Guest: TypeAlias = tuple[DomainFacts, AddressSpace]


def domain(space: AddressSpace, machine: str = "x86_64/q35", topology: PciRoot = "pcie") -> Guest:
    nothing = frozenset[str]()
    return DomainFacts(topology, machine, (), frozenset(), False, False, nothing, (), frozenset(), None), space


def plan(*sizes: int, guest: Guest, expanders: bool = False) -> tuple[Window | None, list[str]]:
    """For cards with one BAR each."""
    facts_of_guest, space = guest
    addresses = [f"0000:{bus:02x}:00.0" for bus in range(1, len(sizes) + 1)]
    details = {
        address: detail(resources=(Bar(0, 1 << 44, (1 << 44) + size - 1, PREFETCHABLE),))
        for address, size in zip(addresses, sizes, strict=True)
    }
    devices = [GuestDevice("pci", (Attachment(at(address), "primary", "", None, None),)) for address in addresses]
    host = facts(*map(function, addresses), details=details)
    needed = window_beyond_default(devices, facts_of_guest, host, expanders=expanders)
    if needed is None:
        return None, []
    window, notes = plan_window(needed, facts_of_guest, space)
    return window, [note.text for note in notes]


@pytest.mark.parametrize(
    ("card", "need"),
    [
        ("tesla-t4", 256 * MIB + 32 * MIB),
        ("a30", 32 * GIB + 32 * MIB),
        ("rtx-4090", 32 * GIB + 32 * MIB),
        ("a100-sxm4-40gb", 64 * GIB + 32 * MIB),
        ("h100-pcie", 128 * GIB + 48 * MIB),
        ("rtx-5090", 256 * MIB + 32 * MIB + 256 * MIB + 32 * MIB + MIB),  # the last one is its VFs' 256 KiB
    ],
)
def test_what_cards_need_by_their_resource_files(tmp_path: Path, card: str, need: int) -> None:
    tree = HostTree(tmp_path)
    tree.function("0000:01:00.0", driver="vfio-pci", files={"resource": (RESOURCES / card).read_text()})
    known = Host.from_sysfs(tmp_path).facts([at("0000:01:00.0")])
    assert window_need([prefetchable(known.details[at("0000:01:00.0")].resources)]) == need


def test_bridges_begin_at_a_multiple_of_the_largest_bar() -> None:
    """Eight H100: each has a little more than 128 GiB, so all but the last take 256."""
    card = [16 * MIB, 128 * GIB, 32 * MIB]
    assert window_need([card] * 8) == 7 * 256 * GIB + 128 * GIB + 48 * MIB
    assert window_need([[256 * MIB, 32 * MIB], card]) == 128 * GIB + 48 * MIB + 208 * MIB + 288 * MIB
    assert window_need([[], []]) == 0


def test_the_line_of_vf_bars_is_for_all_vfs_together() -> None:
    twenty = Bar(9, 1 << 44, (1 << 44) + 20 * GIB - 1, PREFETCHABLE)
    assert prefetchable(twenty._replace(line=line) for line in range(7, 13)) == [20 * GIB] * 6
    assert prefetchable([twenty._replace(line=5)]) == [32 * GIB]
    assert prefetchable([twenty._replace(line=6), twenty._replace(line=13), twenty._replace(flags=0x40200)]) == []


@pytest.mark.parametrize(("size", "hole"), [(16, None), (32, 64), (64, 128), (128, 256), (256, 512)])
def test_q35_has_32_gib(size: int, hole: int | None) -> None:
    """T4 and the like need nothing; A30, A100, H100, and MI300X with its 256 GiB do."""
    window, notes = plan(size * GIB, guest=domain(PASSED))
    assert (window.hole if window else None) == (hole and hole * GIB)
    assert window is None or (window.pass_bits and window.root == "pcie-root")
    assert notes == []


def test_hd_audio_does_not_count_so_that_its_bars_need_not_be_read() -> None:
    bars = {
        address: detail(resources=(Bar(0, 1 << 44, (1 << 44) + 64 * GIB - 1, PREFETCHABLE),)) for address in (CARD,)
    }
    devices = [GuestDevice("pci", (Attachment(at(CARD), "primary", "", None, None),))]
    for class_code, counts in ((0x030000, True), (0x040300, False)):
        host = facts(function(CARD, class_code=class_code), details=bars)
        assert bool(window_beyond_default(devices, domain(PASSED)[0], host, expanders=False)) is counts


def test_what_the_guest_does_not_see_needs_no_room() -> None:
    """S1's `reserve`, and `<address type='unassigned'/>`."""
    bars = {CARD: detail(resources=(Bar(0, 1 << 44, (1 << 44) + 64 * GIB - 1, PREFETCHABLE),))}
    host = facts(function(CARD), details=bars)
    unassigned = ExistingHostdev("pci", at(CARD), None, None, True, None, None, None)
    at_a_place = unassigned._replace(guest=GuestAddress(0, 1, 0, 0))
    by_libvirt = unassigned._replace(placed=False)
    for hostdev, counts in ((unassigned, False), (at_a_place, True), (by_libvirt, True)):
        devices = [GuestDevice("pci", (Attachment(at(CARD), "primary", "", None, 0),))]
        document = domain(PASSED)[0]._replace(hostdevs=(hostdev,))
        assert bool(window_beyond_default(devices, document, host, expanders=False)) is counts
    reserved = [GuestDevice("pci", (Attachment(at(CARD), "reserved", "", None, None),))]
    assert window_beyond_default(reserved, domain(PASSED)[0], host, expanders=False) is None


@pytest.mark.parametrize(("size", "hole"), [(GIB // 2, None), (2 * GIB, 4)])
def test_pc_has_2_gib(size: int, hole: int | None) -> None:
    window, _ = plan(size, guest=domain(PASSED, "x86_64/pc", "pci"))
    assert (window.hole if window else None) == (hole and hole * GIB)
    assert window is None or window.root == "pci-root"


def test_expanders_have_windows_of_their_own_cut_from_it() -> None:
    window, _ = plan(128 * GIB, guest=domain(PASSED), expanders=True)
    assert window is not None
    assert window.hole == 512 * GIB


def test_what_the_document_says_stays() -> None:
    enough = PASSED._replace(hole=1024 * GIB, bits=None, can_pass_bits=False)
    assert plan(128 * GIB, guest=domain(enough)) == (Window(128 * GIB, None, False, "pcie-root"), [])
    window, (note,) = plan(128 * GIB, guest=domain(enough._replace(hole=64 * GIB)))
    assert window is not None
    assert window.hole is None
    assert "128 GiB" in note
    assert "64 GiB" in note


@pytest.mark.parametrize(
    ("memory", "cards", "written"), [(8, 1, True), (8, 8, False), (800, 1, False), (None, 1, True)]
)
def test_a_window_that_the_cpu_cannot_address_is_not_written(memory: int | None, cards: int, written: bool) -> None:
    """QEMU 7.2: `phys-bits too low (40)`, and the guest doesn't start."""
    space = MODEL._replace(memory=None if memory is None else memory * GIB)
    window, (note,) = plan(*[128 * GIB] * cards, guest=domain(space))
    assert window is not None
    assert (window.hole is not None) is written
    assert not window.pass_bits
    assert "<maxphysaddr mode='passthrough'/>" in note
    assert ("X-PciMmio64Mb" in note) is written


def test_with_other_firmware_than_uefi_nothing_is_said_of_ovmf() -> None:
    assert plan(128 * GIB, guest=domain(MODEL._replace(uefi=False)))[1] == []


def test_without_1_gib_pages_ovmf_has_128_gib() -> None:
    poor = PASSED._replace(huge_pages=False)
    assert plan(64 * GIB, guest=domain(poor))[1] == []
    assert "pdpe1gb" in plan(128 * GIB, guest=domain(poor))[1][0]


def test_arms_virt_has_512_gib() -> None:
    virt = domain(MODEL, "aarch64/virt-9.2")
    assert plan(128 * GIB, guest=virt) == (None, [])
    window, (note,) = plan(*[256 * GIB] * 4, guest=virt)
    assert window is None
    assert "highmem-mmio-size=2048G" in note
    assert plan(*[256 * GIB] * 4, guest=domain(MODEL._replace(hole=4096 * GIB), "aarch64/virt"))[1] == []


def test_other_machines_are_left_alone() -> None:
    assert plan(1024 * GIB, guest=domain(PASSED, "s390x/s390-ccw-virtio", "other")) == (None, [])
    assert plan(1024 * GIB, guest=domain(PASSED, "riscv64/virt")) == (None, [])
