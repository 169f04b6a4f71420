"""Which virtual functions have to be made or taken away (K12). Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

from launcherkit.errors import counted
from launcherkit.model.address import PciAddress
from launcherkit.model.host import HostFacts, PciDetail, PciFunction, bound_to_vfio, describe
from launcherkit_plugin.binding.vf_records import VfRecord, wish_text
from launcherkit_plugin.model.config import VfSettings
from launcherkit_plugin.model.texts import STABLE_MAC


class VfTask(NamedTuple):
    """Work on one physical function."""

    physfn: PciAddress
    action: Literal["make", "remove"]
    number: int
    """How many to make."""
    vfs: tuple[PciAddress, ...]
    """Those that it has."""


class VfPlan(NamedTuple):
    """What is to be done, and what prevents the rest, in words, by physical function."""

    tasks: tuple[VfTask, ...]
    problems: Mapping[PciAddress, str]


def plan_vfs(
    wishes: Mapping[PciAddress, VfSettings],
    records: Mapping[PciAddress, VfRecord],
    host: HostFacts,
    needed: Mapping[PciAddress, int] = {},
) -> VfPlan:
    """What is to be done next on each physical function.

    The kernel makes another number of virtual functions only after all were taken away. Those that something else has
    made never are.

    Args:
        wishes: what the configuration asks for, by physical function.
        records: what was made.
        host: a scan, with the details of these functions.
        needed: how many VFs the vGPU layout needs, by physical function.
    """
    steps = {at: _next_step(at, wishes.get(at), records.get(at), host, needed) for at in sorted({*wishes, *records})}
    tasks = tuple(step for step in steps.values() if isinstance(step, VfTask))
    return VfPlan(tasks, {physfn: step for physfn, step in steps.items() if isinstance(step, str)})


def _next_step(
    physfn: PciAddress,
    wish: VfSettings | None,
    record: VfRecord | None,
    host: HostFacts,
    needed: Mapping[PciAddress, int],
) -> VfTask | str | None:
    """What is to be done on one physical function, or in words what prevents it; None: nothing."""
    function, detail, vfs = host.functions.get(physfn), host.details.get(physfn), vfs_of(physfn, host)
    removal = VfTask(physfn, "remove", 0, vfs)
    if wish is None or function is None:
        return None if record is None else removal
    number = wish.number or needed.get(physfn) or _possible(detail)
    problem = _impossible(function, detail, number)
    if record is not None and not _is_for(record, wish, number):
        return problem if problem and record.state == "made" else removal  # what there is stays if nothing can follow
    if problem:
        return problem
    existing = len(vfs) if detail is None or detail.sriov_numvfs is None else detail.sriov_numvfs
    if existing not in (0, number):
        made = counted(existing, "virtual function")
        return f"{describe(function)} has {made} that something else has made; {number} are wanted"
    is_begun = record is not None and record.state == "making"
    return VfTask(physfn, "make", number, vfs) if existing == 0 or is_begun else None


def described(plan: VfPlan, host: HostFacts) -> Iterator[str]:
    """What would be done, and what prevents the rest, a line for each physical function."""
    for task in plan.tasks:
        function = host.functions.get(task.physfn)
        who = str(task.physfn) if function is None else describe(function)
        if task.action == "make":
            yield f"{who} would get {counted(task.number, 'virtual function')}"
        else:
            yield f"{who}: its {counted(len(task.vfs), 'virtual function')} would be taken away"
    yield from (f"no virtual functions are made: {text}" for text in plan.problems.values())


def _is_for(record: VfRecord, wish: VfSettings, number: int) -> bool:
    """Whether what was made, or begun, is what is wanted."""
    return record.state != "removing" and (record.number, record.wish) == (number, wish_text(wish))


def _possible(detail: PciDetail | None) -> int:
    return (detail.sriov_totalvfs or 0) if detail is not None else 0


def _impossible(function: PciFunction, detail: PciDetail | None, number: int) -> str | None:
    """Why a physical function can't have so many, or None."""
    who = describe(function)
    if detail is None or detail.sriov_numvfs is None or not detail.sriov_totalvfs:
        return f"{who} can't have virtual functions: it has no SR-IOV, or the firmware has switched it off"
    if number > detail.sriov_totalvfs:
        return f"{who} can have {detail.sriov_totalvfs} virtual functions; {number} are wanted"
    if function.driver is None:
        return f"{who} has no driver, which would have to make its virtual functions"
    if bound_to_vfio(function, detail):
        return f"{who} is bound to {function.driver}, and a guest may have it: virtual functions need the host's driver"
    return None


def vfs_of(physfn: PciAddress, host: HostFacts) -> tuple[PciAddress, ...]:
    """The virtual functions of a function."""
    detail = host.details.get(physfn)
    if detail is not None and detail.virtfns:
        return detail.virtfns
    return tuple(sorted(address for address, function in host.functions.items() if function.physfn == physfn))


def macs_for(mac: str, own: str, number: int) -> Sequence[str]:
    """The MAC addresses of virtual functions.

    Args:
        mac: ``stable``, or the address of the first.
        own: that of the physical function.
        number: how many.

    Raises:
        ValueError: there are not so many addresses behind the first.
    """
    if mac != STABLE_MAC:
        first = int(mac.replace(":", ""), 16)
        if (first & 0xFFFFFF) + number > 1 << 24:
            raise ValueError(f"there are no {number} addresses from {mac} on with its first three bytes")
        return [_mac((first + index).to_bytes(6, "big")) for index in range(number)]
    from hashlib import sha256  # only where it is asked for

    digests = (sha256(f"{own.lower()} {index}".encode()).digest() for index in range(number))
    return [_mac(bytes([digest[0] & 0xFC | 0x02]) + digest[1:6]) for digest in digests]  # local, of one interface


def _mac(octets: Iterable[int]) -> str:
    return ":".join(f"{octet:02x}" for octet in octets)
