"""Could QEMU have the devices, and would they work?"""

from __future__ import annotations

from dataclasses import replace

import pytest

from launcherkit.choose.migration import Migration
from launcherkit.choose.viability import check_isolation
from launcherkit.doctor.facts import Resizable
from launcherkit.model.host import NO_FACTS
from tests.doctor.known import (
    AUDIO,
    GIB,
    GPU,
    finding,
    findings,
    gathered,
    healthy_host,
    host_facts,
    of_vm,
    vm_facts,
)
from tests.support.facts import AUDIO as AUDIO_CLASS
from tests.support.facts import NIC, at, card, detail, facts, function, mdev


def test_a_viable_group_tells_its_members() -> None:
    found = finding(vm_facts(), "group-viability")
    assert (found.subject, found.status) == ("group 44", "ok")
    assert found.seen == f"{GPU} vfio-pci, {AUDIO} vfio-pci"


def test_a_group_that_is_not_viable_names_device_group_driver_and_remedy() -> None:
    host = facts(
        function("0000:e1:00.0", group=44), function("0000:e1:00.1", AUDIO_CLASS, driver="snd_hda_intel", group=44)
    )
    found = finding(vm_facts(host), "group-viability")
    assert (found.subject, found.status) == ("group 44", "fail")
    assert "0000:e1:00.1" in found.seen
    assert "snd_hda_intel" in found.seen
    assert "driver_override" in found.remedy


def test_what_libvirt_binds_itself_is_viable() -> None:
    host = facts(*card("0000:e1:00", 44, driver="nouveau"))
    subject = of_vm(host, managed=frozenset({at(GPU), at(AUDIO)}))
    assert finding(vm_facts(host, subject=subject), "group-viability").status == "ok"


def test_a_device_without_a_driver_is_warned_of() -> None:
    host = facts(*card("0000:e1:00", 44, driver=None))
    found = findings(vm_facts(host), "group-viability")
    assert [each.status for each in found] == ["warn", "warn"]
    assert "managed='yes'" in found[0].remedy


def test_a_device_without_a_group_fails() -> None:
    found = finding(vm_facts(facts(function(GPU, group=None))), "group-viability")
    assert (found.subject, found.status) == (GPU, "fail")


def test_a_gpu_that_the_host_keeps_is_reported_and_is_no_failure() -> None:
    found = finding(host_facts(facts(*card("0000:e1:00", 44, driver="nouveau"))), "group-viability")
    assert (found.subject, found.status) == (GPU, "skipped")
    assert "bound to nouveau" in found.seen
    assert "driver_override" in found.remedy


def test_a_gpu_with_vfs_or_mdevs_is_not_advised_to_be_bound() -> None:
    owner = function(GPU, driver="nvidia", group=44)
    with_vfs = facts(owner, details={GPU: detail(virtfns=(at("0000:e1:00.4"),), sriov_numvfs=1)})
    with_mdevs = facts(owner, mdevs=[mdev(parent=GPU)])
    for host, what in ((with_vfs, "It has VFs (1)"), (with_mdevs, "It has mediated devices (1)")):
        found = next(each for each in findings(host_facts(host), "group-viability") if each.status == "skipped")
        assert found.remedy.startswith(what)
        assert "driver_override" not in found.remedy


def test_nor_is_one_that_keeps_a_group_from_being_viable() -> None:
    members = function("0000:e1:00.0", group=44), function("0000:e1:00.1", AUDIO_CLASS, driver="nvidia", group=44)
    host = facts(*members, details={"0000:e1:00.1": detail(sriov_numvfs=4)})
    found = finding(vm_facts(host), "group-viability")
    assert (found.status, "has VFs (4)" in found.remedy, "driver_override" in found.remedy) == ("fail", True, False)


def test_a_card_of_which_only_a_part_is_set_aside_fails() -> None:
    host = facts(function(GPU, driver="nouveau", group=44), function(AUDIO, AUDIO_CLASS, group=44))
    found = finding(host_facts(host), "group-viability")
    assert (found.subject, found.status) == ("group 44", "fail")
    assert "nouveau" in found.seen


def test_a_host_without_devices_for_vms_skips() -> None:
    host = facts(function("0000:02:00.0", 0x020000, driver="igb"))
    for check in ("group-viability", "config-space", "power-state", "reset-method", "guest-window"):
        assert finding(host_facts(host), check).status == "skipped"


@pytest.mark.parametrize(
    ("changes", "check", "words"),
    [
        ({"config_readable": False}, "config-space", "all ones"),
        ({"power_state": "D3cold"}, "power-state", "D3cold"),
    ],
)
def test_a_device_that_is_gone_or_asleep_fails(changes: dict[str, object], check: str, words: str) -> None:
    gpu, audio = findings(vm_facts(healthy_host(**changes)), check)
    assert (gpu.subject, gpu.status, audio.status) == (GPU, "fail", "ok")
    assert words in gpu.seen
    assert gpu.remedy


def test_a_config_space_that_can_not_be_read_is_skipped() -> None:
    assert findings(vm_facts(healthy_host(header_type=None)), "config-space")[0].status == "skipped"


def test_the_physical_function_of_a_vgpu_card_fails() -> None:
    from launcherkit.model.host import VgpuVf

    vf = function("0000:e1:00.4", driver="nvidia", group=50, physfn=GPU)
    details = {GPU: detail(virtfns=(vf.address,)), "0000:e1:00.4": detail(vgpu=VgpuVf(0, ()))}
    host = facts(function(GPU, group=44), vf, details=details)
    found = finding(vm_facts(host), "vgpu-physical-function")
    assert (found.subject, found.status) == (GPU, "fail")


def test_reset_methods_are_reported() -> None:
    assert [each.seen for each in findings(vm_facts(), "reset-method")] == ["bus", "bus"]


def test_a_device_that_can_not_be_reset_is_warned_of() -> None:
    found = findings(
        vm_facts(healthy_host()._replace(details={at(AUDIO): detail(reset_methods=("bus",))})), "reset-method"
    )
    assert (found[0].subject, found[0].status) == (GPU, "warn")


def test_a_bus_reset_that_hits_a_function_of_the_host_is_warned_of() -> None:
    host = facts(
        function(GPU, group=44),
        function(AUDIO, AUDIO_CLASS, driver="snd_hda_intel", group=45),
        details={GPU: detail(reset_methods=("bus",))},
    )
    subject = replace(of_vm(host), attached=(at(GPU),))
    found = finding(vm_facts(host, subject=subject), "reset-method")
    assert found.status == "warn"
    assert AUDIO in found.seen


def test_an_old_kernel_that_tells_no_reset_methods_is_skipped() -> None:
    found = finding(vm_facts(facts(*card("0000:e1:00", 44), details={GPU: detail()})), "reset-method")
    assert found.status == "skipped"
    assert "5.15" in found.seen


def test_resizable_bars_are_reported_with_what_they_have() -> None:
    sizes = {at(GPU): (Resizable(1, 32 * GIB),)}
    found = finding(vm_facts(gathered=gathered(resizable=sizes)), "resizable-bar")
    assert (found.subject, found.status, found.seen) == (GPU, "ok", "BAR 1 has 256 MiB of 32 GiB at most")


def test_of_a_host_of_which_nothing_is_known_nothing_is_said() -> None:
    found = findings(host_facts(NO_FACTS), "group-viability")
    assert [(each.status, each.seen) for each in found] == [("skipped", "nothing is known of the host")]


def test_a_function_without_an_iommu_group_fails_in_the_words_of_the_translation() -> None:
    host = facts(function(GPU, group=None))
    (problem,) = check_isolation([at(GPU)], host)
    found = finding(vm_facts(host), "group-viability")
    assert (found.subject, found.status, found.seen, found.remedy) == (GPU, "fail", problem.message, problem.remedy)


def test_what_is_not_on_the_host_is_not_looked_at() -> None:
    attached = of_vm(healthy_host(), GPU, "0000:99:00.0").attached
    assert at(GPU) in attached
    assert at("0000:99:00.0") not in attached


def test_whether_a_device_can_migrate_goes_by_its_driver_and_kernel() -> None:
    vf = function("0000:3b:00.2", NIC, driver="xe-vfio-pci", physfn="0000:3b:00.0")
    for kernel, said in (((6, 12, 1), "no: xe-vfio-pci can only from"), ((6, 19), "yes: xe-vfio-pci can, from")):
        found = finding(
            vm_facts(facts(vf), subject=of_vm(facts(vf), str(vf.address)), gathered=gathered(kernel=kernel)),
            "migration",
        )
        assert (found.subject, found.status) == (str(vf.address), "ok")
        assert found.seen.startswith(said)
    assert [each.seen for each in findings(vm_facts(), "migration")] == ["no: vfio-pci can't save a device's state"] * 2
    assert finding(vm_facts(NO_FACTS), "migration").seen == "nothing is known of the host"
    assert finding(host_facts(NO_FACTS), "migration").status == "skipped"


def test_a_device_that_was_asked_has_the_last_word() -> None:
    asked = {at(GPU): Migration(True, "the device itself says so"), at(AUDIO): Migration(None, "it is in use")}
    gpu, audio = findings(vm_facts(asked=asked), "migration")
    assert (gpu.status, gpu.seen) == ("ok", "yes: the device itself says so")
    assert audio.seen == "no: vfio-pci can't save a device's state; not asked: it is in use"
