"""Is there an IOMMU, and is VFIO ready?"""

from __future__ import annotations

import pytest

from tests.doctor.known import finding, findings, gathered, healthy_host, vm_facts
from tests.support.facts import NVME, card, facts, function


def test_groups_are_counted() -> None:
    found = finding(vm_facts(), "iommu-groups")
    assert (found.status, found.seen) == ("ok", "1 group")


NO_GROUPS = facts(function("0000:e1:00.0", group=None))


@pytest.mark.parametrize(
    ("tables", "remedy"),
    [
        (frozenset({"APIC", "DMAR"}), "intel_iommu=on"),
        (frozenset({"APIC", "IVRS"}), "amd_iommu=off"),
        (frozenset({"APIC"}), "firmware's setup"),
        (None, "firmware's setup"),
    ],
)
def test_no_groups_fail_with_what_the_firmware_makes_of_it(tables: frozenset[str] | None, remedy: str) -> None:
    found = finding(vm_facts(NO_GROUPS, gathered=gathered({"firmware_tables": tables})), "iommu-groups")
    assert found.status == "fail"
    assert "none of them in an IOMMU group" in found.seen
    assert remedy in found.remedy


def test_groups_without_an_iommu_are_warned_of() -> None:
    found = finding(vm_facts(gathered=gathered({"unsafe_noiommu": True})), "iommu-groups")
    assert found.status == "warn"
    assert "enable_unsafe_noiommu_mode" in found.seen


def test_a_firmware_without_an_iommu_fails_where_there_are_no_groups() -> None:
    found = finding(vm_facts(NO_GROUPS, gathered=gathered({"firmware_tables": frozenset({"APIC"})})), "iommu-firmware")
    assert (found.status, found.seen) == ("fail", "none of the ACPI tables describes an IOMMU")


def test_a_machine_without_acpi_tables_of_an_iommu_but_with_groups_is_well() -> None:
    found = finding(vm_facts(gathered=gathered({"firmware_tables": frozenset({"APIC"})})), "iommu-firmware")
    assert found.status == "ok"


def test_tables_that_a_container_runtime_hides_are_skipped() -> None:
    found = finding(vm_facts(gathered=gathered({"firmware_tables": None})), "iommu-firmware")
    assert found.status == "skipped"
    assert "hide" in found.seen


@pytest.mark.parametrize("word", ["intel_iommu=off", "amd_iommu=off", "iommu=off"])
def test_a_command_line_that_switches_it_off_fails(word: str) -> None:
    found = finding(vm_facts(gathered=gathered({"command_line": ("quiet", word)})), "kernel-command-line")
    assert (found.status, found.seen) == ("fail", f"{word} switches the IOMMU off")


def test_what_the_command_line_says_of_it_is_reported() -> None:
    words = ("ro", "intel_iommu=on", "iommu=pt", "quiet")
    found = finding(vm_facts(gathered=gathered({"command_line": words})), "kernel-command-line")
    assert (found.status, found.seen) == ("ok", "intel_iommu=on iommu=pt")


def test_a_machine_without_vfio_pci_fails() -> None:
    host = facts(function("0000:02:00.0", NVME, driver="nvme"))
    found = finding(vm_facts(host, gathered=gathered({"modules": frozenset()})), "vfio-modules")
    assert found.status == "fail"
    assert "modprobe -a vfio-pci vfio_iommu_type1" in found.remedy


def test_vfio_without_a_backend_is_warned_of() -> None:
    found = finding(vm_facts(gathered=gathered({"modules": frozenset({"vfio", "vfio_pci"})})), "vfio-modules")
    assert found.status == "warn"
    assert "no IOMMU model" in found.seen


@pytest.mark.parametrize("backend", ["vfio_iommu_type1", "iommufd", "vfio_iommu_spapr_tce"])
def test_any_backend_will_do(backend: str) -> None:
    modules = frozenset({"vfio", "vfio_pci", backend})
    assert finding(vm_facts(gathered=gathered({"modules": modules})), "vfio-modules").status == "ok"


def test_a_variant_driver_stands_for_the_module() -> None:
    host = facts(*card("0000:e1:00", 44, driver="nvgrace_gpu_vfio_pci"))
    modules = frozenset({"vfio", "vfio_iommu_type1"})
    found = finding(vm_facts(host, gathered=gathered({"modules": modules})), "vfio-modules")
    assert found.status == "ok"
    assert "nvgrace_gpu_vfio_pci" in found.seen


def test_of_a_snapshot_the_drivers_are_reported_and_the_machine_is_skipped() -> None:
    snapshot = vm_facts(healthy_host(), gathered=None)
    assert finding(snapshot, "vfio-modules").status == "ok"
    for check in ("iommu-firmware", "kernel-command-line"):
        assert [each.status for each in findings(snapshot, check)] == ["skipped"]
