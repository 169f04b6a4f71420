"""Are libvirt and QEMU new enough?"""

from __future__ import annotations

import pytest

from launcherkit.doctor.facts import Version
from tests.doctor.patients import finding, gathered, healthy_host, of_vm, patient


@pytest.mark.parametrize(
    ("libvirt", "qemu", "wants", "statuses"),
    [
        ((11, 10, 0), (8, 2, 0), False, ("ok", "ok")),
        ((11, 10, 0), (8, 2, 0), True, ("fail", "fail")),
        ((12, 2, 0), (9, 0, 0), True, ("ok", "ok")),
        ((12, 1, 9), (10, 0), True, ("fail", "ok")),
        (None, None, True, ("skipped", "skipped")),
    ],
)
def test_iommufd_wants_libvirt_12_2_and_qemu_9(
    libvirt: Version | None, qemu: Version | None, wants: bool, statuses: tuple[str, str]
) -> None:
    host = healthy_host()
    of = patient(host, subject=of_vm(host, wants_iommufd=wants), gathered=gathered(libvirt=libvirt, qemu=qemu))
    assert (finding(of, "libvirt-version").status, finding(of, "qemu-version").status) == statuses


def test_the_version_is_told() -> None:
    assert finding(patient(), "libvirt-version").seen.startswith("libvirt 9.0.0; ")
    assert finding(patient(gathered=gathered(libvirt=(12, 3, 0))), "libvirt-version").seen == "libvirt 12.3.0"


def test_a_snapshot_tells_no_versions() -> None:
    assert finding(patient(gathered=None), "qemu-version").status == "skipped"
