"""What a PCI function is: its kind, by its class code, and whether VFIO has it."""

from __future__ import annotations

from launcherkit.model.address import HostAddress, MdevAddress, PciAddress
from launcherkit.model.host import HostFacts, PciDetail, PciFunction, is_vfio_name

_RANKS = (
    (0x03, None),  # display
    (0x12, None),  # processing accelerator
    (0x0B, 0x40),  # co-processor
    (0x02, None),  # network
    (0x01, None),  # storage
)


def primary_rank(function: PciFunction) -> int:
    """The rank of a function as the primary of its slot; lower is better (C2)."""
    base, sub = function.class_code >> 16, function.class_code >> 8 & 0xFF
    for rank, (wanted_base, wanted_sub) in enumerate(_RANKS):
        if base == wanted_base and wanted_sub in (None, sub):
            return rank
    return len(_RANKS)


_NAMES = {
    0x01: "storage controller",
    0x02: "network controller",
    0x03: "display controller",
    0x0403: "audio device",
    0x0600: "host bridge",
    0x0601: "ISA bridge",
    0x0604: "PCI bridge",
    0x06: "bridge",
    0x0B40: "co-processor",
    0x0C03: "USB controller",
    0x0C80: "serial bus controller",
    0x12: "processing accelerator",
}


def class_name(function: PciFunction) -> str:
    """The class in words, or ``class 0xCCSS`` if it has no name here."""
    base, base_sub = function.class_code >> 16, function.class_code >> 8
    return _NAMES.get(base_sub) or _NAMES.get(base) or f"class 0x{base_sub:04x}"


def is_gpu(function: PciFunction) -> bool:
    """Whether a request for it without a section belongs under ``gpus`` (Q1)."""
    return primary_rank(function) <= 2


def is_chipset(function: PciFunction) -> bool:
    """Whether it is a host bridge or a bridge to ISA, EISA or Micro Channel: an endpoint, but useless to a guest."""
    return 0x0600 <= function.class_code >> 8 <= 0x0603


def describe(function: PciFunction) -> str:
    """An address with class and IDs: ``0000:e1:00.1 audio device 10de:1aef``."""
    vf = f", VF of {function.physfn}" if function.physfn else ""
    return f"{function.address} {class_name(function)} {function.ids}{vf}"


# VFIO's view of a function: whether its driver is a VFIO driver, and its IOMMU group (V1).


def bound_to_vfio(function: PciFunction, detail: PciDetail | None) -> bool:
    """Whether its driver is vfio-pci or a variant; that of a vGPU VF with a type is its vendor's driver (V1)."""
    if is_vfio_name(function.driver):
        return True
    if detail is None or function.driver is None:
        return False
    return is_vfio_name(detail.driver_module) or is_vgpu_vf(detail)


def is_vgpu_vf(detail: PciDetail) -> bool:
    """Whether it is a VF of an SR-IOV vGPU card with a type set (G4)."""
    return detail.vgpu is not None and detail.vgpu.current_type != 0


def is_bridge(function: PciFunction, detail: PciDetail | None) -> bool:
    """Whether it is a bridge, by its header type as in the kernel (V1); by its class if that isn't known."""
    header_type = None if detail is None else detail.header_type
    return function.is_bridge_by_class if header_type is None else header_type in (1, 2)


def group_of(source: HostAddress, host: HostFacts) -> int | None:
    """The IOMMU group of a function or an mdev; None if it has none or isn't known."""
    if isinstance(source, PciAddress):
        function = host.functions.get(source)
        return None if function is None else function.iommu_group
    if isinstance(source, MdevAddress):
        mdev = host.mdevs.get(source.uuid)
        return None if mdev is None else mdev.iommu_group
    return None
