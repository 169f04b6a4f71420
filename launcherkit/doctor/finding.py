"""What a check finds."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, TypeAlias

from launcherkit.choose.siblings import can_be_sibling, is_best_of_slot
from launcherkit.choose.viability import touched_groups
from launcherkit.doctor.facts import Subject
from launcherkit.model.address import HostAddress, MdevAddress, PciAddress
from launcherkit.model.host import HostFacts, bound_to_vfio, is_bridge, is_gpu
from launcherkit.model.plan import Plan

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
    "vfio-driver": "which VFIO driver the device plugin's `driver: auto` chooses, by the kernel's modules.alias",
    "migration": "whether the device can migrate with a running guest, by its driver and kernel; --ask-devices asks it",
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
    "known-problems": "no known problem of these programs, kernels and devices is here",
}
"""Every check by name, in the order of the report, and what it looks at."""


def is_bad(findings: Iterable[Finding], *, strict: bool) -> bool:
    """Whether something failed; with ``strict`` a warning counts too."""
    return any(finding.status == "fail" or (strict and finding.status == "warn") for finding in findings)


# The subject of the checks: a VM's devices, or what the host sets aside for VMs.


def subject_of_plan(plan: Plan, *, domain_iommufd: bool, has_variables: bool, nodes_matter: bool) -> Subject:
    """What a translation attaches; ``domain_iommufd`` is what the domain itself says."""
    functions = [function for device in plan.devices for function in device.functions]
    return Subject(
        of_vm=True,
        attached=tuple(function.source for function in functions),
        groups=plan.groups,
        managed=frozenset(function.source for function in functions if function.managed),
        wants_iommufd=plan.iommufd,
        has_variables=has_variables,
        nodes_matter=nodes_matter,
        nodes=tuple(node for node in plan.nodes if not node.startswith("/dev/bus/usb/")),
        domain_iommufd=domain_iommufd,
        wants_initiators=bool(plan.initiators),
        wants_cliques=any(clique is not None for clique in plan.cliques.values()),
        wants_smmus=bool(plan.smmus),
    )


def subject_of_addresses(
    addresses: Iterable[HostAddress], host: HostFacts, *, iommufd: bool, has_variables: bool, nodes_matter: bool
) -> Subject:
    """For a failed translation: what was allocated or is in the domain, and the functions of the same slots."""
    attached: dict[HostAddress, None] = {}
    for address in addresses:
        attached[address] = None
        function = host.functions.get(address) if isinstance(address, PciAddress) else None
        if function is not None and not function.is_vf and is_best_of_slot(function, host):
            in_slot = host.slot_functions(function.address)
            attached.update({each.address: None for each in in_slot if can_be_sibling(each, host)})
    on_host = tuple(each for each in attached if not isinstance(each, PciAddress) or each in host.functions)
    groups = touched_groups(on_host, host)
    return Subject(True, on_host, groups, frozenset(), iommufd, has_variables, nodes_matter)


def subject_of_host(host: HostFacts) -> Subject:
    """What is bound to VFIO, and the GPUs that are not: display, processing accelerators, co-processors."""
    bound: list[PciAddress] = []
    idle: list[PciAddress] = []
    for address, function in sorted(host.functions.items()):
        detail = host.details.get(address)
        if bound_to_vfio(function, detail):
            bound.append(address)
        elif is_gpu(function) and not function.is_vf and not is_bridge(function, detail):
            idle.append(address)
    groups = touched_groups(bound, host)
    in_groups = {member.address for group in groups for member in group.members}
    attached: tuple[HostAddress, ...] = (*bound, *(MdevAddress(uuid) for uuid in sorted(host.mdevs)))
    return Subject(
        of_vm=False,
        attached=attached,
        groups=touched_groups(attached, host),
        managed=frozenset(),
        wants_iommufd=False,
        has_variables=False,
        idle=tuple(address for address in idle if address not in in_groups),
    )
