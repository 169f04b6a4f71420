"""Which hostdevs may be there as siblings, and what a tenant may have: an oracle from the words of the rules alone (C2,
S1, S1a, S2, T1).

It shares no line with the code that decides, and knows nothing of requests: only the host, and what was given.
"""

from __future__ import annotations

from collections.abc import Mapping, Set

from launcherkit.model.host import HostFacts, PciFunction
from launcherkit.model.policy import Policy

ORDER = ("03", "12", "0b40", "02", "01", "")
"""Classes, the best first (C2)."""


WITHIN = {
    "none": {"none"},
    "listed": {"none", "listed"},
    "reserve": {"none", "reserve"},
    "slot": {"none", "reserve", "listed", "slot"},
    "group": {"none", "group"},
}
"""For each value of the operator's ``siblings`` those that a tenant may ask for (T1)."""


def is_within(policy: Policy, other: Policy) -> bool:
    """Whether a policy attaches nothing beyond the other, and is the same in all that isn't the tenant's (T1)."""
    return policy.siblings in WITHIN[other.siblings] and policy._replace(siblings=other.siblings) == other


def siblings_of(
    attached: Mapping[str, bool], given: Set[str], listed: Set[str], host: HostFacts, policy: str
) -> set[str]:
    """The attached functions that are siblings of the best function of their slot, or group, and may come with it.

    Args:
        attached: every source in the result, and whether libvirt manages it.
        given: what was in a variable, a claim or the document: nothing else brings siblings (S1a).
        listed: those of ``given`` that were in a variable or a claim.
        host: the host.
        policy: ``siblings`` of the policy.
    """
    found = {str(function.address): function for function in host.functions.values()}
    best = [each for source, each in found.items() if source in attached and source in given and _is_best(each, host)]
    return {
        source
        for source, managed in attached.items()
        if (each := found.get(source)) and any(_may_come(each, one, managed, listed, host, policy) for one in best)
    }


def _is_best(function: PciFunction, host: HostFacts) -> bool:
    """Of the physical endpoints of its slot (C2); unless what can't be read may be it."""
    slot = [each for each in host.functions.values() if each.address.slot == function.address.slot]
    endpoints = [each for each in slot if _is_physical_endpoint(each, host)]
    unread = any(address.slot == function.address.slot for address in host.unknown)
    return function in endpoints and function == min(endpoints, key=_order) and not unread


def _is_physical_endpoint(function: PciFunction, host: HostFacts) -> bool:
    """Neither a VF nor a bridge, by its header or else its class, nor a host bridge or one to ISA and the like (S1)."""
    detail, kind = host.details.get(function.address), f"{function.class_code:06x}"[:4]
    header = None if detail is None else detail.header_type
    bridge = kind in ("0604", "0607", "0609") if header is None else header in (1, 2)
    return not (function.is_vf or bridge or "0600" <= kind <= "0603")


def _order(function: PciFunction) -> tuple[int, int]:
    digits = f"{function.class_code:06x}"
    return next(rank for rank, kind in enumerate(ORDER) if digits.startswith(kind)), function.address.function


def _may_come(
    function: PciFunction, best: PciFunction, managed: bool, listed: Set[str], host: HostFacts, policy: str
) -> bool:
    detail, address = host.details.get(function.address), str(function.address)
    in_slot = function.address.slot == best.address.slot and function.model != best.model
    in_group = function.iommu_group is not None and function.iommu_group == best.iommu_group
    candidate = {"group": in_group, "listed": in_slot and address in listed, "none": False}.get(policy, in_slot)  # S1
    names = (function.driver, detail and detail.driver_module)
    vfio = any(name and name.replace("-", "_").endswith("vfio_pci") for name in names)
    nodes = {f"/dev/vfio/{function.iommu_group}", f"/dev/vfio/devices/{detail and detail.vfio_dev}"}
    allocated = address in listed or (host.container_dev and bool(nodes & (host.nodes or set())))
    may = managed or vfio if in_group else vfio and allocated  # S2
    return function != best and _is_physical_endpoint(function, host) and candidate and may
