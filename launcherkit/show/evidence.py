"""What is known of a VM's requests and devices: as values, in words, and described if a translation fails."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from launcherkit.choose.nodes import CONTAINER_NODE, IOMMUFD_NODE, cdev_node, group_node
from launcherkit.colour import Colours
from launcherkit.host.pci_ids import PciNames
from launcherkit.model.address import HostAddress, MdevAddress, PciAddress
from launcherkit.model.host import HostFacts, PciFunction, bound_to_vfio, class_name, group_of, is_bridge, is_vgpu_vf
from launcherkit.model.request import Allocation, Request
from launcherkit.show.layout import columns, visible, wrapped


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
    return f"{request.section} {request.name!r}", visible(_resource(request)), answer


def _resource(request: Request) -> str:
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
    rows = [(str(address), binding(address, facts, colours), describe(address, facts, names)) for address in addresses]
    yield from columns(rows, indent)


def _groups(evidence: Evidence) -> list[int]:
    """The groups of all devices that are listed or in the domain."""
    listed = [entry for allocation in evidence.allocations.values() for entry in allocation.entries]
    numbers = {group_of(address, evidence.facts) for address in (*listed, *evidence.hostdevs)}
    return sorted(number for number in numbers if number is not None)


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
    own = (*map(group_node, _groups(evidence)), *map(cdev_node, evidence.facts.details.values()))
    return {CONTAINER_NODE, IOMMUFD_NODE, *(node for node in own if node is not None)}


@dataclass(frozen=True, slots=True)
class AskedRequest:
    """A request of the VMI, and where its answer is looked for (E1, E5)."""

    request: Request
    variable: str | None
    """The variable, or the file of a claim's metadata, that answers it; None if there is none."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """The requests, the contents of the variables, and the host's facts about them."""

    name: str
    """The name of the domain document."""
    asked: tuple[AskedRequest, ...] | None
    """The VMI's requests; None without a VMI."""
    allocations: dict[str, Allocation]
    """Every ``*_RESOURCE_*`` variable, and what claims of the VMI got, by name, as far as it can be read."""
    hostdevs: tuple[HostAddress, ...]
    """The devices that the document already has."""
    facts: HostFacts
    names: PciNames


def describe(address: HostAddress, facts: HostFacts, names: PciNames) -> str:
    """``Audio device: NVIDIA Corporation ... [10de:1aef]``, or that it isn't on this host, or that it is unknown."""
    if isinstance(address, PciAddress):
        function = facts.functions.get(address)
        if function is not None:
            return describe_function(function, names)
    elif isinstance(address, MdevAddress):
        mdev = facts.mdevs.get(address.uuid)
        if mdev is not None:
            type_ = f"{mdev.type_name} ({mdev.type_id})" if mdev.type_name else mdev.type_id
            return visible(f"mediated device {type_}" + (f" on {mdev.parent}" if mdev.parent else ""))
    else:
        return "USB device"
    kind = "PCI function" if isinstance(address, PciAddress) else "mediated device"
    return f"{kind}, not on this host" if facts.known else f"{kind}; nothing is known of the host"


def describe_function(function: PciFunction, names: PciNames) -> str:
    """As `describe`, for a known function."""
    kind = names.class_(function) or class_name(function)
    name, board = names.device(function), names.board(function)
    text = f"{kind}: {name} [{function.ids}]" if name else f"{kind} [{function.ids}]"
    if board:
        text += f" ({board})"
    return text + (f", VF of {function.physfn}" if function.physfn else "")


def binding(address: HostAddress, facts: HostFacts, colours: Colours) -> str:
    """The driver and the group: ``vfio-pci, group 44``; empty if the device is unknown."""
    if isinstance(address, MdevAddress):
        mdev = facts.mdevs.get(address.uuid)
        return f"group {mdev.iommu_group}" if mdev and mdev.iommu_group is not None else ""
    function = facts.functions.get(address) if isinstance(address, PciAddress) else None
    if function is None:
        return ""
    group = "no IOMMU group" if function.iommu_group is None else f"group {function.iommu_group}"
    return f"{driver_of(function, facts, colours)}, {group}"


def driver_of(function: PciFunction, facts: HostFacts, colours: Colours) -> str:
    """The driver's name, coloured by what it means for VFIO."""
    if function.driver is None:
        return "no driver"
    driver = visible(function.driver)
    if bound_to_vfio(function, facts.details.get(function.address)):
        return colours.good(driver)
    return driver if leaves_group_viable(function, facts) else colours.bad(driver)


def leaves_group_viable(function: PciFunction, facts: HostFacts) -> bool:
    """Whether it is a bridge, or bound to ``pci-stub``: not in the way, though not bound to VFIO (V1)."""
    return is_bridge(function, facts.details.get(function.address)) or function.driver == "pci-stub"


def part_in_group(function: PciFunction, facts: HostFacts) -> str:
    """What an unattached member means for its group (V1)."""
    detail = facts.details.get(function.address)
    if is_bridge(function, detail):
        return "a bridge, which does not block the group"
    if is_vgpu_vf(detail):
        return "a vGPU on its vendor's driver"
    if function.driver is None or function.driver == "pci-stub" or bound_to_vfio(function, detail):
        return "not in the way"
    return "used by the host"
