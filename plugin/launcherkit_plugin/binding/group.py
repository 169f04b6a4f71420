"""What has to be bound: IOMMU groups, whole (K8), for what was asked for or what the configuration wants."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from launcherkit.errors import Collector, NotOnHost
from launcherkit.model.address import PciAddress
from launcherkit.model.function import PciFunction
from launcherkit.model.host import HostFacts
from launcherkit.resolve.pci_class import describe, is_chipset
from launcherkit.resolve.siblings import may_come_along
from launcherkit.resolve.vfio import bound_to_vfio, group_node, group_of, is_bridge
from launcherkit_plugin.binding.in_use import HostUse
from launcherkit_plugin.binding.ledger import Record
from launcherkit_plugin.host.guarded import group_key
from launcherkit_plugin.model.config import PciRule
from launcherkit_plugin.model.errors import BindRefused

VFIO_PCI = "vfio-pci"


class GroupPlan(NamedTuple):
    """One IOMMU group."""

    number: int
    asked: tuple[PciAddress, ...]
    """What was asked for of it."""
    members: tuple[PciFunction, ...]
    """See `members_to_bind`."""
    change: tuple[PciFunction, ...]
    """Members that no VFIO driver has. Those with no driver and with pci-stub are among them: a driver could still
    take the one, and the other can't be handed to a guest."""

    @property
    def addresses(self) -> tuple[PciAddress, ...]:
        """Those of all members."""
        return tuple(member.address for member in self.members)


def plan_groups(addresses: Iterable[PciAddress], host: HostFacts) -> tuple[GroupPlan, ...]:
    """The groups of some functions, by number.

    Args:
        addresses: functions.
        host: facts about them and about all members of their groups.

    Raises:
        NotOnHost: there is no such function.
        BindRefused: it is a bridge, or there is no IOMMU.
    """
    errors = Collector()
    asked: dict[int, list[PciAddress]] = {}
    for address in dict.fromkeys(addresses):
        function = host.functions.get(address)
        if address in host.unknown:
            errors.add(_unreadable(address, host))
        elif function is None:
            errors.add(not_on_host(address))
        elif is_bridge(function, host.details.get(address)):
            errors.add(
                BindRefused(
                    f"{describe(function)} is a bridge",
                    "Bind what is behind it: bridges stay as they are.",
                    device=str(address),
                )
            )
        elif function.iommu_group is None:
            errors.add(
                BindRefused(
                    f"{describe(function)} has no IOMMU group",
                    "Switch the IOMMU on, in the firmware and by intel_iommu=on or amd_iommu=on on the kernel's "
                    "command line; `launcherkit doctor` has more.",
                    device=str(address),
                )
            )
        else:
            asked.setdefault(function.iommu_group, []).append(address)
    for number in asked:
        for member in host.groups[number]:
            if member in host.unknown:
                errors.add(_unreadable(member, host))
    errors.raise_if_any()
    return tuple(_plan(number, asked[number], host) for number in sorted(asked))


def _plan(number: int, asked: Sequence[PciAddress], host: HostFacts) -> GroupPlan:
    members = members_to_bind(host.groups[number], host)
    change = tuple(member for member in members if not bound_to_vfio(member, host.details.get(member.address)))
    return GroupPlan(number, tuple(asked), members, change)


def members_to_bind(group: Iterable[PciAddress], host: HostFacts) -> tuple[PciFunction, ...]:
    """The members of a group that VFIO drivers must have: all but bridges, and what of the chipset has no driver.

    An ISA bridge without a driver keeps no group from VFIO (V1), and with vfio-pci it could be put to sleep.
    """
    known = (host.functions[member] for member in group if member in host.functions)
    return tuple(
        member
        for member in known
        if not is_bridge(member, host.details.get(member.address))
        and not (is_chipset(member) and member.driver is None)
    )


def check_free(plan: GroupPlan, host: HostFacts, uses: Mapping[PciAddress, Sequence[HostUse]], *, force: bool) -> None:
    """Refuse where the host itself needs what would be taken from it.

    Args:
        plan: a group.
        host: facts about its members.
        uses: from `launcherkit_plugin.binding.in_use.read_uses`.
        force: what the host uses is taken all the same; what guests may have a part of never is.

    Raises:
        BindRefused, SeveralErrors: what is in the way.
    """
    errors = Collector()
    for member in plan.change:
        who = describe(member) if member.address in plan.asked else f"{describe(member)}, in IOMMU group {plan.number},"
        for what, remedy in _in_the_way(member, host, uses.get(member.address, ()), force=force):
            errors.add(BindRefused(f"{who} {what}", remedy, device=str(member.address), group=plan.number))
    errors.raise_if_any()


def _in_the_way(
    member: PciFunction, host: HostFacts, uses: Sequence[HostUse], *, force: bool
) -> Iterator[tuple[str, str]]:
    """Why one must stay with its driver, and what to do."""
    detail = host.details.get(member.address)
    if detail is not None and (detail.virtfns or detail.sriov_numvfs):
        yield (
            f"has {detail.sriov_numvfs} VFs, which would be gone with its driver",
            f"Bind its VFs instead, or take them away: echo 0 > /sys/bus/pci/devices/{member.address}/sriov_numvfs",
        )
    if is_chipset(member) and not force:
        remedy = (
            "Unbind its driver by hand, which is all that VFIO requires, or put the cards into groups of their own, by "
            "another PCIe slot or ACS. --force binds it like any other."
        )
        yield f"is part of this host's chipset, on driver {member.driver}", remedy
    for use in uses:
        if use.by_guests:
            yield f"can't be taken from its driver: {use.text}", "Remove those first."
        elif not force:
            yield (
                f"is in use by this host: {use.text}",
                "Stop using it on the host first. --force takes it anyway.",
            )


def _unreadable(address: PciAddress, host: HostFacts) -> BindRefused:
    """T2: what it is used for isn't known either."""
    return BindRefused(
        f"{address} can't be read: {host.unknown[address]}",
        "Fix what keeps it from being read; the kernel's log (dmesg) may say more.",
        device=str(address),
    )


def not_on_host(address: PciAddress) -> NotOnHost:
    """There is no such function."""
    return NotOnHost(
        f"{address} is not on this host", "`lspci -D` lists the addresses that there are.", device=str(address)
    )


class Task(NamedTuple):
    """Functions to be bound with their group, or one that has none."""

    asked: tuple[PciAddress, ...]
    state: tuple[tuple[PciAddress, str | None], ...]
    """The members with their drivers: where something has changed, another attempt is worth while at once."""

    @property
    def key(self) -> PciAddress:
        """By which it is known from one look to the next."""
        return self.state[0][0]


def wanted_functions(
    host: HostFacts,
    match: Callable[[PciFunction], PciRule | None],
    wants: Callable[[PciRule], bool] = lambda rule: rule.bind,
) -> dict[PciAddress, PciRule]:
    """The functions of rules with ``bind``, and their siblings in the same slots (S1), with the rule.

    VFs of vGPU cards keep their own driver (G4).

    Args:
        host: facts.
        match: the rule that a function falls under, if any.
        wants: which rules count.
    """
    found: dict[PciAddress, PciRule] = {}
    for address, function in host.functions.items():
        if is_bridge(function, host.details.get(address)):
            continue
        rule = match(function)
        if rule is None or not wants(rule) or _is_vgpu(address, host):
            continue
        found[address] = rule
        if rule.siblings in ("slot", "reserve") and not function.is_vf:
            beside = host.slot_functions(address)
            for each in beside:
                if may_come_along(each, host) and each.model != function.model:
                    found.setdefault(each.address, rule)
    return found


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


def unwanted(records: Iterable[Record], wanted: Collection[PciAddress]) -> list[Record]:
    """What the configuration had bound, and no longer wants. What a command has bound is the operator's."""
    return [
        record
        for record in records
        if record.by == "configuration" and record.is_settled and not any(each in wanted for each in record.asked)
    ]


def as_bound(host: HostFacts, addresses: Collection[PciAddress], driver: str) -> HostFacts:
    """The host as it will be once functions are bound to a VFIO driver: they are awake, and their groups have nodes."""
    if not addresses:
        return host
    functions = {address: host.functions[address]._replace(driver=driver) for address in addresses}
    details = {
        address: detail._replace(power_state=None)
        for address in addresses
        if (detail := host.details.get(address)) is not None
    }
    nodes = {node for function in functions.values() if (node := group_node(function.iommu_group)) is not None}
    return host._replace(
        functions={**host.functions, **functions},
        details={**host.details, **details},
        nodes=None if host.nodes is None else host.nodes | nodes,
    )


def work_key(address: PciAddress, host: HostFacts) -> str:
    """The key of work on a function's group (K9)."""
    return group_key(address, group_of(address, host))


def _is_vgpu(address: PciAddress, host: HostFacts) -> bool:
    detail = host.details.get(address)
    return detail is not None and detail.vgpu is not None
