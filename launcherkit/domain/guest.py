"""Reads what checks of a guest want to know from a domain document."""

from __future__ import annotations

from lxml import etree

from launcherkit.domain.window import is_uefi, read_address_space, read_memory, read_size, read_window
from launcherkit.model.guest import GuestFacts

_QEMU = "{http://libvirt.org/schemas/domain/qemu/1.0}"
_IOMMU_DEVICES = ("intel-iommu", "amd-iommu", "virtio-iommu", "arm-smmuv3")


def read_guest(root: etree._Element) -> GuestFacts:
    """Read them from a ``<domain>``; invalid values count as missing."""
    type_ = root.find("os/type")
    interfaces = len(root.findall("devices/interface[@type='hostdev']"))
    return GuestFacts(
        memory=read_memory(root),
        hard_limit=read_size(root.find("memtune/hard_limit")),
        locked=root.find("memoryBacking/locked") is not None,
        vfio_devices=_count_hostdevs(root) + interfaces,
        other_memory_lockers=_count_other_memory_lockers(root),
        viommu=root.find("devices/iommu") is not None,
        hidden_viommu=_hidden_viommu(root),
        window=read_window(root),
        arch="x86_64" if type_ is None else type_.get("arch", "x86_64"),
        uefi=is_uefi(root),
        sev_snp=root.find("launchSecurity[@type='sev-snp']") is not None,
        machine="" if type_ is None else type_.get("machine", ""),
        most_memory=read_address_space(root).memory,
        viommu_bits=_viommu_bits(root),
        modeless_hostdevs=sum(each.get("mode") is None for each in root.iterfind("devices/hostdev[@type='pci']")),
        hostdev_interfaces=interfaces,
        kvm_hidden=root.find("features/kvm/hidden[@state='on']") is not None,
        kvm_ioapic=root.find("features/ioapic[@driver='kvm']") is not None,
    )


def _viommu_bits(root: etree._Element) -> int | None:
    driver = root.find("devices/iommu/driver")
    bits = "" if driver is None else driver.get("aw_bits", "")
    return int(bits) if bits.isascii() and bits.isdigit() and len(bits) < 4 else None


def _count_hostdevs(root: etree._Element) -> int:
    """Those that go through VFIO."""
    return sum(hostdev.get("type") in ("pci", "mdev") for hostdev in root.iterfind("devices/hostdev"))


def _count_other_memory_lockers(root: etree._Element) -> int:
    disks = sum(disk.get("type") in ("nvme", "vhostvdpa") for disk in root.iterfind("devices/disk"))
    return disks + sum(interface.get("type") == "vdpa" for interface in root.iterfind("devices/interface"))


def _hidden_viommu(root: etree._Element) -> bool:
    values = [argument.get("value", "") for argument in root.iterfind(f"{_QEMU}commandline/{_QEMU}arg")]
    return any(name in value for value in values for name in _IOMMU_DEVICES)
