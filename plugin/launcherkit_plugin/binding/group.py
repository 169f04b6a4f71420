"""Which IOMMU groups have to be bound, each as a whole (K8): those of given functions, or of configured ones."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from launcherkit.choose.nodes import group_node
from launcherkit.choose.siblings import can_be_sibling, is_best_of_slot
from launcherkit.choose.viability import check_isolation
from launcherkit.errors import NOT_ON_HOST, Collector, NotOnHost, Refused
from launcherkit.host.use import HostUse
from launcherkit.model.address import PciAddress
from launcherkit.model.host import HostFacts, PciFunction, bound_to_vfio, describe, group_of, is_bridge, is_chipset
from launcherkit_plugin.binding.ledger import Record
from launcherkit_plugin.host.work_queue import group_key
from launcherkit_plugin.model.config import PciRule
from launcherkit_plugin.model.errors import BIND_REFUSED


class GroupPlan(NamedTuple):
    """What to bind of an IOMMU group."""

    number: int
    asked: tuple[PciAddress, ...]
    """The members that were asked for."""
    members: tuple[PciFunction, ...]
    """See `members_to_bind`."""
    change: tuple[PciFunction, ...]
    """Members without a VFIO driver. This includes those with no driver, which another driver could still take, and
    those with pci-stub, which can't be given to a guest."""

    @property
    def addresses(self) -> tuple[PciAddress, ...]:
        """The addresses of all members."""
        return tuple(member.address for member in self.members)


def plan_groups(addresses: Iterable[PciAddress], host: HostFacts) -> tuple[GroupPlan, ...]:
    """The groups of some functions, sorted by number.

    Args:
        addresses: functions.
        host: facts about them and about all members of their groups.

    Raises:
        NotOnHost: a function doesn't exist.
        BIND_REFUSED: a function is a bridge, has no IOMMU group, or can't be read.
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
                BIND_REFUSED(
                    f"{describe(function)} is a bridge",
                    "Bind what is behind it: bridges stay as they are.",
                    device=str(address),
                )
            )
        elif function.iommu_group is None or function.iommu_group in host.noiommu:
            errors.extend(
                BIND_REFUSED(problem.message, problem.remedy, device=str(address))
                for problem in check_isolation((address,), host)
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
    """The members of a group that must have a VFIO driver: all except bridges and chipset devices without a driver.

    An ISA bridge without a driver doesn't make a group unviable (V1), and vfio-pci could suspend it.
    """
    functions = (host.functions[member] for member in group if member in host.functions)
    return tuple(
        member
        for member in functions
        if not is_bridge(member, host.details.get(member.address))
        and not (is_chipset(member) and member.driver is None)
    )


def is_with_host(address: PciAddress, host: HostFacts) -> bool:
    """Whether the group of a function is not bound to VFIO for certain: each member has another driver."""
    function = host.functions.get(address)
    group = (
        host.groups.get(function.iommu_group, ()) if function is not None and function.iommu_group is not None else ()
    )
    if any(member in host.unknown for member in group):
        return False
    members = members_to_bind(group, host)
    return bool(members) and not any(
        member.driver is None or bound_to_vfio(member, host.details.get(member.address)) for member in members
    )


def refuse_needed_by_host(
    plan: GroupPlan, host: HostFacts, uses: Mapping[PciAddress, Sequence[HostUse]], *, force: bool
) -> None:
    """Check that the host itself doesn't need the functions that would be taken from it.

    Args:
        plan: a group.
        host: facts about its members.
        uses: from `launcherkit.host.use.read_uses`.
        force: take functions that the host uses; not those with VFs or mdevs, which guests may use.

    Raises:
        BIND_REFUSED, SeveralErrors: the host needs one of them.
    """
    errors = Collector()
    for member in plan.change:
        who = describe(member) if member.address in plan.asked else f"{describe(member)}, in IOMMU group {plan.number},"
        for blocker, remedy in _blockers(member, host, uses.get(member.address, ()), force=force):
            errors.add(BIND_REFUSED(f"{who} {blocker}", remedy, device=str(member.address), group=plan.number))
    errors.raise_if_any()


def _blockers(
    member: PciFunction, host: HostFacts, uses: Sequence[HostUse], *, force: bool
) -> Iterator[tuple[str, str]]:
    """Why a function must keep its driver, and the remedy."""
    detail = host.details.get(member.address)
    if detail is not None and (detail.virtfns or detail.sriov_numvfs):
        yield (
            f"has VFs ({detail.sriov_numvfs}), which would be gone with its driver",
            f"Bind its VFs instead, or take them away: echo 0 > /sys/bus/pci/devices/{member.address}/sriov_numvfs",
        )
    if is_chipset(member) and not force:
        remedy = (
            "Unbind its driver by hand, which is all that VFIO requires, or put the cards into groups of their own, by "
            "another PCIe slot or ACS. `launcherkit-plugin bind --force` binds it like any other."
        )
        yield f"is part of this host's chipset, bound to {member.driver or 'no driver'}", remedy
    for use in uses:
        if use.by_guests:
            yield f"can't be taken from its driver: {use.text}", "Remove those first."
        elif not force:
            yield (
                f"is in use by this host: {use.text}",
                "Stop using it on the host first. `launcherkit-plugin bind --force` takes it anyway.",
            )


def _unreadable(address: PciAddress, host: HostFacts) -> Refused:
    """Of a function that can't be read, it is unknown whether the host uses it (T2)."""
    return BIND_REFUSED(
        f"{address} can't be read: {host.unknown[address]}",
        "Fix what keeps it from being read; the kernel's log (dmesg) may say more.",
        device=str(address),
    )


def not_on_host(address: PciAddress) -> NotOnHost:
    """The error for an address without a function."""
    return NOT_ON_HOST(
        f"{address} is not on this host", "`lspci -D` lists the addresses that there are.", device=str(address)
    )


class GroupToBind(NamedTuple):
    """Functions to bind together with their IOMMU group; or a single function that has no group."""

    asked: tuple[PciAddress, ...]
    state: tuple[tuple[PciAddress, str | None], ...]
    """The members and their drivers. When this changes, the next attempt needs no pause."""

    @property
    def key(self) -> PciAddress:
        """Identifies the group from one scan to the next."""
        return self.state[0][0]


def wanted_functions(
    host: HostFacts,
    match: Callable[[PciFunction], PciRule | None],
    wants: Callable[[PciRule], bool] = lambda rule: rule.bind is True,
) -> dict[PciAddress, PciRule]:
    """The functions of rules with ``bind`` and their siblings in the same slot (S1, S1a), each with its rule.

    VFs of vGPU cards keep their own driver (G4).

    Args:
        host: facts about all functions.
        match: returns the rule that applies to a function, if any.
        wants: selects the rules.
    """
    rules: dict[PciAddress, PciRule] = {}
    for address, function in host.functions.items():
        if is_bridge(function, host.details.get(address)):
            continue
        rule = match(function)
        if rule is None or not wants(rule) or _is_vgpu(address, host):
            continue
        rules[address] = rule
        if rule.siblings in ("slot", "reserve") and not function.is_vf and is_best_of_slot(function, host):
            for sibling in host.slot_functions(address):
                if can_be_sibling(sibling, host) and sibling.model != function.model:
                    rules.setdefault(sibling.address, rule)
    return rules


def wants_variants(functions: Iterable[PciAddress], rules: Mapping[PciAddress, PciRule]) -> bool:
    """Whether a rule of one of the functions has ``driver: auto``: the group is bound as a whole."""
    return any(rules[address].driver == "auto" for address in functions if address in rules)


def groups_to_bind(addresses_to_bind: Iterable[PciAddress], host: HostFacts) -> list[GroupToBind]:
    """The groups of these functions in which a member lacks a VFIO driver."""
    asked: dict[tuple[PciFunction, ...], list[PciAddress]] = {}
    for address in sorted(addresses_to_bind):
        function = host.functions[address]
        group = (address,) if function.iommu_group is None else host.groups.get(function.iommu_group, (address,))
        members = members_to_bind(group, host)
        if not all(bound_to_vfio(member, host.details.get(member.address)) for member in members):
            asked.setdefault(members, []).append(address)
    return [
        GroupToBind(tuple(addresses), tuple((member.address, member.driver) for member in members))
        for members, addresses in asked.items()
    ]


def unwanted(records: Iterable[Record], to_bind: Collection[PciAddress]) -> list[Record]:
    """The records of functions that were bound by configuration and aren't in ``to_bind`` any more.

    Functions that a command bound stay bound: that was the operator's decision.
    """
    return [
        record
        for record in records
        if record.by == "configuration" and record.is_settled and not any(each in to_bind for each in record.asked)
    ]


def as_bound(host: HostFacts, addresses: Collection[PciAddress], driver: str) -> HostFacts:
    """The host as it will be once these functions are bound to a VFIO driver: awake, with the nodes of their groups."""
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
    """The key under which work on a function's group is serialised (K9)."""
    return group_key(address, group_of(address, host))


def _is_vgpu(address: PciAddress, host: HostFacts) -> bool:
    detail = host.details.get(address)
    return detail is not None and detail.vgpu is not None
