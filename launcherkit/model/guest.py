"""What a domain document says of a guest, for checks of what would keep it from its devices."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class GuestFacts:
    """What a domain document says about the guest's memory, PCI window and features; sizes are in bytes."""

    memory: int | None
    """All of it, with DIMMs; None if the document doesn't say."""
    hard_limit: int | None
    """``<memtune><hard_limit>``, which libvirt takes as the limit of locked memory."""
    locked: bool
    """``<memoryBacking><locked/>``: libvirt lifts the limit altogether."""
    vfio_devices: int
    """Hostdevs of type pci and mdev, and interfaces that are hostdevs."""
    other_memory_lockers: int
    """NVMe disks and vDPA devices: libvirt counts all memory once more for each."""
    viommu: bool
    hidden_viommu: bool
    """QEMU gets an IOMMU by ``<qemu:commandline>``, unknown to libvirt."""
    window: int | None
    """``<pcihole64>`` of the root."""
    arch: str
    uefi: bool
    sev_snp: bool = False
    machine: str = ""
    """The machine type, such as ``pc-q35-7.2``; empty for the default."""
    most_memory: int | None = None
    """The memory that it has or can get; None if the document doesn't say."""
    viommu_bits: int | None = None
    """The width that the document gives the IOMMU, as ``aw_bits``."""
    modeless_hostdevs: int = 0
    """PCI hostdevs without ``mode``."""
    hostdev_interfaces: int = 0
    kvm_hidden: bool = False
    """``<kvm><hidden state='on'/>``."""
    kvm_ioapic: bool = False
    """``<ioapic driver='kvm'/>``."""
