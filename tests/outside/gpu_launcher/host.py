"""What is known of a host."""

from collections.abc import Mapping
from typing import assert_type

from launcherkit.model.address import PciAddress
from launcherkit.model.host import (
    Bar,
    HostFacts,
    Mdev,
    MdevParent,
    MdevType,
    NumaNode,
    PciDetail,
    PciFunction,
    PciLink,
    VgpuVf,
    is_vfio_name,
)


def facts(host: HostFacts) -> None:
    assert_type(host.known, bool)
    assert_type(host.functions, Mapping[PciAddress, PciFunction])
    assert_type(host.details, Mapping[PciAddress, PciDetail])
    assert_type(host.groups, Mapping[int, tuple[PciAddress, ...]])
    assert_type(host.mdevs, Mapping[str, Mdev])
    assert_type(host.mdev_parents, Mapping[str, MdevParent])
    assert_type(host.nodes, frozenset[str] | None)
    assert_type(host.container_dev, bool)
    assert_type(host.recorded, bool)
    assert_type(host.unknown, Mapping[PciAddress, str])
    assert_type(host.noiommu, frozenset[int])
    assert_type(host.numa, Mapping[int, NumaNode])
    assert_type(host.events, bytes | None)
    for address in host.functions:
        assert_type(host.physical_function(address), PciAddress)
        assert_type(host.slot_functions(address), list[PciFunction])
    for node in host.numa.values():
        assert_type((node.cpus, node.distances), tuple[frozenset[int], Mapping[int, int]])


def function(read: PciFunction) -> None:
    assert_type(read.address, PciAddress)
    assert_type((read.vendor, read.device), tuple[int, int])
    assert_type((read.subsystem_vendor, read.subsystem_device), tuple[int, int])
    assert_type(read.class_code, int)
    assert_type(read.driver, str | None)
    assert_type(read.iommu_group, int | None)
    assert_type(read.numa_node, int | None)
    assert_type(read.physfn, PciAddress | None)
    assert_type((read.is_vf, read.is_bridge_by_class, read.is_hd_audio), tuple[bool, bool, bool])
    assert_type((read.ids, read.model), tuple[str, tuple[int, int]])
    assert_type(is_vfio_name(read.driver), bool)


def detail(read: PciDetail) -> None:
    assert_type(read.revision, int | None)
    assert_type(read.header_type, int | None)
    assert_type(read.config_readable, bool)
    assert_type((read.driver_override, read.driver_module), tuple[str | None, str | None])
    assert_type(read.parents, tuple[str, ...])
    assert_type(read.virtfns, tuple[PciAddress, ...])
    assert_type((read.sriov_numvfs, read.sriov_totalvfs), tuple[int | None, int | None])
    assert_type(read.resources, tuple[Bar, ...])
    assert_type(read.has_rom, bool)
    assert_type(read.reset_methods, tuple[str, ...])
    assert_type((read.power_state, read.vfio_dev), tuple[str | None, str | None])
    assert_type(read.vgpu, VgpuVf | None)
    assert_type(read.link, PciLink | None)
    for bar in read.resources:
        assert_type((bar.line, bar.start, bar.end, bar.flags, bar.size), tuple[int, int, int, int, int])
    if read.vgpu:
        assert_type(read.vgpu.current_type, int)
        assert_type(read.vgpu.creatable, tuple[tuple[int, str], ...])
    if read.link:
        assert_type((read.link.speed, read.link.width), tuple[int | None, int | None])
        assert_type((read.link.max_speed, read.link.max_width), tuple[int | None, int | None])


def mediated(device: Mdev, parent: MdevParent) -> None:
    assert_type((device.uuid, device.parent, device.type_id), tuple[str, str, str])
    assert_type((device.type_name, device.device_api), tuple[str | None, str | None])
    assert_type(device.iommu_group, int | None)
    assert_type((parent.name, parent.address), tuple[str, PciAddress | None])
    assert_type(parent.types, tuple[MdevType, ...])
    for offered in parent.types:
        assert_type((offered.id, offered.name), tuple[str, str | None])
        assert_type((offered.device_api, offered.description), tuple[str | None, str | None])
        assert_type(offered.available_instances, int | None)
