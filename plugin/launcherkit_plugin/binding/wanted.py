"""What the configuration wants bound, and what it wants no longer. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from launcherkit.model.address import PciAddress
from launcherkit.model.function import PciFunction
from launcherkit.model.host import HostFacts
from launcherkit.resolve.siblings import may_come_along
from launcherkit.resolve.vfio import bound_to_vfio, is_bridge
from launcherkit_plugin.binding.group import members_to_bind
from launcherkit_plugin.binding.ledger import Record
from launcherkit_plugin.model.config import PciRule


class Task(NamedTuple):
    """Functions to be bound with their group, or one that has none."""

    asked: tuple[PciAddress, ...]
    state: tuple[tuple[PciAddress, str | None], ...]
    """The members with their drivers: where something has changed, another attempt is worth while at once."""

    @property
    def key(self) -> PciAddress:
        """By which it is known from one look to the next."""
        return self.state[0][0]


def wanted_functions(host: HostFacts, match: Callable[[PciFunction], PciRule | None]) -> frozenset[PciAddress]:
    """The functions of rules with ``bind``, and those that come along with them from their slots (S1).

    VFs of vGPU cards have drivers of their own to be had by (G4).
    """
    found: set[PciAddress] = set()
    for address, function in host.functions.items():
        if is_bridge(function, host.details.get(address)):
            continue
        rule = match(function)
        if rule is None or not rule.bind or _is_vgpu(address, host):
            continue
        found.add(address)
        if rule.siblings == "slot" and not function.is_vf:
            beside = host.slot_functions(address)
            found.update(each.address for each in beside if may_come_along(each, host) and each.model != function.model)
    return frozenset(found)


def tasks(wanted: Iterable[PciAddress], host: HostFacts) -> list[Task]:
    """The groups of what is wanted that have a member without a VFIO driver, by their first member."""
    asked: dict[tuple[PciFunction, ...], list[PciAddress]] = {}
    for address in sorted(wanted):
        function = host.functions[address]
        group = (address,) if function.iommu_group is None else host.groups.get(function.iommu_group, (address,))
        members = members_to_bind(group, host)
        if not all(bound_to_vfio(member, host.details.get(member.address)) for member in members):
            asked.setdefault(members, []).append(address)
    return [
        Task(tuple(addresses), tuple((member.address, member.driver) for member in members))
        for members, addresses in asked.items()
    ]


def unwanted(records: Iterable[Record], wanted: frozenset[PciAddress]) -> list[Record]:
    """What the configuration had bound, and no longer wants. What a command has bound is the operator's."""
    return [
        record
        for record in records
        if record.by == "configuration" and wanted.isdisjoint(record.asked) and record.is_settled
    ]


def _is_vgpu(address: PciAddress, host: HostFacts) -> bool:
    detail = host.details.get(address)
    return detail is not None and detail.vgpu is not None
