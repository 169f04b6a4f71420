"""The limit of locked memory against what libvirt asks for."""

from __future__ import annotations

from dataclasses import replace

import pytest

from launcherkit.doctor.facts import Process
from launcherkit.doctor.memlock import libvirt_need
from tests.doctor.known import (
    GIB,
    GUEST,
    MIB,
    finding,
    findings,
    gathered,
    healthy_host,
    host_facts,
    of_vm,
    vm_facts,
)


def process(soft: int | None, hard: int | None = -1, *, may_raise: bool = False, may_lock: bool = False) -> Process:
    return Process("this process", soft, soft if hard == -1 else hard, may_raise, may_lock)


@pytest.mark.parametrize(
    ("changes", "devices", "limit"),
    [
        ({}, 1, 17 * GIB),
        ({}, 3, 17 * GIB),
        ({"viommu": True}, 1, 17 * GIB),
        ({"viommu": True}, 3, 49 * GIB),
        ({"other_memory_lockers": 1}, 2, 33 * GIB),
        ({"other_memory_lockers": 1, "viommu": True}, 2, 49 * GIB),
        ({"hard_limit": 20 * GIB, "viommu": True}, 3, 20 * GIB),
        ({"locked": True}, 1, None),
    ],
)
def test_libvirt_counts_ram_once_or_with_a_viommu_once_a_device(
    changes: dict[str, object], devices: int, limit: int | None
) -> None:
    need = libvirt_need(replace(GUEST, **changes), devices=devices)  # type: ignore[arg-type]
    assert need is not None
    assert need.limit == limit


def test_libvirt_sets_nothing_without_devices_or_memory() -> None:
    assert libvirt_need(GUEST, devices=0) is None
    assert libvirt_need(replace(GUEST, memory=None), devices=1) is None


def test_the_limit_of_a_container_fails_and_says_what_helps() -> None:
    found = finding(vm_facts(gathered=gathered(process=process(8 * MIB))), "memlock")
    assert found.status == "fail"
    assert "17 GiB" in found.seen
    assert "limit 8 MiB" in found.seen
    assert "SYS_RESOURCE" in found.remedy
    assert "prlimit --pid <containerd>" in found.remedy


def test_ipc_lock_alone_is_not_enough_for_libvirt() -> None:
    found = finding(vm_facts(gathered=gathered(process=process(8 * MIB, may_lock=True))), "memlock")
    assert found.status == "fail"
    assert "IPC_LOCK alone doesn't help libvirt" in found.seen


@pytest.mark.parametrize("good", [process(8 * MIB, may_raise=True), process(None), process(17 * GIB)])
def test_sys_resource_or_a_high_limit_will_do(good: Process) -> None:
    assert finding(vm_facts(gathered=gathered(process=good)), "memlock").status == "ok"


def test_a_byte_too_few_is_too_few() -> None:
    assert finding(vm_facts(gathered=gathered(process=process(17 * GIB - 1))), "memlock").status == "fail"


def test_a_low_soft_limit_below_a_high_hard_one_is_raised_by_libvirt() -> None:
    found = finding(vm_facts(gathered=gathered(process=process(8 * MIB, None))), "memlock")
    assert found.status == "ok"
    assert "limit none, soft 8 MiB" in found.seen


def test_what_a_viommu_would_need_is_reported() -> None:
    found = finding(vm_facts(), "memlock")
    assert "with a vIOMMU 33 GiB (2 x 16 GiB RAM + 1 GiB)" in found.seen


def test_a_viommu_multiplies_the_need_by_the_devices() -> None:
    enough_without = gathered(process=process(17 * GIB))
    assert finding(vm_facts(gathered=enough_without), "memlock").status == "ok"
    found = finding(vm_facts(gathered=enough_without, guest=replace(GUEST, viommu=True)), "memlock")
    assert found.status == "fail"
    assert "33 GiB (2 x 16 GiB RAM + 1 GiB)" in found.seen


def test_an_iommu_that_libvirt_can_not_see_is_warned_of() -> None:
    found = findings(vm_facts(guest=replace(GUEST, hidden_viommu=True)), "memlock")
    assert [each.status for each in found] == ["ok", "warn"]
    assert "33 GiB" in found[1].remedy


def test_a_locked_domain_needs_no_limit_at_all() -> None:
    guest = replace(GUEST, locked=True)
    assert finding(vm_facts(guest=guest, gathered=gathered(process=process(64 * GIB))), "memlock").status == "fail"
    assert finding(vm_facts(guest=guest, gathered=gathered(process=process(None))), "memlock").status == "ok"


def test_ppc64_is_reckoned_otherwise() -> None:
    assert finding(vm_facts(guest=replace(GUEST, arch="ppc64le")), "memlock").status == "skipped"


def test_a_vm_without_devices_locks_nothing() -> None:
    host = healthy_host()
    subject = of_vm(host, attached=(), groups=())
    found = finding(vm_facts(host, subject=subject, guest=replace(GUEST, vfio_devices=0)), "memlock")
    assert found.status == "skipped"


def test_without_a_domain_a_small_limit_is_warned_of_on_a_host() -> None:
    assert finding(host_facts(healthy_host()), "memlock").status == "ok"
    assert finding(host_facts(healthy_host(), process=process(8 * MIB)), "memlock").status == "warn"
    assert finding(host_facts(healthy_host(), process=process(64 * GIB)), "memlock").status == "warn"
    assert finding(host_facts(healthy_host(), process=process(None)), "memlock").status == "ok"


def test_in_a_container_with_devices_a_tiny_limit_fails_without_a_domain_too() -> None:
    small = gathered({"container": True}, process=process(8 * MIB))
    assert finding(vm_facts(guest=None, gathered=small), "memlock").status == "fail"


def test_a_snapshot_still_tells_the_need() -> None:
    found = finding(vm_facts(gathered=None), "memlock")
    assert found.status == "skipped"
    assert "libvirt will ask for 17 GiB" in found.seen


def test_limits_that_can_not_be_read_are_skipped() -> None:
    assert finding(vm_facts(gathered=gathered(process=None)), "memlock").status == "skipped"
