"""From allocation, host facts and a domain document to the document that libvirt defines.

The one way through the house, shared by every adapter and the public API.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Any, Protocol

from launcherkit.domain.document import read_document
from launcherkit.domain.reader import read_facts
from launcherkit.domain.writer import write_plan
from launcherkit.errors import Collector, LauncherkitError
from launcherkit.model.address import HostAddress, MdevAddress, PciAddress
from launcherkit.model.domain import DomainFacts
from launcherkit.model.host import NO_FACTS, HostFacts
from launcherkit.model.note import Note
from launcherkit.model.plan import Attachment, Plan, PlannedDevice, PlannedFunction, Shown, Unit
from launcherkit.model.policy import Policy
from launcherkit.model.request import Allocation, DisplayOptions, Request
from launcherkit.model.value import NamedTuple
from launcherkit.place.slots import Placement, place_units
from launcherkit.resolve.aliases import Named, assign_aliases, find_riders, name_claims, name_requests
from launcherkit.resolve.allocated import sees_own_nodes_alone
from launcherkit.resolve.backend import Backends, decide_backends, nodes_of
from launcherkit.resolve.claims import Claims, check_on_host, claim_all, claim_existing, claim_requested
from launcherkit.resolve.siblings import Situation, assemble_units
from launcherkit.resolve.viability import check_nodes, check_viability, nodes_to_come, touched_groups
from launcherkit.sources.environment import Environment
from launcherkit.sources.vmi import Vmi, read_vmi

EMPTY_PLAN = Plan((), (), (), (), (), False)


class HostSource(Protocol):
    """Where host facts come from, read by need: `launcherkit.Host`."""

    def facts(self, addresses: Iterable[PciAddress], mdevs: Iterable[MdevAddress] = ...) -> HostFacts:
        """Facts about the named devices, their slots and their groups."""
        ...


class DraSource(Protocol):
    """Where the devices of DRA claims are named: `launcherkit.sources.dra.DraFiles`."""

    def present(self) -> bool:
        """Whether there are any."""
        ...

    def read(self, request: Request) -> Allocation:
        """The device that answers a request by claim."""
        ...


class Translation(NamedTuple):
    """What `translate` returns."""

    domain_xml: bytes
    plan: Plan
    notes: tuple[Note, ...]


def translate(
    domain_xml: str | bytes,
    *,
    env: Mapping[str, str],
    host: HostSource,
    vmi: str | bytes | Mapping[str, Any] | Vmi | None = None,
    policy: Policy | None = None,
    dra: DraSource | None = None,
    name: str = "the domain document",
) -> Translation:
    """Put the allocated devices, with their siblings, into a domain document.

    Args:
        domain_xml: the domain, as bytes or text.
        env: the environment of the container that got the devices; other variables are ignored.
        host: `Host.from_sysfs`, `Host.from_snapshot`, `Host.from_umockdev` or `Host.none`.
        vmi: the VirtualMachineInstance, as JSON or parsed; without it the environment is the request (Q1).
        policy: the integrator's decisions; defaults without.
        dra: the metadata files of DRA claims; those of this container without (E5).
        name: what messages call the domain document, its file for example.

    Returns:
        The document to define, the plan behind it, and what the operator should know. Where the VMI asks for nothing
        the document is the one that came, byte for byte (Q3).

    Raises:
        LauncherkitError: bad input, or a host that can't give what was allocated; see ``docs/errors``. Where several
            things are wrong, `SeveralErrors` holds them all.
    """
    policy = policy or Policy()
    document = read_document(domain_xml, name)
    asked = vmi if vmi is None or isinstance(vmi, Vmi) else read_vmi(vmi)
    environment = Environment(env, policy.extra_prefixes)
    notes: list[Note] = [] if asked is None else [*asked.notes]
    if asked is not None and not asked.requests:
        notes += _unasked(environment)
        return Translation(document.data, EMPTY_PLAN, tuple(notes))
    domain = read_facts(document.root, name)
    plan = _plan(domain, environment, asked, dra, host, policy, notes)
    written = write_plan(document, plan)
    return Translation(written, plan, tuple(notes))


def _unasked(environment: Environment) -> list[Note]:
    """Devices were allocated to a VMI that asks for none: often it is not the VMI of this pod (Q4)."""
    held = [f"{count} in {name}" for name, count in environment.counts().items() if count]
    return [Note("not-asked", f"the VMI asks for no device; left alone: {', '.join(held)}")] if held else []


def _plan(
    domain: DomainFacts,
    environment: Environment,
    vmi: Vmi | None,
    dra: DraSource | None,
    host: HostSource,
    policy: Policy,
    notes: list[Note],
) -> Plan:
    requests = () if vmi is None else vmi.requests
    existing = {hostdev.source: index for index, hostdev in reversed([*enumerate(domain.hostdevs)]) if hostdev.source}
    allocations = _allocations(environment, dra, vmi, domain, notes)
    variables = {allocation.variable: allocation for allocation in allocations.values()}
    listed = frozenset(entry for allocation in variables.values() for entry in allocation.entries)
    facts = _facts(host, (*listed, *existing))

    errors = Collector()
    check_on_host(variables.values(), facts, errors)
    errors.raise_if_any()
    claims, left_alone = _claims(allocations, requests, domain, facts, policy, errors, notes)
    errors.raise_if_any()
    asked = {claim.primary for claim in claims}
    claims = (*claims, *claim_existing(domain.hostdevs, asked, policy.alias_prefixes, facts))
    named = name_claims(claims, domain, policy.alias_prefixes)
    riders = find_riders(claims, named, domain)
    if not variables:
        listed = frozenset(existing) if facts.known else frozenset()
    own_nodes = sees_own_nodes_alone((*listed, *existing), facts)
    situation = Situation(policy.siblings, facts, listed, existing, domain.taken, riders, own_nodes)
    units = assemble_units(claims, situation)
    attached = [attachment.source for unit in units for attachment in unit.attachments]

    options = {request.name: request.display for request in requests if request.section == "gpus"}
    shown = _displays([unit for unit in units if not unit.kept], options, domain, facts, errors, notes)
    aliases = assign_aliases(units, named, domain, policy.alias_prefixes)
    placement = place_units(units, domain, errors, notes)
    if left_alone or existing or any(unit.stayed for unit in units):
        from launcherkit.resolve.notes import notes_about  # most VMs get what they asked for, and need none

        notes += notes_about(units, left_alone, set(options), facts)

    groups = touched_groups(attached, facts)
    managed = _managed(units, domain, policy)
    check_viability(groups, managed, facts, errors, notes)
    backends = decide_backends(units, domain, facts, errors, notes)
    needed = nodes_of(attached, backends, facts)
    if policy.node_check == "always" or (policy.node_check == "auto" and variables):
        to_come = frozenset(nodes_to_come(groups, managed, facts) if managed else ())
        check_nodes([node for node in needed if node not in to_come], facts, errors)
    errors.raise_if_any()
    there = set(attached)
    left = tuple(dict.fromkeys(primary for _, primary in left_alone if primary not in there))
    devices = tuple([_device(unit, aliases, placement, shown, managed, backends) for unit in units])
    return Plan(devices, placement.controllers, groups, needed, left, bool(backends.iommufd))


def _displays(
    units: Sequence[Unit],
    options: Mapping[str, DisplayOptions | None],
    domain: DomainFacts,
    facts: HostFacts,
    errors: Collector,
    notes: list[Note],
) -> dict[HostAddress, Shown]:
    """Most VMs have GPUs that are passed through whole and shown nowhere; the others pay for the import."""
    said = [hostdev for hostdev in domain.hostdevs if hostdev.display or hostdev.ramfb]
    if not said and not any(options.values()) and all(unit.kind != "mdev" for unit in units):
        return {}
    from launcherkit.resolve.display import decide_displays

    return decide_displays(units, options, domain, facts, errors, notes)


def _device(
    unit: Unit,
    aliases: Mapping[HostAddress, str],
    placement: Placement,
    shown: Mapping[HostAddress, Shown],
    managed: Container[HostAddress],
    backends: Backends,
) -> PlannedDevice:
    guests = placement.guests
    functions = [
        PlannedFunction(
            attachment,
            aliases[source],
            guests.get(source),
            shown.get(source),
            source in managed,
            backends.said.get(source),
        )
        for attachment in unit.attachments
        for source in (attachment.source,)
    ]
    return PlannedDevice(unit.kind, tuple(functions), unit.stayed, unit.kept)


def _allocations(
    environment: Environment, dra: DraSource | None, vmi: Vmi | None, domain: DomainFacts, notes: list[Note]
) -> dict[str, Allocation]:
    """What answers, by `Request.key`, or by the variable's name where there is no VMI (Q1, Q2).

    What is wrong is worked out in `launcherkit.resolve.missing`, which is imported when something is.
    """
    errors = Collector()
    by_claim = [request for request in vmi.requests if request.claim is not None] if vmi else []
    files = (dra or _own_dra_files()) if by_claim else None
    if not environment.variables and (files is None or not files.present()):
        if vmi is None and not domain.hostdevs:
            notes.append(
                Note("nothing", "no *_RESOURCE_* variable is set and the domain has no hostdev: nothing to attach")
            )
        if vmi is not None and len(vmi.requests) > len(domain.hostdevs):
            from launcherkit.resolve.missing import not_in_domain

            raise not_in_domain(vmi.requests, len(domain.hostdevs))
        return {}
    if vmi is None:
        read = {name: environment.read(name, errors, notes) for name in environment.variables}
        errors.raise_if_any()
        return read
    resources = dict.fromkeys([request.resource for request in vmi.requests if request.resource is not None])
    variable_of = {resource: environment.variable_for(resource) for resource in resources}
    if len(set(variable_of.values()) - {None}) < len(variable_of):
        from launcherkit.resolve.missing import check_requests

        check_requests(vmi.requests, variable_of, environment, errors)
    allocations = {
        resource: environment.read(variable, errors, notes)
        for resource, variable in variable_of.items()
        if variable is not None
    }
    if files is not None:
        for request in by_claim:
            try:
                allocations[request.key] = files.read(request)
            except LauncherkitError as error:
                errors.add(error)
    errors.raise_if_any()
    return allocations


def _own_dra_files() -> DraSource:
    """Those of this container; imported only where a VM has claims."""
    from launcherkit.sources.dra import DraFiles

    return DraFiles()


def _facts(host: HostSource, addresses: Sequence[HostAddress]) -> HostFacts:
    functions = [address for address in addresses if isinstance(address, PciAddress)]
    mdevs = [address for address in addresses if isinstance(address, MdevAddress)]
    return host.facts(functions, mdevs) if functions or mdevs else NO_FACTS


def _claims(
    allocations: Mapping[str, Allocation],
    requests: Sequence[Request],
    domain: DomainFacts,
    facts: HostFacts,
    policy: Policy,
    errors: Collector,
    notes: list[Note],
) -> Claims:
    if not allocations:
        return Claims((), ())
    if not requests:
        return Claims(claim_all(allocations.values(), facts, policy.pairing, domain.taken, notes), ())
    there = {hostdev.alias: hostdev.source for hostdev in domain.hostdevs if hostdev.alias and hostdev.source}
    # What a claim names is for its request alone, whatever a variable holds (C5).
    wanted = {request: allocations[request.key].entries[0] for request in requests if request.claim is not None}
    if there:
        asked = [
            Named(request.section, request.name, allocations[request.key].kind, request.claim is not None)
            for request in requests
        ]
        for request, alias in zip(requests, name_requests(asked, domain, policy.alias_prefixes), strict=True):
            if alias in there:
                wanted.setdefault(request, there[alias])
    return claim_requested(requests, allocations, facts, policy.pairing, wanted, domain.taken, errors, notes)


def _managed(units: Sequence[Unit], domain: DomainFacts, policy: Policy) -> frozenset[HostAddress]:
    """What libvirt binds itself (X1): as the document says, as it says of the primary, or as the policy says."""
    if not policy.managed and all(hostdev.managed != "yes" for hostdev in domain.hostdevs):
        return frozenset()
    managed: set[HostAddress] = set()
    for unit in units:
        default = _said(unit.primary, domain, policy.managed and not unit.kept)
        managed.update([each.source for each in unit.attachments if _said(each, domain, default)])
    return frozenset(managed)


def _said(attachment: Attachment, domain: DomainFacts, default: bool) -> bool:
    said = None if attachment.hostdev is None else domain.hostdevs[attachment.hostdev].managed
    return default if said is None else said == "yes"
