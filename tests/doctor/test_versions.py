"""Are libvirt and QEMU new enough?"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from launcherkit.compatibility import Version
from launcherkit.doctor.facts import KubeletNode
from tests.doctor.known import GUEST, finding, findings, gathered, healthy_host, host_facts, of_vm, vm_facts


@pytest.mark.parametrize(
    ("libvirt", "qemu", "wants", "domain", "statuses"),
    [
        ((11, 10, 0), (8, 2, 0), False, False, ("ok", "ok")),
        ((11, 10, 0), (8, 2, 0), True, False, ("fail", "fail")),
        ((12, 0, 9), (9, 0, 0), True, False, ("fail", "ok")),
        ((12, 1, 0), (9, 0, 0), True, False, ("ok", "ok")),
        ((12, 1, 0), (9, 0, 0), True, True, ("fail", "ok")),
        ((12, 2, 0), (9, 0, 0), True, True, ("ok", "ok")),
        (None, None, True, False, ("skipped", "skipped")),
    ],
)
def test_iommufd_wants_libvirt_12_1_for_a_hostdev_12_2_for_the_domain_and_qemu_9(
    libvirt: Version | None, qemu: Version | None, wants: bool, domain: bool, statuses: tuple[str, str]
) -> None:
    host = healthy_host()
    subject = replace(of_vm(host, wants_iommufd=wants), domain_iommufd=domain)
    of = vm_facts(host, subject=subject, gathered=gathered(libvirt=libvirt, qemu=qemu))
    assert (finding(of, "libvirt-version").status, finding(of, "qemu-version").status) == statuses


@pytest.mark.parametrize(("libvirt", "status"), [((11, 7, 0), "fail"), ((11, 8, 0), "ok"), (None, "skipped")])
def test_generic_initiators_want_libvirt_11_8(libvirt: Version | None, status: str) -> None:
    subject = replace(of_vm(healthy_host()), wants_initiators=True)
    assert finding(vm_facts(subject=subject, gathered=gathered(libvirt=libvirt)), "libvirt-version").status == status


@pytest.mark.parametrize(("libvirt", "status"), [((12, 6, 9), "fail"), ((12, 7, 0), "ok"), (None, "skipped")])
def test_an_accelerated_smmuv3_wants_libvirt_12_7(libvirt: Version | None, status: str) -> None:
    subject = replace(of_vm(healthy_host()), wants_smmus=True)
    assert finding(vm_facts(subject=subject, gathered=gathered(libvirt=libvirt)), "libvirt-version").status == status


@pytest.mark.parametrize(("qemu", "status"), [((8, 0, 9), "fail"), ((9, 2, 0), "ok"), (None, "skipped")])
def test_cliques_of_gpus_want_qemu_8_1(qemu: Version | None, status: str) -> None:
    subject = replace(of_vm(healthy_host()), wants_cliques=True)
    assert finding(vm_facts(subject=subject, gathered=gathered(qemu=qemu)), "qemu-version").status == status


def test_the_version_is_reported() -> None:
    assert finding(vm_facts(), "libvirt-version").seen.startswith("libvirt 9.0.0; ")
    assert finding(vm_facts(gathered=gathered(libvirt=(12, 3, 0))), "libvirt-version").seen == "libvirt 12.3.0"


def test_a_snapshot_tells_no_versions() -> None:
    assert finding(vm_facts(gathered=None), "qemu-version").status == "skipped"


# What is known to be broken

SNP = replace(GUEST, sev_snp=True)


def problems(**changes: Any) -> dict[str, str]:
    """Those that a vm_facts is told of, with their status."""
    return {each.subject: each.status for each in findings(vm_facts(**changes), "known-problems")}


@pytest.mark.parametrize(
    ("qemu", "guest", "reported"),
    [
        ((9, 0, 2), SNP, {"": "ok"}),
        ((9, 1, 0), SNP, {"qemu-sev-snp": "warn"}),
        ((9, 1, 3), SNP, {"qemu-sev-snp": "warn"}),
        ((9, 1, 0), GUEST, {"": "ok"}),
        ((9, 1, 0), None, {"qemu-sev-snp": "skipped"}),
        ((9, 2, 0), SNP, {"": "ok"}),
    ],
)
def test_qemu_9_1_is_warned_of_where_the_guest_has_sev_snp_and_a_device(
    qemu: Version, guest: object, reported: dict[str, str]
) -> None:
    assert problems(gathered=gathered(qemu=qemu), guest=guest) == reported


def test_the_warning_names_version_source_and_remedy() -> None:
    found = finding(vm_facts(gathered=gathered(qemu=(9, 1, 0)), guest=SNP), "known-problems")
    assert found.seen.startswith("QEMU 9.1.0: ")
    assert "kubevirt/kubevirt#16407" in found.seen
    assert found.remedy == "Use QEMU 9.2 or later."


@pytest.mark.parametrize(
    ("kubevirt", "reported"), [((1, 8, 4), {"": "ok"}), ((1, 9, 1), {"kubevirt-plugins": "warn"}), (None, {"": "ok"})]
)
def test_a_kubevirt_that_a_plugin_breaks_is_warned_of(kubevirt: Version | None, reported: dict[str, str]) -> None:
    assert problems(kubevirt=kubevirt) == reported


def test_a_vm_without_a_pci_hostdev_is_not_concerned() -> None:
    subject = replace(of_vm(healthy_host()), attached=())
    assert problems(kubevirt=(1, 9, 0), subject=subject) == {"": "ok"}


def test_where_no_vm_is_known_it_is_reported_and_does_not_count() -> None:
    (found,) = findings(host_facts(healthy_host(), qemu=(9, 1, 0)), "known-problems")
    assert (found.status, found.subject) == ("skipped", "qemu-sev-snp")
    (found, *_) = findings(replace(host_facts(healthy_host()), kubevirt=(1, 9, 0)), "known-problems")
    assert (found.status, found.subject) == ("skipped", "kubevirt-plugins")


def test_what_was_seen_is_named_where_nothing_is_known_against_it() -> None:
    found = finding(vm_facts(gathered=gathered(kernel=(6, 1, 0))), "known-problems")
    assert found.seen == "no known problems of libvirt 9.0.0, QEMU 7.2.22, Linux 6.1.0"
    assert finding(vm_facts(gathered=None), "known-problems").status == "skipped"


@pytest.mark.parametrize(
    ("kubevirt", "vfio_dev", "in_container", "of_cluster", "reported"),
    [
        ((1, 9, 0), "vfio0", False, False, "warn"),
        ((1, 9, 0), None, False, False, None),
        ((1, 9, 0), "vfio0", True, False, None),
        ((1, 8, 4), "vfio0", False, True, None),
        (None, "vfio0", False, True, "warn"),
        (None, "vfio0", False, False, None),
    ],
)
def test_kubevirt_1_9_is_warned_of_where_a_character_device_has_no_node(
    kubevirt: Version | None, vfio_dev: str | None, in_container: bool, of_cluster: bool, reported: str | None
) -> None:
    """KubeVirt#18895: it reads the names in sysfs, and hands out nodes that the kernel doesn't make."""
    node = KubeletNode(None, None, None, True, frozenset(), 0, True) if of_cluster else None
    known = gathered(machine={"container": in_container}, node=node)
    host = healthy_host(vfio_dev=vfio_dev)
    assert problems(host=host, gathered=known, kubevirt=kubevirt).get("kubevirt-cdev-nodes") == reported
    there = host._replace(nodes=(host.nodes or frozenset()) | {"/dev/vfio/devices/vfio0"})
    assert "kubevirt-cdev-nodes" not in problems(host=there, gathered=known, kubevirt=kubevirt)
