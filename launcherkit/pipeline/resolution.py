"""The first step: which devices were allocated, and which request each of them answers (E1-E5, Q1, Q2, C1-C5)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol

from launcherkit.choose.aliases import alias_of, name_matches, name_requests
from launcherkit.choose.match import (
    Matches,
    check_on_host,
    claimed_devices,
    for_each_device,
    match_environment,
    match_hostdevs,
    match_requests,
)
from launcherkit.choose.retarget import Retargeted, retarget, unanswered
from launcherkit.choose.variables import check_requests, not_in_domain
from launcherkit.errors import Collector, Conflict
from launcherkit.model.address import HostAddress, MdevAddress, PciAddress
from launcherkit.model.domain import DomainFacts
from launcherkit.model.host import NO_FACTS, HostFacts
from launcherkit.model.plan import Match, Note
from launcherkit.model.policy import AliasPrefixes, Policy
from launcherkit.model.request import Allocation, Kind, NetworkStatus, Request
from launcherkit.pipeline.networks import answer_networks
from launcherkit.place.slots import topology_for
from launcherkit.request.dra import DraFiles
from launcherkit.request.environment import Environment
from launcherkit.request.vmi import Vmi


class HostSource(Protocol):
    """Where host facts come from, read by need: `launcherkit.Host`."""

    def facts(
        self, addresses: Iterable[PciAddress], mdevs: Iterable[MdevAddress] = ..., *, topology: bool = ...
    ) -> HostFacts:
        """Facts about the named devices, their slots and groups; with ``topology`` also their places on the host."""
        ...


class DraSource(Protocol):
    """The source of the devices of DRA claims: `launcherkit.request.dra.DraFiles`."""

    def present(self) -> bool:
        """Whether this container has any."""
        ...

    def read(self, request: Request, askers: int = ...) -> Allocation:
        """The devices that answer a request by claim; ``askers`` is how many entries of the VMI name it."""
        ...


class Resolved(NamedTuple):
    """The requests, and the devices that answer them."""

    requests: tuple[Request, ...]
    """The VMI's; empty if the environment is the request (Q1)."""
    matches: tuple[Match, ...]
    not_attached: tuple[tuple[str, HostAddress], ...]
    """Primaries beyond the requests, with their variables (C4)."""
    existing: dict[HostAddress, int]
    """The index of each of the document's hostdevs, by source (X2)."""
    listed: frozenset[HostAddress]
    """Every address in the variables that are used."""
    allocated: bool
    """Whether anything was allocated here; if not, there are only the document's hostdevs (Q2)."""
    facts: HostFacts
    notes: tuple[Note, ...]
    domain: DomainFacts
    """The document's facts, with the sources that its hostdevs will have (X2)."""
    moved: Retargeted | None = None
    """The hostdevs that get another source; None if there are none."""


def resolve(
    domain: DomainFacts,
    environment: Environment,
    vmi: Vmi | None,
    dra: DraSource | None,
    host: HostSource,
    policy: Policy,
    name: str,
    status: NetworkStatus | None = None,
) -> Resolved:
    """Read what was allocated, look it up on the host, and answer each request; messages call the document ``name``.

    Raises:
        LauncherkitError: a variable or a claim is missing or malformed; a device is not on the host; too few of them.
    """
    requests = () if vmi is None else vmi.requests
    networks = None
    if vmi is not None and any(request.is_network for request in requests):
        networks = answer_networks(requests, environment, status, [each.alias for each in domain.hostdevs])
        vmi, requests = vmi._replace(requests=networks.others), (*networks.others, *networks.requests)
    of_networks = networks.allocations if networks else {}
    errors = Collector(networks.errors if networks else ())
    with errors:
        allocations, notes = _allocations(environment, dra, vmi, domain, policy.alias_prefixes, name, of_networks)
    errors.raise_if_any()
    if any(allocation.devices for allocation in allocations.values()):
        requests = for_each_device(requests, allocations)
    variables = {allocation.variable: allocation for allocation in allocations.values()}
    sources = [hostdev.source for hostdev in domain.hostdevs if hostdev.source]
    listed = frozenset([entry for allocation in variables.values() for entry in allocation.entries])
    topology = policy.generic_initiators or topology_for(domain, policy.topology) != "flat"
    facts = _facts(host, (*listed, *sources), topology=topology)
    Collector(check_on_host(variables.values(), facts)).raise_if_any()
    answers = _match(allocations, requests, networks.devices if networks else {}, domain, facts, policy)
    errors = Collector(answers.errors)
    if answers.errors:
        answered = {(match.section, match.name) for match in answers.matches}
        open_ = [request for request in requests if (request.section, request.name) not in answered]
        errors.extend(_unanswered(open_, domain, policy.alias_prefixes, name))
    errors.raise_if_any()
    moved = None
    if answers.matches and domain.hostdevs:
        moved = retarget(answers.matches, name_matches(answers.matches, domain, policy.alias_prefixes), domain, name)
        Collector(moved.errors).raise_if_any()
        domain = moved.domain
    existing = {hostdev.source: index for index, hostdev in reversed([*enumerate(domain.hostdevs)]) if hostdev.source}
    asked = {match.primary for match in answers.matches}
    matches = (*answers.matches, *match_hostdevs(domain.hostdevs, asked, policy.alias_prefixes, facts))
    notes = (*notes, *(networks.notes if networks else ()), *answers.notes)
    left, allocated = answers.not_attached, bool(variables)
    return Resolved(requests, matches, left, existing, listed, allocated, facts, notes, domain, moved)


def _unanswered(
    requests: Iterable[Request], domain: DomainFacts, prefixes: AliasPrefixes, name: str
) -> Iterator[Conflict]:
    """An error for each hostdev of the document whose request was allocated nothing, though something was (X2)."""
    kinds: tuple[Kind, ...] = ("pci", "usb")  # mdevs have the aliases of PCI functions
    for request in requests:
        by_claim = request.dra_claim is not None
        aliases = [alias_of(request.section, request.name, kind, prefixes, by_claim=by_claim) for kind in kinds]
        for alias in dict.fromkeys(aliases):
            error = unanswered(alias, request, domain, name)
            if error is not None:
                yield error


def _allocations(
    environment: Environment,
    dra: DraSource | None,
    vmi: Vmi | None,
    domain: DomainFacts,
    prefixes: AliasPrefixes,
    name: str,
    of_networks: Mapping[str, Allocation],
) -> tuple[dict[str, Allocation], tuple[Note, ...]]:
    """The allocations by `Request.key`, or by the variable's name without a VMI (Q1, Q2); and notes on them.

    ``of_networks`` are those of SR-IOV interfaces, which the VMI is without (Q5).
    """
    by_claim = [request for request in vmi.requests if request.dra_claim is not None] if vmi else []
    files = (dra or DraFiles()) if by_claim else None
    if not environment.variables and not of_networks and (files is None or not files.present()):
        return {}, _nothing_allocated(vmi, domain)
    errors = Collector()
    variable_of: dict[str, str | None] = {name: name for name in environment.variables}
    if vmi is not None:
        resources = [request.resource for request in vmi.requests if request.resource is not None]
        variable_of = {resource: environment.variable_for(resource) for resource in dict.fromkeys(resources)}
        if len(set(variable_of.values()) - {None}) < len(variable_of):
            errors.extend(check_requests(vmi.requests, variable_of, environment))
            missing = {resource for resource, variable in variable_of.items() if variable is None}
            stale = [each for each in vmi.requests if each.resource in missing]
            errors.extend(_unanswered(stale, domain, prefixes, name))
    readings = {key: environment.read(variable) for key, variable in variable_of.items() if variable is not None}
    allocations = {key: reading.allocation for key, reading in readings.items()}
    errors.extend([error for reading in readings.values() for error in reading.errors])
    if files is not None:
        askers: dict[str, list[Request]] = {}
        for request in by_claim:
            askers.setdefault(request.key, []).append(request)
        for key, asking in askers.items():
            with errors:
                allocations[key] = files.read(asking[0], len(asking))
    errors.raise_if_any()
    return {**allocations, **of_networks}, tuple([note for reading in readings.values() for note in reading.notes])


def _nothing_allocated(vmi: Vmi | None, domain: DomainFacts) -> tuple[Note, ...]:
    """The notes if nothing was allocated here, as in a sidecar, where there are only the document's hostdevs (Q2).

    Raises:
        VARIABLE_MISSING: the VMI asks for more than that.
    """
    if vmi is not None and len(vmi.requests) > len(domain.hostdevs):
        raise not_in_domain(vmi.requests, len(domain.hostdevs))
    if vmi is not None or domain.hostdevs:
        return ()
    return (Note("nothing", "no *_RESOURCE_* variable is set and the domain has no hostdev: nothing to attach"),)


def _facts(host: HostSource, addresses: Sequence[HostAddress], *, topology: bool) -> HostFacts:
    functions = [address for address in addresses if isinstance(address, PciAddress)]
    mdevs = [address for address in addresses if isinstance(address, MdevAddress)]
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
        aliases = [
            alias_of(
                request.section,
                request.name,
                allocations[request.key].kind,
                policy.alias_prefixes,
                by_claim=request.dra_claim is not None,
            )
            for request in requests
        ]
        for request, alias in zip(requests, name_requests(aliases, domain), strict=True):
            if alias in source_of:
                by_alias[request] = source_of[alias]
    return match_requests(requests, allocations, facts, policy.pairing, of_claims, by_alias, domain.taken)
