"""What a domain document says of what QEMU will lock in memory, for the doctor."""

from __future__ import annotations

from dataclasses import dataclass

from lxml import etree

from launcherkit.domain.window import is_uefi, read_memory, read_size, read_window

_QEMU = "{http://libvirt.org/schemas/domain/qemu/1.0}"
_IOMMU_DEVICES = ("intel-iommu", "amd-iommu", "virtio-iommu", "arm-smmuv3")


@dataclass(frozen=True, slots=True)
class GuestFacts:
    """What a domain document says about the guest's memory and PCI window; sizes are in bytes."""

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


def read_guest(root: etree._Element) -> GuestFacts:
    """Read them from a ``<domain>``; invalid values count as missing."""
    type_ = root.find("os/type")
    return GuestFacts(
        memory=read_memory(root),
        hard_limit=read_size(root.find("memtune/hard_limit")),
        locked=root.find("memoryBacking/locked") is not None,
        vfio_devices=_count_vfio(root),
        other_memory_lockers=_count_other_memory_lockers(root),
        viommu=root.find("devices/iommu") is not None,
        hidden_viommu=_hidden_viommu(root),
        window=read_window(root),
        arch="x86_64" if type_ is None else type_.get("arch", "x86_64"),
        uefi=is_uefi(root),
        sev_snp=root.find("launchSecurity[@type='sev-snp']") is not None,
    )


def _count_vfio(root: etree._Element) -> int:
    hostdevs = sum(hostdev.get("type") in ("pci", "mdev") for hostdev in root.iterfind("devices/hostdev"))
    return hostdevs + sum(interface.get("type") == "hostdev" for interface in root.iterfind("devices/interface"))


def _count_other_memory_lockers(root: etree._Element) -> int:
    disks = sum(disk.get("type") in ("nvme", "vhostvdpa") for disk in root.iterfind("devices/disk"))
    return disks + sum(interface.get("type") == "vdpa" for interface in root.iterfind("devices/interface"))


def _hidden_viommu(root: etree._Element) -> bool:
    values = [argument.get("value", "") for argument in root.iterfind(f"{_QEMU}commandline/{_QEMU}arg")]
    return any(name in value for value in values for name in _IOMMU_DEVICES)
