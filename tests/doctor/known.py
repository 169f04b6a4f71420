"""Patients made by hand: facts about a healthy machine, changed one at a time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from launcherkit.doctor.facts import Facts, Gathered, Machine, Node, Process, Subject
from launcherkit.doctor.finding import Finding, subject_of_addresses, subject_of_host
from launcherkit.doctor.report import examine
from launcherkit.model.guest import GuestFacts
from launcherkit.model.host import Bar, HostFacts
from tests.support.facts import card, detail, facts

GIB = 1 << 30
MIB = 1 << 20
NODES = ("/dev/vfio/vfio", "/dev/vfio/44")
GPU, AUDIO = "0000:e1:00.0", "0000:e1:00.1"
GPU_BARS = (Bar(0, 0xF0000000, 0xF0FFFFFF, 0x40200), Bar(1, 1 << 40, (1 << 40) + 256 * MIB - 1, 0x14220C))

MACHINE = Machine(
    container=False,
    command_line=("quiet", "intel_iommu=on"),
    firmware_tables=frozenset({"APIC", "DMAR"}),
    iommus=("dmar0",),
    modules=frozenset({"vfio", "vfio_pci", "vfio_iommu_type1"}),
    unsafe_noiommu=False,
    address_bits=46,
)
PROCESS = Process("this process", 8 * MIB, 8 * MIB, may_raise=True, may_lock=True)
GUEST = GuestFacts(16 * GIB, None, False, 2, 0, False, False, None, "x86_64", True)


def healthy_host(**changes: Any) -> HostFacts:
    """A GPU with its audio, bound to vfio-pci; ``changes`` are details of the GPU."""
    details = {
        GPU: detail(reset_methods=("bus",), resources=GPU_BARS, **changes),
        AUDIO: detail(reset_methods=("bus",)),
    }
    return facts(*card("0000:e1:00", 44), details=details, nodes=NODES)


def gathered(
    machine: Mapping[str, Any] = {},
    process: Process | None = PROCESS,
    nodes: Mapping[str, Node] | None = None,
    **others: Any,
) -> Gathered:
    """What a healthy machine tells, but for what is given."""
    usable = {node: Node(0o600, 0, 0, True) for node in NODES}
    known: dict[str, Any] = {"resizable": {}, "libvirt": (9, 0, 0), "qemu": (7, 2, 22)} | others
    return Gathered(replace(MACHINE, **machine), process, usable if nodes is None else nodes, **known)


def of_vm(host: HostFacts, *addresses: str, **changes: Any) -> Subject:
    """A VM that gets functions of a host, their siblings too."""
    from tests.support.facts import at

    subject = subject_of_addresses(
        map(at, addresses or (GPU,)), host, iommufd=False, has_variables=True, nodes_matter=True
    )
    return replace(subject, **changes)


def vm_facts(host: HostFacts | None = None, **changes: Any) -> Facts:
    """A healthy VM on a healthy machine, but for what is given."""
    host = healthy_host() if host is None else host
    known: dict[str, Any] = {
        "subject": of_vm(host),
        "gathered": gathered(),
        "guest": GUEST,
        "topology": "pcie",
    } | changes
    return Facts(host, **known)


def host_facts(host: HostFacts, **changes: Any) -> Facts:
    """A host with no VM in view."""
    return Facts(host, subject_of_host(host), gathered(**changes))


def findings(of: Facts, check: str) -> list[Finding]:
    """What one check says."""
    return [finding for finding in examine(of) if finding.check == check]


def finding(of: Facts, check: str) -> Finding:
    """The one thing that a check says."""
    (found,) = findings(of, check)
    return found
