"""All facts that the checks examine, as values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from launcherkit.choose.migration import Migration
from launcherkit.compatibility import Version
from launcherkit.host.vfio_aliases import VfioAlias
from launcherkit.model.address import HostAddress, PciAddress
from launcherkit.model.address_space import AddressSpace
from launcherkit.model.domain import PciRoot
from launcherkit.model.guest import GuestFacts
from launcherkit.model.host import HostFacts
from launcherkit.model.plan import TouchedGroup


@dataclass(frozen=True, slots=True)
class Machine:
    """Facts from the machine's files other than its PCI functions; None or empty if unknown."""

    container: bool
    """This is a container, not the host itself."""
    command_line: tuple[str, ...] | None
    """The kernel's command line, word by word."""
    firmware_tables: frozenset[str] | None
    """Names of the ACPI tables; None if the directory is missing, or hidden, as in containers."""
    iommus: tuple[str, ...]
    """``/sys/class/iommu``: ``dmar0``, ``ivhd0``, ``smmu3.0x...``."""
    modules: frozenset[str] | None
    """VFIO's modules that are loaded or built in, with underscores; None without ``/sys/module``."""
    unsafe_noiommu: bool
    """VFIO was told to work without an IOMMU."""
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
    """What a Kubernetes node has for a DRA driver."""

    kubelet: Version | None
    containerd: Version | None
    """Also None with another runtime."""
    cdi_enabled: bool | None
    """The setting in containerd's configuration; None if it isn't set."""
    registry: bool
    """The folder where the kubelet looks for drivers."""
    drivers: frozenset[str]
    """The names of drivers that have a socket there, with the UID of their pod if the socket has it."""
    cluster_sockets: int
    """Sockets of daemons for the process that talks to the cluster, in the folders of the node's pods."""
    cdi_writable: bool
    """CDI files can be created: their file system, or that of their future folder, is not read-only."""

    def has_driver(self, driver: str) -> bool:
        """Whether one of that name has a socket."""
        return any(name == driver or name.startswith(f"{driver}-") for name in self.drivers)


@dataclass(frozen=True, slots=True)
class Gathered:
    """Facts that only the machine itself has; a snapshot has none of them."""

    machine: Machine
    process: Process | None
    nodes: Mapping[str, Node]
    resizable: Mapping[PciAddress, tuple[Resizable, ...]]
    libvirt: Version | None
    qemu: Version | None
    kernel: Version | None = None
    node: KubeletNode | None = None
    """None if no kubelet has a folder."""
    variants: Mapping[PciAddress, VfioAlias] | None = None
    """What the kernel has for a function in place of vfio-pci; None if its modules.alias isn't here."""


@dataclass(frozen=True, slots=True)
class Subject:
    """The subject of the checks: one VM's devices, or what the host sets aside for VMs."""

    of_vm: bool
    attached: tuple[HostAddress, ...]
    """The functions that go to the guest or, on a host, all that are bound to VFIO."""
    groups: tuple[TouchedGroup, ...]
    """Their IOMMU groups."""
    managed: frozenset[HostAddress]
    """Functions that libvirt binds itself."""
    wants_iommufd: bool
    """Some of its hostdevs go through iommufd."""
    has_variables: bool
    """Variables of a device plugin are set: then the VM will run here (V2)."""
    nodes_matter: bool = True
    """False if by the policy device nodes need not exist (V2)."""
    idle: tuple[PciAddress, ...] = ()
    """GPUs that the host keeps for itself."""
    nodes: tuple[str, ...] | None = None
    """The nodes that QEMU opens, if a translation says so."""
    domain_iommufd: bool = False
    """The domain itself has ``<iommufd enabled='yes'/>``."""
    wants_initiators: bool = False
    """Some of its hostdevs are generic initiators of the guest's NUMA cells (P7)."""
    wants_cliques: bool = False
    """Some of its GPUs are told that they reach each other (P8)."""
    wants_smmus: bool = False
    """Some of its root complexes have an SMMUv3 (P9)."""


@dataclass(frozen=True, slots=True)
class Facts:
    """All facts together."""

    host: HostFacts
    subject: Subject
    gathered: Gathered | None
    """None if the host is a snapshot, a recording or none."""
    guest: GuestFacts | None = None
    """None without a domain."""
    topology: PciRoot | None = None
    """The guest's PCI topology; None without a domain."""
    kubevirt: Version | None = None
    """The launcher's version, from the VMI's status."""
    space: AddressSpace | None = None
    """The guest's address space in the domain that will be started."""
    asked: Mapping[HostAddress, Migration] = field(default_factory=dict)
    """What devices that were asked said of their migration; `Migration.can` is None for one that couldn't be asked."""
    claims: int = 0
    """How many of the VM's devices are requested by ResourceClaims."""

    @property
    def runs_here(self) -> bool:
        """Whether the VM would run here: not in a sidecar, which has no VFIO nodes (Q2)."""
        if self.gathered is None:
            return False
        return not self.gathered.machine.container or self.subject.has_variables or bool(self.host.nodes)


SNAPSHOT = "a snapshot doesn't have this; run the doctor on the machine itself"
SIDECAR = "no /dev/vfio in this container, as in a hook sidecar; run the doctor in the container where the VM runs"


def not_here(facts: Facts) -> str | None:
    """Why checks of the place where the VM runs can't be made, if so."""
    if facts.gathered is None:
        return SNAPSHOT
    return None if facts.runs_here else SIDECAR
