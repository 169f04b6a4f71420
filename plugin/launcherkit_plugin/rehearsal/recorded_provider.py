"""Allocates devices of another node: answers what the provider there would, from the node's recorded facts."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import count
from typing import NamedTuple

from launcherkit.model.address import MdevAddress, PciAddress
from launcherkit.model.function import PciDetail, PciFunction
from launcherkit.model.host import HostFacts, Mdev
from launcherkit.resolve.vfio import CONTAINER_NODE, bound_to_vfio, is_bridge, vfio_nodes
from launcherkit_plugin.binding.group import as_bound
from launcherkit_plugin.devices.nodes import chosen_nodes, missing_node, node_sets
from launcherkit_plugin.model.device import NO_WISHES, Device, Grant, Resource, Usage, Wishes
from launcherkit_plugin.model.errors import DeviceUnhealthy
from launcherkit_plugin.rehearsal.offer import NodeOffer

_BINDS_TO = "vfio-pci"


class RecordedProvider(NamedTuple):
    """See `launcherkit_plugin.devices.provider.Provider`."""

    offer: NodeOffer
    changes_host: bool = False

    def wants(self, function: PciFunction) -> bool:  # noqa: ARG002  # no more facts can be read
        return False

    def resources(self, host: HostFacts, usage: Usage, now: float) -> tuple[Resource, ...]:  # noqa: ARG002
        return tuple(self.offer.resources)

    async def allocate(self, resource: Resource, ids: Sequence[str], wishes: Wishes = NO_WISHES) -> Grant:  # noqa: ARG002
        """See `Provider.allocate`.

        Raises:
            DeviceUnhealthy: the devices don't all have device nodes of the same kind.
        """
        devices = [resource.devices[key] for key in ids]
        facts = with_given(self.offer.facts, devices)
        functions = [function for device in devices for function in device.functions]
        nodes: tuple[str, ...] | None = ()
        if functions:
            nodes = chosen_nodes([node_sets(functions, facts)], self.offer.nodes)
        if nodes is None:
            missing = missing_node(functions, facts, self.offer.nodes)
            raise DeviceUnhealthy(
                f"{resource.name}: {', '.join(ids)} can't go to one container on {self.offer.name}: "
                f"{missing} is not there",
                "Bind them to vfio-pci on that node, or let its configuration say `nodes: auto`.",
                device=", ".join(ids),
                resource=resource.name,
            )
        for device in devices:
            if not device.functions:
                nodes = (*nodes, CONTAINER_NODE, *vfio_nodes(MdevAddress.parse(device.id), facts))
        listed = [str(function) for function in functions] if resource.lists_siblings else ids
        return Grant({resource.variable: ",".join(listed)}, tuple(dict.fromkeys(nodes)))

    async def check(self, resource: Resource, ids: Sequence[str]) -> None:
        """See `Provider.check`; recorded facts never change."""


def with_given(facts: HostFacts, devices: Sequence[Device]) -> HostFacts:
    """The host after these devices were allocated: bound or created, as far as that happens on demand."""
    unbound = [
        member
        for device in devices
        for group in sorted(device.groups)
        for member in facts.groups.get(group, ())
        if device.functions and _is_to_be_bound(member, device, facts)
    ]
    facts = as_bound(facts, list(dict.fromkeys(unbound)), _BINDS_TO)
    made = _with_groups({device.id: mdev for device in devices if (mdev := _made(device, facts)) is not None}, facts)
    details = dict(facts.details)
    for device in devices:
        for vf in device.functions if device.vgpu_types else ():
            details[vf] = _with_type(details[vf], device.vgpu_types)
    nodes = {f"/dev/vfio/{mdev.iommu_group}" for mdev in made.values()}
    return facts._replace(
        mdevs={**facts.mdevs, **made},
        details=details,
        nodes=None if facts.nodes is None else facts.nodes | nodes | ({CONTAINER_NODE} if made else set()),
    )


def _with_groups(made: Mapping[str, Mdev], facts: HostFacts) -> dict[str, Mdev]:
    """The mediated devices in the groups that the kernel would make for them: it takes the lowest free numbers."""
    used = {*facts.groups, *(mdev.iommu_group for mdev in facts.mdevs.values())}
    free = (number for number in count() if number not in used)
    return {uuid: mdev._replace(iommu_group=next(free)) for uuid, mdev in made.items()}


def _is_to_be_bound(member: PciAddress, device: Device, facts: HostFacts) -> bool:
    """Whether an Allocate binds a group member: so it is if the device is Healthy and not bound yet (K8)."""
    function, detail = facts.functions.get(member), facts.details.get(member)
    if function is None or device.vgpu_types or bound_to_vfio(function, detail) or is_bridge(function, detail):
        return False
    first = facts.functions.get(device.functions[0])
    return first is not None and not bound_to_vfio(first, facts.details.get(first.address))


def _with_type(detail: PciDetail, types: Collection[str]) -> PciDetail:
    """A VF with the vGPU type that an Allocate sets (G4)."""
    if detail.vgpu is None or detail.vgpu.current_type:
        return detail
    number = next((number for number, name in detail.vgpu.creatable if name in types), 0)
    return detail._replace(vgpu=detail.vgpu._replace(current_type=number))


def _made(device: Device, facts: HostFacts) -> Mdev | None:
    """The mediated device that an Allocate creates in a slot (G2); None if it exists, or for other devices."""
    parent = facts.mdev_parents.get(device.card)
    if device.functions or device.id in facts.mdevs or parent is None:
        return None
    for each in parent.types:
        if (each.name or each.id) in device.vgpu_types:
            return Mdev(device.id, parent.name, each.id, each.name, each.device_api, None)
    return None
