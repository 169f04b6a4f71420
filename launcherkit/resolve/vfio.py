"""VFIO's view of a function: whether its driver is a VFIO driver, and its device nodes (V1, V2)."""

from __future__ import annotations

from launcherkit.model.address import HostAddress, MdevAddress, PciAddress
from launcherkit.model.function import PciDetail, PciFunction, is_vfio_name
from launcherkit.model.host import HostFacts

CONTAINER_NODE = "/dev/vfio/vfio"
IOMMUFD_NODE = "/dev/iommu"


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


def group_node(group: int | None) -> str | None:
    """``/dev/vfio/<group>``."""
    return None if group is None else f"/dev/vfio/{group}"


def cdev_node(detail: PciDetail | None) -> str | None:
    """``/dev/vfio/devices/vfioN``; None without iommufd."""
    return None if detail is None or detail.vfio_dev is None else f"/dev/vfio/devices/{detail.vfio_dev}"


def group_of(source: HostAddress, host: HostFacts) -> int | None:
    """The IOMMU group of a function or an mdev; None if it has none or isn't known."""
    if isinstance(source, PciAddress):
        function = host.functions.get(source)
        return None if function is None else function.iommu_group
    if isinstance(source, MdevAddress):
        mdev = host.mdevs.get(source.uuid)
        return None if mdev is None else mdev.iommu_group
    return None


def vfio_nodes(device: PciAddress | MdevAddress, host: HostFacts) -> list[str]:
    """The nodes through which QEMU could open a device."""
    detail = host.details.get(device) if isinstance(device, PciAddress) else None
    found = (group_node(group_of(device, host)), cdev_node(detail))
    return [node for node in found if node is not None]
