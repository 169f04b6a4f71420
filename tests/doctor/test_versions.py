"""Are libvirt and QEMU new enough?"""

from __future__ import annotations

from dataclasses import replace

import pytest

from launcherkit.doctor.facts import Version
from tests.doctor.patients import finding, gathered, healthy_host, of_vm, patient


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
    of = patient(host, subject=subject, gathered=gathered(libvirt=libvirt, qemu=qemu))
    assert (finding(of, "libvirt-version").status, finding(of, "qemu-version").status) == statuses


def test_the_version_is_told() -> None:
    assert finding(patient(), "libvirt-version").seen.startswith("libvirt 9.0.0; ")
    assert finding(patient(gathered=gathered(libvirt=(12, 3, 0))), "libvirt-version").seen == "libvirt 12.3.0"


def test_a_snapshot_tells_no_versions() -> None:
    assert finding(patient(gathered=None), "qemu-version").status == "skipped"
