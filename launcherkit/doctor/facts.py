"""All that the checks look at, as values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from launcherkit.compatibility import Version
from launcherkit.domain.guest import GuestFacts
from launcherkit.model.address import HostAddress, PciAddress
from launcherkit.model.domain import PciTopology
from launcherkit.model.host import HostFacts
from launcherkit.model.plan import TouchedGroup
from launcherkit.model.window import AddressSpace


@dataclass(frozen=True, slots=True)
class Machine:
    """What the machine's files say beside its PCI functions; None or empty where they don't tell."""

    container: bool
    """This is a container, not the host itself."""
    command_line: tuple[str, ...] | None
    """The kernel's, word by word."""
    firmware_tables: frozenset[str] | None
    """Names of the ACPI tables; None where the directory is hidden, as container runtimes do it, or not there."""
    iommus: tuple[str, ...]
    """``/sys/class/iommu``: ``dmar0``, ``ivhd0``, ``smmu3.0x...``."""
    modules: frozenset[str] | None
    """Those of VFIO that are loaded or built in, with underscores; None where there is no ``/sys/module``."""
    unsafe_noiommu: bool
    """VFIO was told to do without an IOMMU."""
    address_bits: int | None
    """Physical address bits of the CPU."""


@dataclass(frozen=True, slots=True)
class Process:
    """The process whose limits the VM will inherit: a running libvirt daemon, else this one."""

    name: str
    memlock_soft: int | None
    """Bytes; None is no limit."""
    memlock_hard: int | None
    may_raise: bool
    """It has CAP_SYS_RESOURCE."""
    may_lock: bool
    """It has CAP_IPC_LOCK."""


@dataclass(frozen=True, slots=True)
class Node:
    """A device node, as this user sees it."""

    mode: int
    owner: int
    group: int
    usable: bool
    """This user may read and write it, by its mode, its ACL and this user's capabilities."""


@dataclass(frozen=True, slots=True)
class Resizable:
    """A BAR that can be resized."""

    bar: int
    largest: int
    """Bytes."""


@dataclass(frozen=True, slots=True)
class KubeletNode:
    """What a node of Kubernetes has for a DRA driver."""

    kubelet: Version | None
    containerd: Version | None
    """None too where another runtime is there."""
    cdi_enabled: bool | None
    """What containerd's configuration says; None where it says nothing."""
    registry: bool
    """The folder where the kubelet looks for drivers."""
    drivers: frozenset[str]
    """The names of those that have a socket there, with the UID of their pod where they say it."""
    cluster_sockets: int
    """Sockets of daemons for the process that speaks to the cluster, in the folders of the node's pods."""
    cdi_writable: bool
    """CDI files can be made: their file system, or that where their folder would be, is not read-only."""

    def has_driver(self, driver: str) -> bool:
        """Whether one of that name has a socket."""
        return any(name == driver or name.startswith(f"{driver}-") for name in self.drivers)


@dataclass(frozen=True, slots=True)
class Gathered:
    """What only a look at the machine itself tells; a snapshot has nothing of it."""

    machine: Machine
    process: Process | None
    nodes: Mapping[str, Node]
    resizable: Mapping[PciAddress, tuple[Resizable, ...]]
    libvirt: Version | None
    qemu: Version | None
    kernel: Version | None = None
    node: KubeletNode | None = None
    """None where no kubelet has a folder."""


@dataclass(frozen=True, slots=True)
class Subject:
    """Whom the checks are about: one VM's devices, or what the host sets aside for VMs."""

    of_vm: bool
    attached: tuple[HostAddress, ...]
    """What goes to the guest, or may: everything bound to VFIO."""
    groups: tuple[TouchedGroup, ...]
    """Theirs."""
    managed: frozenset[HostAddress]
    """What libvirt binds itself."""
    wants_iommufd: bool
    """Hostdevs of it go through iommufd."""
    has_variables: bool
    """Variables of a device plugin are here: then this is where the VM will run (V2)."""
    nodes_matter: bool = True
    """False where the policy says that device nodes need not be there (V2)."""
    idle: tuple[PciAddress, ...] = ()
    """GPUs that the host keeps for itself."""
    nodes: tuple[str, ...] | None = None
    """What QEMU opens, where a translation tells."""
    domain_iommufd: bool = False
    """The domain itself says ``<iommufd enabled='yes'/>``."""
    wants_initiators: bool = False
    """Hostdevs of it have cells of the guest (P7)."""


@dataclass(frozen=True, slots=True)
class Patient:
    """Everything together."""

    host: HostFacts
    subject: Subject
    gathered: Gathered | None
    """None where the host is a snapshot, a recording or none."""
    guest: GuestFacts | None = None
    """None where there is no domain."""
    topology: PciTopology | None = None
    """How the guest's PCI is built; None where there is no domain."""
    kubevirt: Version | None = None
    """That of the launcher, as the VMI's status tells it."""
    space: AddressSpace | None = None
    """What the domain that will be started says of the guest's address space."""

    @property
    def runs_here(self) -> bool:
        """Whether the VM would run where this does: not in a sidecar, which has no VFIO nodes (Q2)."""
        if self.gathered is None:
            return False
        return not self.gathered.machine.container or self.subject.has_variables or bool(self.host.nodes)


SNAPSHOT = "only the machine itself can tell, not a snapshot"
SIDECAR = "no /dev/vfio in this container, as in a hook sidecar; ask in the one where the VM runs"


def not_here(patient: Patient) -> str | None:
    """Why a check of the place where the VM runs can't be made, if it can't."""
    if patient.gathered is None:
        return SNAPSHOT
    return None if patient.runs_here else SIDECAR
