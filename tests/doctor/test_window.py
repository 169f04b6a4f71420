"""Do the large BARs fit into the guest's 64-bit window (P5)?"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from launcherkit.doctor.window import bytes_of_bars
from launcherkit.model.address_space import AddressSpace
from launcherkit.model.host import Bar, HostFacts
from tests.doctor.known import GIB, GPU, GUEST, MIB, finding, gathered, healthy_host, host_facts, vm_facts
from tests.support.facts import at, detail, facts, function

PREFETCHABLE_64 = 0x14220C


def bar(size: int, *, line: int = 1, flags: int = PREFETCHABLE_64) -> Bar:
    return Bar(line, 1 << 44, (1 << 44) + size - 1, flags)


def host_with(*bars: Bar) -> HostFacts:
    return healthy_host()._replace(details={at(GPU): detail(resources=bars)})


def test_only_prefetchable_64_bit_memory_counts_and_roms_do_not() -> None:
    bars = [
        bar(256 * MIB),
        bar(32 * MIB, line=3),
        bar(16 * MIB, line=0, flags=0x40200),
        bar(GIB, line=2, flags=0x140204),
        bar(128, line=5, flags=0x40101),
        bar(512 * 1024, line=6, flags=0x46200),
        bar(64 * GIB, line=7),
    ]
    assert bytes_of_bars(bars) == 64 * GIB + 288 * MIB


def test_each_is_rounded_up_to_a_power_of_two() -> None:
    assert bytes_of_bars([bar(3 * GIB), bar(GIB, line=3)]) == 5 * GIB


@pytest.mark.parametrize(
    ("topology", "size", "status"),
    [
        ("pcie", 32 * GIB, "ok"),
        ("pcie", 64 * GIB, "warn"),
        ("pci", 2 * GIB, "ok"),
        ("pci", 4 * GIB, "warn"),
        ("other", 4 * GIB, "skipped"),
    ],
)
def test_the_default_window_of_the_machine_decides(topology: str, size: int, status: str) -> None:
    found = finding(vm_facts(host_with(bar(size)), topology=topology), "guest-window")
    assert found.status == status


@pytest.mark.parametrize(("topology", "largest"), [("pcie", 32 * GIB), ("pci", 2 * GIB)])
def test_a_little_more_than_the_default_window_does_not_fit(topology: str, largest: int) -> None:
    host = host_with(bar(largest), bar(MIB, line=3))
    assert finding(vm_facts(host, topology=topology), "guest-window").status == "warn"


def test_too_large_bars_get_the_element_to_write() -> None:
    found = finding(vm_facts(host_with(bar(64 * GIB))), "guest-window")
    assert "<pcihole64 unit='GiB'>128</pcihole64>" in found.remedy
    assert "<maxphysaddr mode='passthrough'/> into <cpu>" in found.remedy


@pytest.mark.parametrize(
    ("space", "status", "firmware"),
    [
        ({"uefi": True}, "ok", "OVMF makes it 8 TiB, an eighth of 46 bits of addresses"),
        ({"uefi": True, "bits": 40}, "warn", "OVMF makes it 32 GiB: the guest's CPU doesn't have the host's"),
        ({"uefi": True, "huge_pages": False}, "warn", "OVMF makes it 128 GiB: the guest's CPU has no 1 GiB pages"),
        ({}, "ok", "SeaBIOS puts them above all memory, as far as the guest's CPU can address: 46 bits"),
        ({"bits": 38}, "warn", "SeaBIOS puts them above all memory, as far as the guest's CPU can address: 38 bits"),
    ],
    ids=str,
)
def test_what_firmware_will_do_is_said_before_the_start(space: dict[str, Any], status: str, firmware: str) -> None:
    said = AddressSpace(256 * GIB, None, can_pass_bits=False, memory=16 * GIB, huge_pages=True, uefi=False)
    guest = replace(GUEST, window=256 * GIB)
    of = vm_facts(host_with(bar(256 * GIB)), guest=guest, space=said._replace(**space))
    found = finding(of, "guest-window")
    assert found.status == status
    assert firmware in found.seen


@pytest.mark.parametrize("uefi", [True, False])
def test_where_the_hosts_address_bits_are_unknown_no_size_is_said(uefi: bool) -> None:
    space = AddressSpace(256 * GIB, None, can_pass_bits=False, memory=16 * GIB, huge_pages=True, uefi=uefi)
    guest = replace(GUEST, window=256 * GIB)
    unknown = gathered({"address_bits": None})
    found = finding(vm_facts(host_with(bar(256 * GIB)), guest=guest, space=space, gathered=unknown), "guest-window")
    assert found.status == "ok"
    assert ("OVMF makes it an eighth of what" if uefi else "as far as the guest's CPU can address") in found.seen


def test_an_explicit_window_decides_whatever_the_default() -> None:
    host = host_with(bar(64 * GIB))
    small = finding(vm_facts(host, guest=replace(GUEST, window=32 * GIB)), "guest-window")
    large = finding(vm_facts(host, guest=replace(GUEST, window=64 * GIB)), "guest-window")
    assert (small.status, large.status) == ("fail", "ok")


def test_the_bars_of_all_devices_are_added_up() -> None:
    host = facts(
        function(GPU, group=44),
        function("0000:01:00.0", group=12),
        details={GPU: detail(resources=(bar(32 * GIB),)), "0000:01:00.0": detail(resources=(bar(32 * GIB),))},
    )
    from tests.doctor.known import of_vm

    subject = of_vm(host, GPU, "0000:01:00.0")
    assert "64 GiB" in finding(vm_facts(host, subject=subject), "guest-window").seen
    alone = finding(host_facts(host), "guest-window")
    assert alone.status == "ok"
    assert "the largest, 0000:e1:00, needs 32 GiB" in alone.seen


def test_arms_virt_has_half_a_terabyte() -> None:
    guest = replace(GUEST, arch="aarch64")
    found = finding(vm_facts(host_with(bar(256 * GIB)), guest=guest), "guest-window")
    assert (found.status, "512 GiB" in found.seen) == ("ok", True)


def test_a_host_of_which_no_bars_are_known_is_skipped() -> None:
    found = finding(vm_facts(host_with(), gathered=gathered()), "guest-window")
    assert found.status == "skipped"
