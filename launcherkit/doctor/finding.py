"""What a check finds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

Status: TypeAlias = Literal["ok", "warn", "fail", "skipped"]


@dataclass(frozen=True, slots=True)
class Finding:
    """What one check found out about one subject."""

    check: str
    """A stable name, one of `CHECKS`."""
    subject: str
    """What it is about: ``group 44``, ``0000:e1:00.0``, ``/dev/vfio/44``; empty if the check has only one subject."""
    status: Status
    seen: str
    """What was found, or why the check was skipped."""
    remedy: str = ""
    """What to do; never empty if ``status`` is ``warn`` or ``fail``."""


CHECKS = {
    "host-facts": "the host's sysfs is here",
    "translation": "the allocation can be turned into hostdevs, as `launcherkit translate` does it",
    "iommu-groups": "the kernel has put the PCI functions into IOMMU groups",
    "iommu-firmware": "the firmware describes an IOMMU: ACPI table DMAR, IVRS, IORT, VIOT or RIMT",
    "kernel-command-line": "nothing on the kernel's command line switches the IOMMU off",
    "vfio-modules": "vfio-pci and an IOMMU backend of VFIO are loaded or built in",
    "group-viability": "the members of each IOMMU group let QEMU open it",
    "config-space": "the device answers: its config space doesn't read all ones",
    "power-state": "the device is not in D3cold",
    "reset-method": "the kernel can reset the device between two VMs",
    "vgpu-physical-function": "no physical function of an SR-IOV vGPU card is attached",
    "resizable-bar": "how large the resizable BARs are",
    "vfio-nodes": "the device nodes are here: those of the groups, or those of iommufd, not a mix",
    "node-permissions": "this user may read and write the device nodes",
    "memlock": "the limit of locked memory is enough for what libvirt will ask for",
    "guest-window": "the large BARs fit into the guest's 64-bit PCI window",
    "libvirt-version": "libvirt is new enough for what the domain uses",
    "qemu-version": "QEMU is new enough for what the domain uses",
    "dra-kubelet": "the node's kubelet supports DRA, and has the folder where drivers register",
    "dra-cdi": "the node's runtime reads CDI files, and these can be written",
    "dra-driver": "the node's DRA driver is registered, with the process that talks to the cluster for it",
    "known-problems": "the versions of KubeVirt, libvirt, QEMU and Linux have no known bugs",
}
"""Every check by name, in the order of the report, and what it looks at."""


def is_bad(findings: list[Finding], *, strict: bool) -> bool:
    """Whether something failed; with ``strict`` a warning counts too."""
    return any(finding.status == "fail" or (strict and finding.status == "warn") for finding in findings)
