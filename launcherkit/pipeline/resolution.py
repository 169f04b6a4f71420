"""The first step: which devices were allocated, and which request each of them answers (E1-E5, Q1, Q2, C1-C5)."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

from launcherkit.choose.aliases import alias_of, name_requests
from launcherkit.choose.match import (
    Matches,
    check_on_host,
    claimed_devices,
    for_each_device,
    match_environment,
    match_requests,
)
from launcherkit.errors import Collector, LauncherkitError
from launcherkit.model.address import HostAddress, MdevAddress, PciAddress
from launcherkit.model.domain import DomainFacts
from launcherkit.model.host import NO_FACTS, HostFacts
from launcherkit.model.plan import Match, Note
from launcherkit.model.policy import Policy
from launcherkit.model.request import Allocation, Kind, Request
from launcherkit.place.slots import topology_for
from launcherkit.request.environment import Environment, check_requests, not_in_domain
from launcherkit.request.vmi import Vmi

if TYPE_CHECKING:  # few VMs have DRA claims, or SR-IOV interfaces of ours
    from launcherkit.request.dra import DraFiles
    from launcherkit.request.networks import NetworkStatus


class HostSource(Protocol):
    """Where host facts come from, read by need: `launcherkit.Host`."""

    def facts(
        self, addresses: Iterable[PciAddress], mdevs: Iterable[MdevAddress] = ..., *, topology: bool = ...
    ) -> HostFacts:
        """Facts about the named devices, their slots and groups; with ``topology`` also their places on the host."""
        ...


class Resolved(NamedTuple):
    """The requests, and the devices that answer them."""

    requests: tuple[Request, ...]
    """The VMI's; empty if the environment is the request (Q1)."""
    matches: tuple[Match, ...]
    not_attached: tuple[tuple[str, HostAddress], ...]
    """Primaries beyond the requests, with their variables (C4)."""
    listed: frozenset[HostAddress]
    """Every address in the variables that are used."""
    allocated: bool
    """Whether anything was allocated here; if not, there are only the document's hostdevs (Q2)."""
    facts: HostFacts
    notes: tuple[Note, ...]
    variables: Mapping[str, Allocation] = {}
    """What was allocated, by variable or by the file of a claim."""


def resolve(
    domain: DomainFacts,
    environment: Environment,
    vmi: Vmi | None,
    dra: "DraFiles | None",
    host: HostSource,
    policy: Policy,
    name: str,
    status: "NetworkStatus | None" = None,
) -> Resolved:
    """Read what was allocated, look it up on the host, and answer each request; messages call the document ``name``.

    Raises:
        LauncherkitError: a variable or a claim is missing or malformed; a device is not on the host; too few of them.
    """
    asked = () if vmi is None else vmi.requests
    requests = tuple([request for request in asked if not request.is_network])
    others = None if vmi is None else requests
    errors, network_notes = Collector(), tuple[Note, ...]()
    of_networks: Mapping[str, Allocation] = {}
    network_devices: Mapping[Request, HostAddress] = {}
    if len(requests) < len(asked):
        from launcherkit.pipeline.networks import answer_networks  # few VMs have SR-IOV interfaces of ours

        networks = answer_networks(asked, environment, status, [hostdev.alias for hostdev in domain.hostdevs])
        errors.extend(networks.errors)
        requests, of_networks = (*requests, *networks.requests), networks.allocations
        network_devices, network_notes = networks.devices, networks.notes
    with errors:
        allocations, notes = _allocations(environment, dra, others, domain, policy, name, of_networks)
    errors.raise_if_any()
    if any(allocation.devices for allocation in allocations.values()):
        requests = for_each_device(requests, allocations)
    variables = {allocation.variable: allocation for allocation in allocations.values()}
    listed = frozenset([entry for allocation in variables.values() for entry in allocation.entries])
    facts = _facts(host, listed, domain, policy)
    Collector(check_on_host(variables.values(), facts)).raise_if_any()
    answers = _match(allocations, requests, network_devices, domain, facts, policy)
    Collector((*answers.errors, *_unmatched(requests, answers, domain, policy, name))).raise_if_any()
    notes = (*notes, *network_notes, *answers.notes)
    return Resolved(requests, answers.matches, answers.not_attached, listed, bool(variables), facts, notes, variables)


def _allocations(
    environment: Environment,
    dra: "DraFiles | None",
    requests: Sequence[Request] | None,
    domain: DomainFacts,
    policy: Policy,
    name: str,
    of_networks: Mapping[str, Allocation],
) -> tuple[dict[str, Allocation], tuple[Note, ...]]:
    """The allocations by `Request.key`, or by the variable's name without a VMI (Q1, Q2); and notes on them.

    ``requests`` are without SR-IOV interfaces, whose allocations are ``of_networks`` (Q5); None without a VMI.

    Raises:
        LauncherkitError: everything that is missing or malformed.
    """
    askers = _by_claim(requests or ())
    files = _files_of_claims(dra) if askers else None
    if not environment.variables and not of_networks and (files is None or not files.present()):
        return {}, _nothing_allocated(requests, domain)
    variable_of = _variables(requests, environment)
    errors = Collector(_without_variable(requests or (), variable_of, environment, domain, policy, name))
    readings = {key: environment.read(variable) for key, variable in variable_of.items() if variable is not None}
    notes: list[Note] = []
    allocations: dict[str, Allocation] = {}
    for key, (allocation, repeats, wrong) in readings.items():
        allocations[key] = allocation
        notes += repeats
        errors.extend(wrong)
    if files is not None:
        for key, asking in askers.items():
            with errors:
                allocations[key] = files.read(asking[0], len(asking))
    errors.raise_if_any()
    return {**allocations, **of_networks}, tuple(notes)


def _by_claim(requests: Iterable[Request]) -> dict[str, list[Request]]:
    """The requests that name each DRA claim, by `Request.key` (E5)."""
    askers: dict[str, list[Request]] = {}
    for request in requests:
        if request.dra_claim is not None:
            askers.setdefault(request.key, []).append(request)
    return askers


def _files_of_claims(dra: "DraFiles | None") -> "DraFiles":
    if dra is not None:
        return dra
    from launcherkit.request.dra import DraFiles  # few VMs have claims

    return DraFiles()


def _variables(requests: Iterable[Request] | None, environment: Environment) -> dict[str, str | None]:
    """The variable of each resource that is asked for, None if there is none; without a VMI every variable (E1, Q1)."""
    if requests is None:
        return {name: name for name in environment.variables}
    resources = [request.resource for request in requests if request.resource is not None]
    return {resource: environment.variable_for(resource) for resource in dict.fromkeys(resources)}


def _without_variable(
    requests: Sequence[Request],
    variable_of: Mapping[str, str | None],
    environment: Environment,
    domain: DomainFacts,
    policy: Policy,
    name: str,
) -> Iterator[LauncherkitError]:
    """Errors for the resources without a variable of their own (E2, E4), and for hostdevs that stand for them (X2)."""
    missing = {resource for resource, variable in variable_of.items() if variable is None}
    if missing or len(set(variable_of.values())) < len(variable_of):
        yield from check_requests(requests, variable_of, environment)
        yield from _stale_hostdevs([each for each in requests if each.resource in missing], domain, policy, name)


def _unmatched(
    requests: Iterable[Request], answers: Matches, domain: DomainFacts, policy: Policy, name: str
) -> Iterator[LauncherkitError]:
    """If requests are not answered, errors for the hostdevs that stand for them (X2)."""
    if answers.errors:
        answered = {(match.section, match.name) for match in answers.matches}
        unanswered = [request for request in requests if (request.section, request.name) not in answered]
        yield from _stale_hostdevs(unanswered, domain, policy, name)


def _stale_hostdevs(
    requests: Iterable[Request], domain: DomainFacts, policy: Policy, name: str
) -> Iterator[LauncherkitError]:
    """An error for each hostdev of the document whose request was allocated nothing, though something was (X2)."""
    from launcherkit.choose.retarget import unanswered  # only for an error

    kinds: tuple[Kind, ...] = ("pci", "usb")  # mdevs have the aliases of PCI functions
    for request in requests:
        for alias in dict.fromkeys([_alias_of(request, kind, policy) for kind in kinds]):
            error = unanswered(alias, request, domain, name)
            if error is not None:
                yield error


def _alias_of(request: Request, kind: Kind, policy: Policy) -> str:
    by_claim = request.dra_claim is not None
    return alias_of(request.section, request.name, kind, policy.alias_prefixes, by_claim=by_claim)


def _nothing_allocated(requests: Sequence[Request] | None, domain: DomainFacts) -> tuple[Note, ...]:
    """The notes if nothing was allocated here, as in a sidecar, where there are only the document's hostdevs (Q2).

    Raises:
        VARIABLE_MISSING: the VMI asks for more than that.
    """
    if requests is not None and len(requests) > len(domain.hostdevs):
        raise not_in_domain(requests, len(domain.hostdevs))
    if requests is not None or domain.hostdevs:
        return ()
    return (Note("nothing", "no *_RESOURCE_* variable is set and the domain has no hostdev: nothing to attach"),)


def _facts(host: HostSource, listed: Iterable[HostAddress], domain: DomainFacts, policy: Policy) -> HostFacts:
    """Facts about what was allocated and what the document has."""
    addresses = [*listed, *dict.fromkeys([hostdev.source for hostdev in domain.hostdevs])]
    functions = [address for address in addresses if isinstance(address, PciAddress)]
    mdevs = [address for address in addresses if isinstance(address, MdevAddress)]
    paths = policy.generic_initiators or policy.numa_distances or policy.p2p == "auto"
    topology = paths or topology_for(domain, policy.topology) != "flat"
    return host.facts(functions, mdevs, topology=topology) if functions or mdevs else NO_FACTS


def _match(
    allocations: Mapping[str, Allocation],
    requests: Sequence[Request],
    of_networks: Mapping[Request, HostAddress],
    domain: DomainFacts,
    facts: HostFacts,
    policy: Policy,
) -> Matches:
    if not allocations:
        return Matches(())
    if not requests:
        held = {hostdev.source: hostdev.alias for hostdev in domain.hostdevs if hostdev.alias and hostdev.source}
        return match_environment(allocations.values(), facts, policy.pairing, domain.taken, policy.alias_prefixes, held)
    source_of = {hostdev.alias: hostdev.source for hostdev in domain.hostdevs if hostdev.alias and hostdev.source}
    # The devices of a claim are only for its requests, whatever a variable holds (C5).
    of_claims = dict(of_networks)
    if any(request.dra_claim for request in requests):
        of_claims |= claimed_devices(requests, allocations)
    by_alias: dict[Request, HostAddress] = {}
    if source_of:
        aliases = [_alias_of(request, allocations[request.key].kind, policy) for request in requests]
        for request, alias in zip(requests, name_requests(aliases, domain), strict=True):
            if alias in source_of:
                by_alias[request] = source_of[alias]
    return match_requests(requests, allocations, facts, policy.pairing, of_claims, by_alias, domain.taken)
