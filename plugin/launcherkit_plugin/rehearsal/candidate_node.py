"""A node to which a VM could go: the daemon's allocator, run on the known facts about that node."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from launcherkit.choose.nodes import CONTAINER_NODE, group_node, node_set
from launcherkit.choose.viability import check_viability, touched_groups
from launcherkit.errors import NODE_MISSING, Collector, LauncherkitError, NotOnHost, TooFew, counted
from launcherkit.model.address import MdevAddress, PciAddress
from launcherkit.model.candidate import DeviceChoice, NodeAllocation, PromisedDevice
from launcherkit.model.host import HostFacts, Mdev, PciDetail, PciFunction, bound_to_vfio, describe, is_bridge
from launcherkit_plugin.allocation.allocator import Allocator, Offer
from launcherkit_plugin.allocation.reservations import Reservations
from launcherkit_plugin.binding.group import as_bound
from launcherkit_plugin.devices.nodes import chosen_nodes, missing_node, node_sets
from launcherkit_plugin.model.device import NO_PREFERENCES, Device, Grant, Preferences, Resource, Usage
from launcherkit_plugin.model.errors import DEVICE_UNHEALTHY, NOT_OFFERED
from launcherkit_plugin.rehearsal.node_record import NodeOffer

_BINDS_TO = "vfio-pci"


class RecordedProvider(NamedTuple):
    """See `launcherkit_plugin.devices.provider.Provider`."""

    offer: NodeOffer
    changes_host: bool = False

    def wants(self, function: PciFunction) -> bool:  # noqa: ARG002  # no more facts can be read
        return False

    def resources(self, host: HostFacts, usage: Usage, now: float) -> tuple[Resource, ...]:  # noqa: ARG002
        return tuple(self.offer.resources)

    async def allocate(self, resource: Resource, ids: Sequence[str], wishes: Preferences = NO_PREFERENCES) -> Grant:  # noqa: ARG002
        """See `Provider.allocate`.

        Raises:
            DEVICE_UNHEALTHY: the devices don't all have device nodes of the same kind.
        """
        devices = [resource.devices[key] for key in ids]
        facts = with_allocated(self.offer.facts, devices)
        functions = [function for device in devices for function in device.functions]
        nodes: tuple[str, ...] | None = ()
        if functions:
            nodes = chosen_nodes([node_sets(functions, facts)], self.offer.nodes)
        if nodes is None:
            missing = missing_node(functions, facts, self.offer.nodes)
            raise DEVICE_UNHEALTHY(
                f"{resource.name}: {', '.join(ids)} can't go to one container on {self.offer.name}: "
                f"{missing} is not there",
                "Bind them to vfio-pci on that node, or let its configuration say `nodes: auto`.",
                device=", ".join(ids),
                resource=resource.name,
            )
        for device in devices:
            if device.usb:
                nodes = (*nodes, *(address.node for address in device.usb))
            elif not device.functions:
                nodes = (*nodes, *node_set([MdevAddress.parse(device.id)], facts, iommufd=False).nodes)
        listed = [str(address) for device in devices for address in device.usb] or ids
        if resource.lists_siblings:
            listed = [str(function) for function in functions]
        return Grant({resource.variable: ",".join(listed)}, tuple(dict.fromkeys(nodes)))

    async def check(self, resource: Resource, ids: Sequence[str]) -> None:
        """See `Provider.check`; recorded facts never change."""


def with_allocated(facts: HostFacts, devices: Sequence[Device]) -> HostFacts:
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
    nodes = {node for mdev in made.values() if (node := group_node(mdev.iommu_group)) is not None}
    return facts._replace(
        mdevs={**facts.mdevs, **made},
        details=details,
        nodes=None if facts.nodes is None else facts.nodes | nodes | ({CONTAINER_NODE} if made else set()),
    )


def _with_groups(made: Mapping[str, Mdev], facts: HostFacts) -> dict[str, Mdev]:
    """The mediated devices in the groups that the kernel would make for them: it takes the lowest free numbers."""
    used = {*facts.groups, *(mdev.iommu_group for mdev in facts.mdevs.values())}
    free = (number for number in itertools.count() if number not in used)
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
    for mdev_type in parent.types:
        if (mdev_type.name or mdev_type.id) in device.vgpu_types:
            return Mdev(device.id, parent.name, mdev_type.id, mdev_type.name, mdev_type.device_api, None)
    return None


_MAX_REASONS = 8
"""For each resource: a node may have hundreds of VFs with the same fault."""
_MAX_NAMES = 6


class _Chosen(NamedTuple):
    """A device that the container gets."""

    resource: str
    device: Device
    choice: DeviceChoice


class CandidateNode:
    """See `launcherkit.model.candidate.NodeCandidate`."""

    def __init__(self, offer: NodeOffer) -> None:
        self._offer = offer

    @property
    def name(self) -> str:
        return self._offer.name

    @property
    def offer(self) -> NodeOffer:
        """What is known of it."""
        return self._offer

    def allocate(self, counts: Mapping[str, int]) -> NodeAllocation:
        """See `launcherkit.model.candidate.NodeCandidate.allocate`.

        Raises:
            NOT_OFFERED, SeveralErrors: too few devices are available; includes what is wrong with the others.
            GROUP_SPLIT: the node's allocator would refuse the devices.
        """
        allocator = Allocator(Reservations(), lambda: 0.0)
        resources = self._advertised(allocator, filter(_is_for_vms, self._offer.resources))
        self._refuse_too_many(counts, resources)
        chosen, grants = asyncio.run(self._allocated(allocator, counts, resources))
        facts = with_allocated(self._offer.facts, [each.device for each in chosen])
        return NodeAllocation(
            tuple(_given(each) for each in chosen),
            {name: value for grant in grants for name, value in grant.env.items()},
            facts._replace(
                nodes=frozenset(node for grant in grants for node in grant.nodes), container_dev=True, recorded=True
            ),
        )

    def resources(self) -> tuple[Resource, ...]:
        """What it advertises now: devices that are kept from others by what is in use have a problem."""
        return tuple(self._advertised(Allocator(Reservations(), lambda: 0.0), self._offer.resources).values())

    @property
    def held(self) -> frozenset[str]:
        """The IDs of devices that pods have."""
        return self._offer.usage.kept_ids

    def _advertised(self, allocator: Allocator, resources: Iterable[Resource]) -> Mapping[str, Resource]:
        allocator.observe(self._offer.usage, 0.0)
        provider = RecordedProvider(self._offer)
        advertised = allocator.advertise({each.name: Offer(each, provider) for each in resources}, self._offer.facts)
        return {name: offer.resource for name, offer in advertised.items()}

    def _refuse_too_many(self, requested: Mapping[str, int], resources: Mapping[str, Resource]) -> None:
        errors = Collector()
        for name, count in requested.items():
            resource = resources.get(name)
            available = [] if resource is None else _free(resource, self._offer.usage)
            if len(available) < count:
                reasons = list(self._reasons(name, resource))
                errors.add(self._too_few(name, count, resource, len(available), explained=bool(reasons)))
                errors.extend(reasons)
        errors.raise_if_any()

    async def _allocated(
        self, allocator: Allocator, requested: Mapping[str, int], resources: Mapping[str, Resource]
    ) -> tuple[list[_Chosen], list[Grant]]:
        """What the kubelet does: for each resource, it asks which devices are preferred, and allocates these."""
        chosen: list[_Chosen] = []
        grants: list[Grant] = []
        for name, count in requested.items():
            available = _free(resources[name], self._offer.usage)
            choice: DeviceChoice = "preferred" if len(available) > count else "all"
            ids = allocator.prefer(name, available, [], count)
            grants += await allocator.allocate(name, [ids])
            chosen += [_Chosen(name, resources[name].devices[key], choice) for key in ids]
        return chosen, grants

    def _too_few(self, name: str, count: int, resource: Resource | None, available: int, *, explained: bool) -> TooFew:
        asked = f"{self.name} has {available} of the {count} {name} that the VM asks for"
        if resource is None:
            names = sorted(each.name for each in self._offer.resources if _is_for_vms(each))
            more = ", ..." if len(names) > _MAX_NAMES else ""
            text = f"{asked}: it advertises {', '.join(names[:_MAX_NAMES]) or 'nothing'}{more}"
            if any(each.dra and each.name == name for each in self._offer.resources):
                text += "; its own are for DRA, and the scheduler chooses them"
        else:
            held = self._offer.usage.kept_ids.intersection(resource.devices)
            unhealthy = [each for each in resource.devices.values() if not each.healthy and each.id not in held]
            text = f"{asked}: it advertises {counted(len(resource.devices), 'device')}"
            text += f", {len(held)} of them in use" if held else ""
            text += f", {len(unhealthy)} Unhealthy" if unhealthy else ""
            text += "".join(f": {each.problem.text}" for each in unhealthy[:1] if each.problem and not explained)
        return NOT_OFFERED(
            text,
            "Free or repair the devices that are named, or run the VM on another node. Names come from this machine's "
            "pci.ids: if the node's differ, give the configuration of its device plugin with --config.",
            resource=name,
        )

    def _reasons(self, name: str, resource: Resource | None) -> Iterator[LauncherkitError]:
        """What is wrong with the unavailable devices; each error once."""
        reported: set[str] = set()
        for functions in self._unavailable(name, resource):
            errors = check_viability(touched_groups(functions, self._offer.facts), (), self._offer.facts)
            for error in list(errors) or self._without_nodes(functions):
                if error.message not in reported and len(reported) < _MAX_REASONS:
                    reported.add(error.message)
                    yield error

    def _without_nodes(self, functions: Sequence[PciAddress]) -> Iterator[NotOnHost]:
        """An error if the functions are viable but QEMU has no device node to open (V2)."""
        facts = self._offer.facts
        if not functions or functions[0] not in facts.functions or facts.nodes is None:
            return
        first, detail = facts.functions[functions[0]], facts.details.get(functions[0])
        node = missing_node(functions, facts, self._offer.nodes)
        if node in facts.nodes or (detail is not None and detail.vgpu is not None):  # a VF without a type has no node
            return
        yield NODE_MISSING(
            f"{describe(first)}: the device node {node} is missing on {self.name}",
            "See on that node what `launcherkit doctor` says of it."
            if bound_to_vfio(first, detail)
            else f"Bind it on that node, with its whole group: `launcherkit-plugin bind {first.address}`.",
            file=node,
            device=str(first.address),
        )

    def _unavailable(self, name: str, resource: Resource | None) -> Iterator[Sequence[PciAddress]]:
        if resource is not None:
            yield from (device.functions for device in resource.devices.values() if not device.healthy)
        yield from ((address,) for address in self._offer.left_out.get(name, ()))


def _is_for_vms(resource: Resource) -> bool:
    """Whether a launcher in a pod gets its devices, through the device plugin (K10)."""
    return not resource.dra and resource.use == "vm"


def _given(chosen: _Chosen) -> PromisedDevice:
    device = chosen.device
    functions = tuple(map(str, device.functions))
    return PromisedDevice(
        chosen.resource, device.id, functions, tuple(sorted(device.groups)), device.numa_node, chosen.choice
    )


def _free(resource: Resource, usage: Usage) -> list[str]:
    """The IDs of the devices that the kubelet could allocate."""
    kept = usage.kept_ids
    return [device.id for device in resource.devices.values() if device.healthy and device.id not in kept]
