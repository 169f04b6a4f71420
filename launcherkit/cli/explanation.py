"""What `launcherkit explain` says of a translation."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

from launcherkit.colour import Colours
from launcherkit.domain.reader import read_facts, read_tree
from launcherkit.domain.xml import read_document
from launcherkit.errors import LauncherkitError
from launcherkit.host.pci_ids import TABLES, find_names
from launcherkit.inputs import Inputs, RememberingHost, read_inputs
from launcherkit.model.address import HostAddress, MdevAddress, PciAddress
from launcherkit.model.host import NO_FACTS, HostFacts
from launcherkit.model.request import Allocation, Request
from launcherkit.pipeline import Translation
from launcherkit.pipeline.networks import answer_networks
from launcherkit.process.edge import write_stdout
from launcherkit.process.terminal import drawing_columns, write_text
from launcherkit.request.dra import DraFiles
from launcherkit.request.environment import Environment
from launcherkit.show.documents import plan_document
from launcherkit.show.evidence import AskedRequest, Evidence, explain_failure
from launcherkit.show.guest import guest_of
from launcherkit.show.host import topology_of
from launcherkit.show.outline import outline, refused_item
from launcherkit.show.plan import explain_plan
from launcherkit.show.text import draw
from launcherkit.show.topology import HostTopology


def explain_translation(args: argparse.Namespace, env: Mapping[str, str], colours: Colours) -> int:
    """Print an explanation; if the translation fails, what is known, and then its errors as usual."""
    inputs = read_inputs(args, env)
    host = RememberingHost(inputs.host, topology=True)  # which is shown
    try:
        translation = replace(inputs, host=host).translate()
    except LauncherkitError as error:
        if not args.json:
            evidence = gather(inputs, host, TABLES)
            write_text(
                _refused(error, evidence, colours, env) if args.tree else explain_failure(evidence, colours), env
            )
        raise
    if args.json:
        write_stdout(json.dumps(plan_document(translation, host.answer), indent=2).encode() + b"\n")
        return 0
    evidence = gather(inputs, host, TABLES)
    picture = _picture(translation, evidence, colours, env)
    write_text(picture if args.tree else explain_plan(translation, evidence, colours, picture=picture), env)
    return 0


def _picture(translation: Translation, evidence: Evidence, colours: Colours, env: Mapping[str, str]) -> str:
    """The part of the host that the VM touches, and the guest; nothing if it gets nothing."""
    tree = read_tree(read_document(translation.domain_xml).root)
    guest = guest_of(evidence.name, translation.plan, tree)
    if not any(guest.functions()):
        return ""
    return draw(outline(replace(_host(evidence), guest=guest)), colours, drawing_columns(env))


def _refused(error: LauncherkitError, evidence: Evidence, colours: Colours, env: Mapping[str, str]) -> str:
    shown = replace(outline(_host(evidence)), guest=refused_item(evidence.name, error.leaves()))
    return draw(shown, colours, drawing_columns(env))


def _host(evidence: Evidence) -> HostTopology:
    """What is listed or in the domain, with its slots and groups."""
    facts = evidence.facts
    shown = {*_touched(facts, evidence.allocations, evidence.hostdevs)}
    groups = {facts.functions[each].iommu_group for each in shown}
    shown |= {each.address for each in facts.functions.values() if each.iommu_group in groups - {None}}
    return topology_of(facts, TABLES, every=True, only=shown)


def gather(inputs: Inputs, host: RememberingHost, tables: Iterable[str]) -> Evidence:
    """Further facts for the explanation; unavailable ones are left out, because they have been reported as errors.

    Args:
        inputs: of the translation.
        host: the one that the translation used; asked directly if the translation didn't get that far.
        tables: where ``pci.ids`` may be.
    """
    environment = Environment(inputs.env, inputs.policy.extra_prefixes)
    allocations = {name: environment.read(name)[0] for name in environment.variables}
    asked = None
    if inputs.vmi is not None:
        if any(request.sriov is not None for request in inputs.vmi.requests):
            networks = environment.of_networks()
            allocations |= {name: networks.read(name)[0] for name in networks.variables}
        by_claim = _by_claim(inputs.vmi.requests, inputs.dra)
        by_claim |= answer_networks(inputs.vmi.requests, environment, inputs.network_status, ()).allocations
        allocations |= {allocation.variable: allocation for allocation in by_claim.values()}
        answers = {key: allocation.variable for key, allocation in by_claim.items()}
        asked = tuple(
            AskedRequest(
                request, environment.variable_for(request.resource) if request.resource else answers.get(request.key)
            )
            for request in inputs.vmi.requests
        )
    hostdevs = _hostdevs(inputs)
    facts = host.answer
    if not facts.known:
        facts = _facts(host, allocations, hostdevs)
    functions = [facts.functions[address] for address in _touched(facts, allocations, hostdevs)]
    return Evidence(inputs.domain_name, asked, allocations, hostdevs, facts, find_names(functions, tables))


def _by_claim(requests: Sequence[Request], dra: DraFiles) -> dict[str, Allocation]:
    """What answers requests by claim, by `Request.key` (E5)."""
    keys = [request.key for request in requests if request.dra_claim is not None]
    answers: dict[str, Allocation] = {}
    for request in requests:
        if request.dra_claim is not None and request.key not in answers:
            with suppress(LauncherkitError):
                answers[request.key] = dra.read(request, keys.count(request.key))
    return answers


def _hostdevs(inputs: Inputs) -> tuple[HostAddress, ...]:
    try:
        hostdevs = read_facts(read_document(inputs.domain_xml).root).hostdevs
    except LauncherkitError:
        return ()
    return tuple(hostdev.source for hostdev in hostdevs if hostdev.source is not None)


def _facts(host: RememberingHost, allocations: Mapping[str, Allocation], hostdevs: Iterable[HostAddress]) -> HostFacts:
    addresses = [*(entry for allocation in allocations.values() for entry in allocation.entries), *hostdevs]
    functions = [address for address in addresses if isinstance(address, PciAddress)]
    mdevs = [address for address in addresses if isinstance(address, MdevAddress)]
    try:
        return host.facts(functions, mdevs) if functions or mdevs else NO_FACTS
    except LauncherkitError:
        return NO_FACTS


def _touched(
    facts: HostFacts, allocations: Mapping[str, Allocation], hostdevs: Iterable[HostAddress]
) -> list[PciAddress]:
    """The functions that need names: those listed or in the domain, and the others of the same slots."""
    addresses = [*(entry for allocation in allocations.values() for entry in allocation.entries), *hostdevs]
    slots = {address.slot for address in addresses if isinstance(address, PciAddress)}
    return [address for address in facts.functions if address.slot in slots]
