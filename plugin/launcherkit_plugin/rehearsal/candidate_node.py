"""A node to which a VM could go: the daemon's allocator, run on the known facts about that node."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from launcherkit.errors import Collector, LauncherkitError, NodeMissing, counted
from launcherkit.model.address import PciAddress
from launcherkit.model.candidate import DeviceChoice, Given, PromisedDevice
from launcherkit.resolve.pci_class import describe
from launcherkit.resolve.vfio import bound_to_vfio
from launcherkit.resolve.viability import check_viability, touched_groups
from launcherkit_plugin.allocation.allocator import Allocator, Offer
from launcherkit_plugin.allocation.reservations import Reservations
from launcherkit_plugin.devices.nodes import missing_node
from launcherkit_plugin.model.device import Device, Grant, Resource
from launcherkit_plugin.model.errors import NotOffered
from launcherkit_plugin.rehearsal.offer import NodeOffer, free
from launcherkit_plugin.rehearsal.recorded_provider import RecordedProvider, with_given

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

    def give(self, wanted: Mapping[str, int]) -> Given:
        """See `launcherkit.model.candidate.NodeCandidate.give`.

        Raises:
            NotOffered, SeveralErrors: too few devices are available; includes what is wrong with the others.
            GroupSplit: the node's allocator would refuse the devices.
        """
        allocator = Allocator(Reservations(), lambda: 0.0)
        allocator.observe(self._offer.usage, 0.0)
        provider = RecordedProvider(self._offer)
        offers = {each.name: Offer(each, provider) for each in self._offer.resources if _is_for_vms(each)}
        advertised = allocator.advertise(offers, self._offer.facts)
        resources = {name: offer.resource for name, offer in advertised.items()}
        self._refuse_too_many(wanted, resources)
        chosen, grants = asyncio.run(self._allocated(allocator, wanted, resources))
        facts = with_given(self._offer.facts, [each.device for each in chosen])
        return Given(
            tuple(_given(each) for each in chosen),
            {name: value for grant in grants for name, value in grant.env.items()},
            facts._replace(
                nodes=frozenset(node for grant in grants for node in grant.nodes), container_dev=True, recorded=True
            ),
        )

    def _refuse_too_many(self, wanted: Mapping[str, int], resources: Mapping[str, Resource]) -> None:
        errors = Collector()
        for name, count in wanted.items():
            resource = resources.get(name)
            available = [] if resource is None else free(resource, self._offer.usage)
            if len(available) < count:
                reasons = list(self._reasons(name, resource))
                errors.add(self._too_few(name, count, resource, len(available), explained=bool(reasons)))
                errors.extend(reasons)
        errors.raise_if_any()

    async def _allocated(
        self, allocator: Allocator, wanted: Mapping[str, int], resources: Mapping[str, Resource]
    ) -> tuple[list[_Chosen], list[Grant]]:
        """What the kubelet does: for each resource, it asks which devices are preferred, and allocates these."""
        chosen: list[_Chosen] = []
        grants: list[Grant] = []
        for name, count in wanted.items():
            available = free(resources[name], self._offer.usage)
            choice: DeviceChoice = "preferred" if len(available) > count else "all"
            ids = allocator.prefer(name, available, [], count)
            grants += await allocator.allocate(name, [ids])
            chosen += [_Chosen(name, resources[name].devices[key], choice) for key in ids]
        return chosen, grants

    def _too_few(
        self, name: str, count: int, resource: Resource | None, available: int, *, explained: bool
    ) -> NotOffered:
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
        return NotOffered(
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

    def _without_nodes(self, functions: Sequence[PciAddress]) -> Iterator[NodeMissing]:
        """An error if the functions are viable but QEMU has no device node to open (V2)."""
        facts = self._offer.facts
        if not functions or functions[0] not in facts.functions or facts.nodes is None:
            return
        first, detail = facts.functions[functions[0]], facts.details.get(functions[0])
        node = missing_node(functions, facts, self._offer.nodes)
        if node in facts.nodes or (detail is not None and detail.vgpu is not None):  # a VF without a type has no node
            return
        yield NodeMissing(
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
