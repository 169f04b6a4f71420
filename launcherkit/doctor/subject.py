"""The subject of the checks: a VM's devices, or what the host sets aside for VMs."""

from __future__ import annotations

from collections.abc import Iterable

from launcherkit.choose.functions import bound_to_vfio, is_bridge, is_gpu
from launcherkit.choose.siblings import can_be_sibling, is_best_of_slot
from launcherkit.choose.viability import touched_groups
from launcherkit.doctor.facts import Subject
from launcherkit.model.address import HostAddress, MdevAddress, PciAddress
from launcherkit.model.host import HostFacts
from launcherkit.model.plan import Plan


def subject_of_plan(plan: Plan, *, domain_iommufd: bool, has_variables: bool, nodes_matter: bool) -> Subject:
    """What a translation attaches; ``domain_iommufd`` is what the domain itself says."""
    functions = [function for device in plan.devices for function in device.functions]
    return Subject(
        of_vm=True,
        attached=tuple(function.source for function in functions),
        groups=plan.groups,
        managed=frozenset(function.source for function in functions if function.managed),
        wants_iommufd=plan.iommufd,
        has_variables=has_variables,
        nodes_matter=nodes_matter,
        nodes=tuple(node for node in plan.nodes if not node.startswith("/dev/bus/usb/")),
        domain_iommufd=domain_iommufd,
        wants_initiators=bool(plan.initiators),
    )


def subject_of_addresses(
    addresses: Iterable[HostAddress], host: HostFacts, *, iommufd: bool, has_variables: bool, nodes_matter: bool
) -> Subject:
    """For a failed translation: what was allocated or is in the domain, and the functions of the same slots."""
    attached: dict[HostAddress, None] = {}
    for address in addresses:
        attached[address] = None
        function = host.functions.get(address) if isinstance(address, PciAddress) else None
        if function is not None and not function.is_vf and is_best_of_slot(function, host):
            in_slot = host.slot_functions(function.address)
            attached.update({each.address: None for each in in_slot if can_be_sibling(each, host)})
    known = tuple(each for each in attached if not isinstance(each, PciAddress) or each in host.functions)
    groups = touched_groups(known, host)
    return Subject(True, known, groups, frozenset(), iommufd, has_variables, nodes_matter)


def subject_of_host(host: HostFacts) -> Subject:
    """What is bound to VFIO, and the GPUs that are not: display, processing accelerators, co-processors."""
    bound: list[PciAddress] = []
    idle: list[PciAddress] = []
    for address, function in sorted(host.functions.items()):
        detail = host.details.get(address)
        if bound_to_vfio(function, detail):
            bound.append(address)
        elif is_gpu(function) and not function.is_vf and not is_bridge(function, detail):
            idle.append(address)
    groups = touched_groups(bound, host)
    in_groups = {member.address for group in groups for member in group.members}
    attached: tuple[HostAddress, ...] = (*bound, *(MdevAddress(uuid) for uuid in sorted(host.mdevs)))
    return Subject(
        of_vm=False,
        attached=attached,
        groups=touched_groups(attached, host),
        managed=frozenset(),
        wants_iommufd=False,
        has_variables=False,
        idle=tuple(address for address in idle if address not in in_groups),
    )
