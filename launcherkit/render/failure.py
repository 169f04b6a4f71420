"""Describes a failed translation: the requests, what was allocated, and the host's facts about it."""

from __future__ import annotations

from collections.abc import Iterator

from launcherkit.colour import Ink
from launcherkit.model.address import HostAddress, MdevAddress, PciAddress
from launcherkit.render.columns import columns, visible, wrapped
from launcherkit.render.evidence import Asked, Evidence
from launcherkit.render.functions import binding, driver_of, part_in_group, what


def explain_failure(evidence: Evidence, ink: Ink) -> str:
    """The facts behind an error; the process edge reports the error itself after this.

    Args:
        evidence: as far as it is available.
        ink: colours or none.
    """
    lines = [
        f"{visible(evidence.name)}: {ink.bad('this fails')}, for the reasons on standard error; what is known:",
        "",
    ]
    lines += [*_requests(evidence, ink), ""]
    lines += [*_variables(evidence, ink), ""]
    if evidence.hostdevs:
        lines += [ink.head("hostdevs of the domain"), *_addresses(evidence.hostdevs, evidence, ink), ""]
    for number in _groups(evidence):
        lines += [*_group(number, evidence, ink), ""]
    if evidence.facts.nodes is not None:
        nodes = sorted(node for node in evidence.facts.nodes if node in _nodes(evidence))
        lines += [ink.head("VFIO nodes that are here"), *wrapped(", ".join(nodes) or "none", "  ")]
    return "\n".join(lines).rstrip("\n") + "\n"


def _requests(evidence: Evidence, ink: Ink) -> Iterator[str]:
    yield ink.head("requests")
    if evidence.asked is None:
        yield "  no VMI was given: every device in the variables is asked for"
    elif not evidence.asked:
        yield "  none"
    else:
        yield from columns([_request(asked, ink) for asked in evidence.asked])


def _request(asked: Asked, ink: Ink) -> tuple[str, str, str]:
    request = asked.request
    if asked.variable is not None:
        answer = f"from {visible(asked.variable)}"
    else:
        answer = ink.bad(f"no {'variable' if request.claim is None else 'metadata'} answers it")
    return f"{request.section} {request.name!r}", visible(request.resource or f"DRA {request.claim}"), answer


def _variables(evidence: Evidence, ink: Ink) -> Iterator[str]:
    by_claim = any(asked.request.claim for asked in evidence.asked or ())
    yield ink.head("variables, and metadata of claims" if by_claim else "variables")
    if not evidence.allocations:
        yield "  no *_RESOURCE_* variable is set here"
    for variable, allocation in evidence.allocations.items():
        yield f"  {visible(variable)}"
        if allocation.entries:
            yield from _addresses(allocation.entries, evidence, ink, "    ")
        else:
            yield "    holds no address"


def _addresses(addresses: tuple[HostAddress, ...], evidence: Evidence, ink: Ink, indent: str = "  ") -> Iterator[str]:
    facts, names = evidence.facts, evidence.names
    rows = [(str(address), binding(address, facts, ink), what(address, facts, names)) for address in addresses]
    yield from columns(rows, indent)


def _groups(evidence: Evidence) -> list[int]:
    """The groups of all devices that are listed or in the domain."""
    listed = [entry for allocation in evidence.allocations.values() for entry in allocation.entries]
    numbers: set[int] = set()
    for address in (*listed, *evidence.hostdevs):
        function = evidence.facts.functions.get(address) if isinstance(address, PciAddress) else None
        mdev = evidence.facts.mdevs.get(address.uuid) if isinstance(address, MdevAddress) else None
        group = function.iommu_group if function else mdev.iommu_group if mdev else None
        if group is not None:
            numbers.add(group)
    return sorted(numbers)


def _group(number: int, evidence: Evidence, ink: Ink) -> Iterator[str]:
    facts = evidence.facts
    members = [facts.functions[member] for member in facts.groups.get(number, ()) if member in facts.functions]
    if members:
        listed = {entry for allocation in evidence.allocations.values() for entry in allocation.entries}
        listed.update(evidence.hostdevs)
        yield ink.head(f"IOMMU group {number}")
        rows = []
        for function in members:
            part = "allocated" if function.address in listed else "not allocated"
            part += f", {part_in_group(function, facts)}"
            rows.append((str(function.address), driver_of(function, facts, ink), part))
        yield from columns(rows)


def _nodes(evidence: Evidence) -> set[str]:
    """Nodes that could matter: those of VFIO itself, and those of the groups and devices."""
    facts = evidence.facts
    devices = {detail.vfio_dev for detail in facts.details.values()}
    wanted = {"/dev/vfio/vfio", "/dev/iommu", *(f"/dev/vfio/{number}" for number in _groups(evidence))}
    return wanted | {f"/dev/vfio/devices/{name}" for name in devices if name}
