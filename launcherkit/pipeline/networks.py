"""Which PCI function is an SR-IOV network's (Q5).

The SR-IOV network device plugin lists in ``PCIDEVICE_<R>`` what a container got; nothing else is ever attached (T1). An
interface's name, which is the tenant's, only selects among these.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from launcherkit.choose.aliases import SRIOV_PREFIX, clean
from launcherkit.errors import (
    BAD_NETWORK_STATUS,
    VARIABLE_CLASH,
    VARIABLE_MISSING,
    BadInput,
    Collector,
    Conflict,
    LauncherkitError,
)
from launcherkit.model.address import HostAddress, PciAddress
from launcherkit.model.plan import Note
from launcherkit.model.request import Allocation, Request
from launcherkit.request.environment import Environment
from launcherkit.request.networks import AttachedNetwork, NetworkStatus


class AnsweredNetworks(NamedTuple):
    """The SR-IOV interfaces that get a device here, and what answers them."""

    others: tuple[Request, ...]
    """The requests that are none."""
    requests: tuple[Request, ...] = ()
    allocations: Mapping[str, Allocation] = {}
    """By `Request.key`; every entry is a device of its own."""
    devices: Mapping[Request, HostAddress] = {}
    """The device of each request of which the network status says it."""
    notes: tuple[Note, ...] = ()
    errors: tuple[LauncherkitError, ...] = ()
    """`VARIABLE_MISSING`, `VARIABLE_CLASH`, `BAD_PCI_ADDRESS` or `BAD_NETWORK_STATUS`: no answer, or several."""


def answer_networks(
    requests: Sequence[Request], environment: Environment, status: NetworkStatus | None, aliases: Collection[str | None]
) -> AnsweredNetworks:
    """Find the answer to each SR-IOV interface.

    Args:
        requests: all of a VMI.
        environment: the container's.
        status: which function the CNI gave to which network, from the pod's annotation; None if it isn't known.
        aliases: those of the document's hostdevs; if nothing was allocated here, interfaces have theirs already.
    """
    others = AnsweredNetworks(tuple([request for request in requests if not request.is_network]))
    if len(others.others) == len(requests):
        return others
    of_networks = environment.of_networks()
    present = () if of_networks.variables else aliases
    asking = [each for each in requests if each.is_network and clean(SRIOV_PREFIX + each.name) not in present]
    readings = {variable: of_networks.read(variable) for variable in of_networks.variables}
    variables = {variable: each._replace(devices=each.entries) for variable, (each, _, _) in readings.items()}
    if status is not None:
        return _by_status(others, asking, variables, status)
    networks = _by_variables(others, asking, environment, variables)
    # Of the variables that answer nothing it doesn't matter what is in them: an auxiliary device, mlx5_core.sf.4.
    used = dict.fromkeys([allocation.variable for allocation in networks.allocations.values()])
    wrong = [error for variable in used for error in readings[variable][2]]
    return networks._replace(errors=(*wrong, *networks.errors))


def _by_variables(
    networks: AnsweredNetworks, asking: Sequence[Request], environment: Environment, variables: Mapping[str, Allocation]
) -> AnsweredNetworks:
    """By the variable of the network's resource; several networks of one resource by their order."""
    answered: list[Request] = []
    allocations: dict[str, Allocation] = {}
    resource_of: dict[str, Request] = {}
    errors = Collector()
    for plain in asking:
        request = plain._replace(resource=environment.resource_of_network(plain.name))
        with errors:
            variable = _variable_of(request, variables)
            first = resource_of.setdefault(variable, request)
            if first.resource != request.resource and None not in (first.resource, request.resource):
                raise _clash(first, request, variable)
            answered.append(request)
            allocations[request.key] = variables[variable]
    askers = Counter(allocation.variable for allocation in allocations.values())
    notes = [_by_order(variable, answered, allocations) for variable, count in askers.items() if count > 1]
    return networks._replace(
        requests=tuple(answered), allocations=allocations, notes=tuple(notes), errors=errors.errors
    )


def _variable_of(request: Request, variables: Mapping[str, Allocation]) -> str:
    """The variable of an interface's resource; without a resource, the only variable that holds something."""
    named = None if request.resource is None else Environment.variable_of_network(request.resource)
    if named is not None and named in variables:
        return named
    filled = [name for name, allocation in variables.items() if allocation.entries] or [*variables]
    present = ", ".join(f"{name} ({len(each.entries)})" for name, each in variables.items()) or "none"
    interface = f"{request.path} {request.name!r} is an SR-IOV interface"
    names_it = f"KUBEVIRT_RESOURCE_NAME_{request.name}"
    if named is not None:
        raise VARIABLE_MISSING(
            f"{interface} of {request.resource}, as {names_it} says, but {named} is not set; present: {present}",
            f"Check that {' '.join((request.resource or '').split())} is in the limits of this container.",
            variable=named,
            resource=request.resource or "",
        )
    if len(filled) == 1:
        return filled[0]
    if filled:
        raise VARIABLE_MISSING(
            f"{interface}, and nothing says which variable has its device: {present}",
            f"Set {names_it} to the resource of its network, as KubeVirt did until 1.5, or give the pod's network "
            "status.",
            variable=names_it,
        )
    raise VARIABLE_MISSING(
        f"{interface}, but no PCIDEVICE_* variable is set, and the domain has no hostdev "
        f"{clean(SRIOV_PREFIX + request.name)}",
        "Run this in the container that asks for the resource of its network, or give it that container's variables.",
        variable="PCIDEVICE_*",
    )


def _clash(first: Request, second: Request, variable: str) -> Conflict:
    return VARIABLE_CLASH(
        f"{first.path} is of {first.resource} and {second.path} of {second.resource}, which have one variable, "
        f"{variable}",
        "Rename one of the resources in the device plugin's configuration: / and . both become _.",
        variable=variable,
    )


def _by_order(variable: str, requests: Iterable[Request], allocations: Mapping[str, Allocation]) -> Note:
    names = ", ".join(request.name for request in requests if allocations[request.key].variable == variable)
    return Note(
        "network-order",
        f"{variable} answers several networks, in the order of the VMI: {names}. Which of its functions the CNI has "
        "prepared for which network, with its VLAN and MAC address, only the pod's network status says",
    )


def _by_status(
    networks: AnsweredNetworks, asking: Sequence[Request], variables: Mapping[str, Allocation], status: NetworkStatus
) -> AnsweredNetworks:
    """By the pod's annotation, which may name only what was allocated (T1)."""
    allocations: dict[str, Allocation] = {}
    devices: dict[Request, HostAddress] = {}
    errors = Collector()
    for request in asking:
        with errors:
            device = _device_of(request, asking, status)
            if not any(device in allocation.entries for allocation in variables.values()):
                present = ", ".join(variables) or "no PCIDEVICE_* variable is set"
                raise _bad(status, request, f"{device} was not allocated to this container: {present}", _NOT_ALLOCATED)
            if device in devices.values():
                raise _bad(status, request, f"{device} has another network too", _REMEDY)
            devices[request] = device
            variable = f"{status.source} ({request.name})"
            allocations[request.key] = Allocation(variable, request.name, "pci", (device,), (device,))
    return networks._replace(requests=tuple(asking), allocations=allocations, devices=devices, errors=errors.errors)


_NOT_ALLOCATED = (
    "Give the status of the pod whose variables these are: only what a PCIDEVICE_* variable lists is attached."
)
_REMEDY = (
    "Multus records it from version 3.7 on, for device plugins that write device-info files. Without the status the "
    "variables alone decide."
)


def _device_of(request: Request, asking: Sequence[Request], status: NetworkStatus) -> PciAddress:
    """The function of an interface's network: by the names that KubeVirt gives, else by NetworkAttachmentDefinition."""
    sriov = request.sriov
    attachment = None if sriov is None else sriov.attachment
    import hashlib  # 2 ms, for few VMs

    # KubeVirt's name for it
    pod_interface = "pod" + hashlib.sha256(request.name.encode(errors="replace")).hexdigest()[:11]
    networks = [each for each in status.networks if request.name == each.network or each.interface == pod_interface]
    if not networks and attachment is not None:
        networks = [each for each in status.networks if _is_of(each, attachment)]
        same = [each for each in asking if each.sriov is not None and each.sriov.attachment == attachment]
        if len(networks) == len(same):  # Multus keeps the order of the pod's networks, which is the VMI's
            networks = [networks[same.index(request)]]
    if not networks:
        problem = f"no network {request.name!r}" if attachment is None else f"no network of {attachment}"
        raise _bad(
            status, request, problem, "Give the status of this VMI's own pod. Without it the variables alone decide."
        )
    if len(networks) > 1:
        raise _bad(
            status, request, f"{len(networks)} networks of {attachment}", "Give the status of this VMI's own pod."
        )
    if networks[0].device is None:
        raise _bad(status, request, "its network has no pci-address", _REMEDY)
    return networks[0].device


def _is_of(network: AttachedNetwork, attachment: str) -> bool:
    name = network.attachment or ""
    return attachment == (name if "/" in attachment else name.rpartition("/")[2])


def _bad(status: NetworkStatus, request: Request, problem: str, remedy: str) -> BadInput:
    text = f"{status.source}, for {request.path} {request.name!r}: {problem}"
    return BAD_NETWORK_STATUS(text, remedy, file=status.source, key=request.name)
