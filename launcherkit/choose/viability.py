"""Checks whether the kernel would let QEMU have what will be attached (V1, V3)."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator

from launcherkit.errors import (
    DEVICE_ASLEEP,
    DEVICE_GONE,
    GROUP_NOT_VIABLE,
    NO_IOMMU_GROUP,
    VGPU_PHYSICAL_FUNCTION,
    ErrorFields,
    GroupNotViable,
    LauncherkitError,
)
from launcherkit.model.address import HostAddress, MdevAddress, PciAddress
from launcherkit.model.host import HostFacts, PciDetail, PciFunction, bound_to_vfio, describe, group_of, is_bridge
from launcherkit.model.plan import GroupMember, Note, TouchedGroup


def touched_groups(attached: Iterable[HostAddress], host: HostFacts) -> tuple[TouchedGroup, ...]:
    """The IOMMU groups of all attached devices, by number, with all their members."""
    sources = set(attached)
    numbers = {group_of(source, host) for source in sources}
    functions, details = host.functions, host.details
    groups: list[TouchedGroup] = []
    for number in sorted([number for number in numbers if number is not None]):
        members: list[GroupMember] = []
        for address in host.groups.get(number, ()):
            function = functions.get(address)
            if function is not None:
                bridge = is_bridge(function, details.get(address))
                members.append(GroupMember(address, function.driver, address in sources, bridge))
        groups.append(TouchedGroup(number, tuple(members)))
    return tuple(groups)


TURN_ON = "Turn the IOMMU on in the firmware's setup: VT-d, AMD-Vi or SMMU. In a virtual machine: give it a vIOMMU."
"""What to do where there is no IOMMU."""


def check_isolation(attached: Iterable[HostAddress], host: HostFacts) -> Iterator[GroupNotViable]:
    """An error for each device that is in no IOMMU group, or in one that only VFIO's no-IOMMU mode made (V1).

    A mediated device's group is VFIO's own, in every mode, and its parent needs none.

    Args:
        attached: what goes to guests.
        host: facts about it; a device that is not among them is not judged.
    """
    for source in attached:
        if isinstance(source, PciAddress):
            function = host.functions.get(source)
            if function is not None and (function.iommu_group is None or function.iommu_group in host.noiommu):
                yield _not_isolated(function)
        elif isinstance(source, MdevAddress):
            mdev = host.mdevs.get(source.uuid)
            if mdev is not None and mdev.iommu_group is None:
                yield NO_IOMMU_GROUP(
                    f"the mediated device {source.uuid} is in no IOMMU group",
                    "Its parent's driver, on older kernels the module vfio_mdev, must give it to VFIO; the kernel's "
                    "log (dmesg) may say why it didn't. Then remove the mediated device and create it again.",
                    device=source.uuid,
                )


def _not_isolated(function: PciFunction) -> GroupNotViable:
    """The error for a function; its group, if it has one, is of VFIO's no-IOMMU mode."""
    address, group = str(function.address), function.iommu_group
    remedy = (
        f"{TURN_ON} The kernel's command line needs intel_iommu=on with an Intel processor, nothing with an AMD one, "
        "and must not have iommu=off or amd_iommu=off."
    )
    if group is None:
        return NO_IOMMU_GROUP(f"{describe(function)} is in no IOMMU group", remedy, device=address)
    return NO_IOMMU_GROUP(
        f"{describe(function)} is in no group of an IOMMU: /dev/vfio/noiommu-{group} is of VFIO's unsafe no-IOMMU "
        "mode, where the device can reach all of the host's memory",
        f"{remedy} Load the module vfio without enable_unsafe_noiommu_mode.",
        device=address,
        group=group,
    )


def check_viability(
    groups: Iterable[TouchedGroup], managed: Container[HostAddress], host: HostFacts
) -> Iterator[LauncherkitError]:
    """An error for each function that keeps a group from QEMU (V1), or that no guest can use (V3).

    The errors are `GroupNotViable`, `VGPU_PHYSICAL_FUNCTION`, `DEVICE_ASLEEP` and `DEVICE_GONE`.

    Args:
        groups: from `touched_groups`.
        managed: functions that libvirt itself binds to vfio-pci, whose present driver doesn't matter.
        host: facts about all members.
    """
    for group in groups:
        for address in host.groups.get(group.number, ()) if host.unknown else ():
            if address in host.unknown:
                yield _unreadable_member(group, address, host.unknown[address])
        for member in group.members:
            address, _, attached, bridge = member
            function, detail = host.functions[address], host.details.get(address)
            if attached and detail is not None:
                yield from _check_attached(function, detail, host)
            if not bridge and address not in managed and not _leaves_group_alone(member, function, detail):
                yield _not_viable(group, member, function, host)


def notes_on_drivers(
    groups: Iterable[TouchedGroup], managed: Container[HostAddress], host: HostFacts
) -> Iterator[Note]:
    """Notes on what libvirt rejects although the kernel allows it; arguments as for `check_viability`."""
    for group in groups:
        for member in group.members:
            if (member.driver is None or member.bridge) and member.address not in managed:
                function = host.functions[member.address]
                if member.driver is None and member.attached:
                    yield Note(
                        "no-driver",
                        f"{describe(function)} has no driver; libvirt requires it to be bound to vfio-pci "
                        "or managed='yes'",
                    )
                elif not _leaves_group_alone(member, function, host.details.get(member.address)):
                    yield _bridge_driver(group, member, function)


def _leaves_group_alone(member: GroupMember, function: PciFunction, detail: PciDetail | None) -> bool:
    """Whether the member's driver, if it has one, is known to do no DMA of its own."""
    return (
        bound_to_vfio(function, detail)
        or member.driver in (None, "pci-stub")
        or (member.driver == "pcieport" and (member.bridge or function.is_bridge_by_class))
    )


def _bridge_driver(group: TouchedGroup, member: GroupMember, function: PciFunction) -> Note:
    """A note on a bridge with a driver: Linux up to 5.18 ignores it, later versions don't."""
    return Note(
        "bridge-driver",
        f"{describe(function)} of IOMMU group {group.number} is bound to {member.driver}: Linux 5.19 and later refuse "
        f"the group until it is not: echo {member.address} > /sys/bus/pci/devices/{member.address}/driver/unbind",
    )


def _unreadable_member(group: TouchedGroup, address: PciAddress, cause: str) -> GroupNotViable:
    """The error for an unreadable member: what is unknown counts as in the way (T2)."""
    return GROUP_NOT_VIABLE(
        f"IOMMU group {group.number} may not be viable: {address}, a member of it, can't be read: {cause}",
        "Mend what keeps it from being read; the kernel's log (dmesg) may say more.",
        device=str(address),
        group=group.number,
    )


def vgpus_of(function: PciFunction, host: HostFacts) -> str | None:
    """Why a function must keep its driver, and what to do instead; None if nothing depends on the driver.

    When a physical function loses its driver, its VFs and mdevs vanish, even those that guests use.
    """
    address, detail = function.address, host.details.get(function.address)
    if detail is not None and (detail.virtfns or detail.sriov_numvfs):
        number = detail.sriov_numvfs or len(detail.virtfns)
        return (
            f"has VFs ({number}), which would be gone with its driver. Give guests one of these; or, if none is in "
            f"use, remove them first: echo 0 > /sys/bus/pci/devices/{address}/sriov_numvfs"
        )
    made = [uuid for uuid, mdev in host.mdevs.items() if mdev.parent == str(address)]
    if made:
        return (
            f"has mediated devices ({len(made)}), which would be gone with its driver. Give guests one of these; or, "
            f"if none is in use, remove them first: echo 1 > /sys/bus/mdev/devices/{made[0]}/remove"
        )
    return None


def _not_viable(group: TouchedGroup, member: GroupMember, function: PciFunction, host: HostFacts) -> GroupNotViable:
    attached = ", ".join(str(each.address) for each in group.members if each.attached)
    path = f"/sys/bus/pci/devices/{member.address}"
    relation = "which is to be attached" if member.attached else f"which shares it with {attached}"
    # The node may depend on a member that nobody asked for, so unbinding it isn't the first advice.
    first = (
        "Free it on the node:"
        if member.attached
        else (
            "Put the cards into groups of their own, by another PCIe slot or ACS, or allocate another device. "
            f"If the node can do without {member.address}, free it there:"
        )
    )
    message = f"IOMMU group {group.number} is not viable: {describe(function)}, {relation}, is bound to {member.driver}"
    facts: ErrorFields = {"device": str(member.address), "group": group.number, "driver": str(member.driver)}
    in_use = vgpus_of(function, host)
    if in_use is not None:
        return GROUP_NOT_VIABLE(message, f"{describe(function)} {in_use}", **facts)
    bind = f"`launcherkit-plugin bind {member.address}` binds its whole group to vfio-pci; by hand, as root:"
    return GROUP_NOT_VIABLE(
        message,
        f"{first} {bind}\necho vfio-pci > {path}/driver_override\necho {member.address} > {path}/driver/unbind\n"
        f"echo {member.address} > /sys/bus/pci/drivers_probe",
        **facts,
    )


def _check_attached(function: PciFunction, detail: PciDetail, host: HostFacts) -> Iterator[LauncherkitError]:
    """Errors for functions that no guest can use (V3)."""
    if detail.virtfns and any(
        (vf := host.details.get(address)) is not None and vf.vgpu is not None for address in detail.virtfns
    ):
        yield VGPU_PHYSICAL_FUNCTION(
            f"{describe(function)} is the physical function of an SR-IOV vGPU card",
            "Its VFs are what guests get: allocate one with a vGPU type, or disable SR-IOV to pass the whole card "
            "through.",
            device=str(function.address),
        )
    if detail.power_state == "D3cold":
        yield DEVICE_ASLEEP(
            f"{describe(function)} is in power state D3cold",
            f"Wake it on the node: echo on > /sys/bus/pci/devices/{function.address}/power/control, and keep its slot "
            "powered.",
            device=str(function.address),
        )
    if not detail.config_readable:
        yield DEVICE_GONE(
            f"{describe(function)} has fallen off the bus: its config space reads all ones",
            "Reset or power-cycle the card; on the node: see `dmesg` for AER or Xid messages, then remove and rescan "
            "it.",
            device=str(function.address),
        )
