"""Are libvirt and QEMU new enough for what the domain uses?

iommufd in a hostdev: libvirt 12.1 or later; for the whole domain: 12.2; and QEMU 9.0, the first whose iommufd object
libvirt looks for.
"""

from __future__ import annotations

from collections.abc import Iterator

from launcherkit.doctor.facts import SIDECAR, Patient, Version, not_here
from launcherkit.doctor.finding import Finding

_LIBVIRT, _LIBVIRT_DOMAIN = (12, 1), (12, 2)
_QEMU = (9, 0)


def check_versions(patient: Patient) -> Iterator[Finding]:
    """One finding for libvirt, one for QEMU."""
    why = not_here(patient)
    libvirt = _LIBVIRT_DOMAIN if patient.subject.domain_iommufd else _LIBVIRT
    for name, program, oldest in (("libvirt-version", "libvirt", libvirt), ("qemu-version", "QEMU", _QEMU)):
        found = None
        if patient.gathered is not None:
            found = patient.gathered.libvirt if program == "libvirt" else patient.gathered.qemu
        if why is not None and (found is None or why != SIDECAR):
            yield Finding(name, "", "skipped", why)
        elif found is None:
            yield Finding(name, "", "skipped", f"no {program} that tells its version is installed here")
        else:
            yield _judge(name, program, found, oldest, patient.subject.wants_iommufd)


def _judge(name: str, program: str, found: Version, oldest: Version, wants_iommufd: bool) -> Finding:
    seen, needed = f"{program} {_dotted(found)}", _dotted(oldest)
    if found >= oldest:
        return Finding(name, "", "ok", seen)
    if not wants_iommufd:
        return Finding(name, "", "ok", f"{seen}; hostdevs through iommufd would need {needed}, nothing here does")
    return Finding(
        name,
        "",
        "fail",
        f"{seen}; hostdevs through iommufd need {needed}",
        f"Use {program} {needed} or later, or the groups' nodes: take iommufd out of the hostdevs.",
    )


def _dotted(version: Version) -> str:
    return ".".join(map(str, version))
