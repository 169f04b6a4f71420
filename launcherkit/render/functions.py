"""Describes devices in words."""

from __future__ import annotations

from launcherkit.colour import Colours
from launcherkit.model.address import HostAddress, MdevAddress, PciAddress
from launcherkit.model.function import PciFunction
from launcherkit.model.host import HostFacts
from launcherkit.render.columns import visible
from launcherkit.resolve.pci_class import class_name
from launcherkit.resolve.vfio import bound_to_vfio, is_bridge, is_vgpu_vf
from launcherkit.sources.pci_ids import PciNames


def what(address: HostAddress, facts: HostFacts, names: PciNames) -> str:
    """``Audio device: NVIDIA Corporation ... [10de:1aef]``, or that it isn't on this host, or that it is unknown."""
    if isinstance(address, PciAddress):
        function = facts.functions.get(address)
        if function is not None:
            return what_function(function, names)
    elif isinstance(address, MdevAddress):
        mdev = facts.mdevs.get(address.uuid)
        if mdev is not None:
            type_ = f"{mdev.type_name} ({mdev.type_id})" if mdev.type_name else mdev.type_id
            return visible(f"mediated device {type_}" + (f" on {mdev.parent}" if mdev.parent else ""))
    else:
        return "USB device"
    kind = "PCI function" if isinstance(address, PciAddress) else "mediated device"
    return f"{kind}, not on this host" if facts.known else f"{kind}; nothing is known of the host"


def what_function(function: PciFunction, names: PciNames) -> str:
    """As `what`, for a known function."""
    kind = names.class_(function) or class_name(function)
    name, board = names.device(function), names.board(function)
    text = f"{kind}: {name} [{function.ids}]" if name else f"{kind} [{function.ids}]"
    if board:
        text += f" ({board})"
    return text + (f", VF of {function.physfn}" if function.physfn else "")


def binding(address: HostAddress, facts: HostFacts, colours: Colours) -> str:
    """The driver and the group: ``vfio-pci, group 44``; empty if the device is unknown."""
    if isinstance(address, MdevAddress):
        mdev = facts.mdevs.get(address.uuid)
        return f"group {mdev.iommu_group}" if mdev and mdev.iommu_group is not None else ""
    function = facts.functions.get(address) if isinstance(address, PciAddress) else None
    if function is None:
        return ""
    group = "no IOMMU group" if function.iommu_group is None else f"group {function.iommu_group}"
    return f"{driver_of(function, facts, colours)}, {group}"


def driver_of(function: PciFunction, facts: HostFacts, colours: Colours) -> str:
    """The driver's name, coloured by what it means for VFIO."""
    if function.driver is None:
        return "no driver"
    driver = visible(function.driver)
    if bound_to_vfio(function, facts.details.get(function.address)):
        return colours.good(driver)
    return driver if leaves_group_viable(function, facts) else colours.bad(driver)


def leaves_group_viable(function: PciFunction, facts: HostFacts) -> bool:
    """Whether it is a bridge, or bound to ``pci-stub``: not in the way, though not bound to VFIO (V1)."""
    return is_bridge(function, facts.details.get(function.address)) or function.driver == "pci-stub"


def part_in_group(function: PciFunction, facts: HostFacts) -> str:
    """What an unattached member means for its group (V1)."""
    detail = facts.details.get(function.address)
    if is_bridge(function, detail):
        return "a bridge, which does not block the group"
    if detail is not None and is_vgpu_vf(detail):
        return "a vGPU on its vendor's driver"
    if function.driver is None or function.driver == "pci-stub" or bound_to_vfio(function, detail):
        return "not in the way"
    return "used by the host"
