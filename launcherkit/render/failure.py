"""Describes a failed translation: the requests, what was allocated, and the host's facts about it."""

from __future__ import annotations

from collections.abc import Iterator

from launcherkit.colour import Colours
from launcherkit.model.address import HostAddress, MdevAddress, PciAddress
from launcherkit.model.request import Request
from launcherkit.render.columns import columns, visible, wrapped
from launcherkit.render.evidence import AskedRequest, Evidence
from launcherkit.render.functions import binding, driver_of, part_in_group, what


def explain_failure(evidence: Evidence, colours: Colours) -> str:
    """The facts behind an error; the process edge reports the error itself after this.

    Args:
        evidence: as far as it is available.
        colours: ANSI colours or none.
    """
    lines = [
        f"{visible(evidence.name)}: {colours.bad('this fails')}, for the reasons on standard error; what is known:",
        "",
    ]
    lines += [*_requests(evidence, colours), ""]
    lines += [*_variables(evidence, colours), ""]
    if evidence.hostdevs:
        lines += [colours.head("hostdevs of the domain"), *_addresses(evidence.hostdevs, evidence, colours), ""]
    for number in _groups(evidence):
        lines += [*_group(number, evidence, colours), ""]
    if evidence.facts.nodes is not None:
        nodes = sorted(node for node in evidence.facts.nodes if node in _nodes(evidence))
        lines += [colours.head("VFIO nodes that are here"), *wrapped(", ".join(nodes) or "none", "  ")]
    return "\n".join(lines).rstrip("\n") + "\n"


def _requests(evidence: Evidence, colours: Colours) -> Iterator[str]:
    yield colours.head("requests")
    if evidence.asked is None:
        yield "  no VMI was given: every device in the variables is asked for"
    elif not evidence.asked:
        yield "  none"
    else:
        yield from columns([_request(asked, colours) for asked in evidence.asked])


def _request(asked: AskedRequest, colours: Colours) -> tuple[str, str, str]:
    request = asked.request
    if asked.variable is not None:
        answer = f"from {visible(asked.variable)}"
    else:
        answer = colours.bad(f"no {'variable' if request.dra_claim is None else 'metadata'} answers it")
    return f"{request.section} {request.name!r}", visible(_what(request)), answer


def _what(request: Request) -> str:
    return request.resource or (f"DRA {request.dra_claim}" if request.dra_claim else "SR-IOV")


def _variables(evidence: Evidence, colours: Colours) -> Iterator[str]:
    by_claim = any(asked.request.dra_claim for asked in evidence.asked or ())
    yield colours.head("variables, and metadata of claims" if by_claim else "variables")
    if not evidence.allocations:
        yield "  no *_RESOURCE_* variable is set here"
    for variable, allocation in evidence.allocations.items():
        yield f"  {visible(variable)}"
        if allocation.entries:
            yield from _addresses(allocation.entries, evidence, colours, "    ")
        else:
            yield "    holds no address"


def _addresses(
    addresses: tuple[HostAddress, ...], evidence: Evidence, colours: Colours, indent: str = "  "
) -> Iterator[str]:
    facts, names = evidence.facts, evidence.names
    rows = [(str(address), binding(address, facts, colours), what(address, facts, names)) for address in addresses]
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


def _group(number: int, evidence: Evidence, colours: Colours) -> Iterator[str]:
    facts = evidence.facts
    members = [facts.functions[member] for member in facts.groups.get(number, ()) if member in facts.functions]
    if members:
        listed = {entry for allocation in evidence.allocations.values() for entry in allocation.entries}
        listed.update(evidence.hostdevs)
        yield colours.head(f"IOMMU group {number}")
        rows = []
        for function in members:
            part = "allocated" if function.address in listed else "not allocated"
            part += f", {part_in_group(function, facts)}"
            rows.append((str(function.address), driver_of(function, facts, colours), part))
        yield from columns(rows)


def _nodes(evidence: Evidence) -> set[str]:
    """Nodes that could matter: those of VFIO itself, and those of the groups and devices."""
    facts = evidence.facts
    devices = {detail.vfio_dev for detail in facts.details.values()}
    wanted = {"/dev/vfio/vfio", "/dev/iommu", *(f"/dev/vfio/{number}" for number in _groups(evidence))}
    return wanted | {f"/dev/vfio/devices/{name}" for name in devices if name}
