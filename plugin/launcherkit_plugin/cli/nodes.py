"""The nodes for `launcherkit rehearse`: a `launcherkit.model.candidate.NodeSource`, found through the entry point
``launcherkit.nodes``."""

from __future__ import annotations

import argparse
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from launcherkit.errors import NO_NODES, counted
from launcherkit.model.address import PciAddress
from launcherkit.model.candidate import NodeCandidate, WithheldDevice
from launcherkit.model.host import HostFacts
from launcherkit_plugin.allocation.keeper import records_in
from launcherkit_plugin.binding.lent import LentDevices
from launcherkit_plugin.cli.options import STATE
from launcherkit_plugin.cli.resources import config_of, look
from launcherkit_plugin.devices.names import Namer
from launcherkit_plugin.devices.selectors import compile_rules, with_dra
from launcherkit_plugin.model.config import Config
from launcherkit_plugin.model.errors import NOT_OFFERED
from launcherkit_plugin.rehearsal.candidate_node import CandidateNode
from launcherkit_plugin.rehearsal.node_record import NodeOffer, with_topology


def published(namespace: str, node: str | None, env: Mapping[str, str]) -> Sequence[NodeCandidate]:
    """See `launcherkit.model.candidate.NodeSource.published`."""
    # The Kubernetes client takes 250 ms to import.
    from launcherkit_plugin.cli.cluster_nodes import published as of_cluster

    return of_cluster(namespace, node, env)


def withheld(root: str, now: float) -> list[WithheldDevice]:
    """See `launcherkit.model.candidate.NodeSource.withheld`."""
    state = os.path.join(root, STATE.lstrip("/"))
    records = records_in(state).load().whole.values()
    kept = [(record, record.ended) for record in records if record.until > now]
    devices = [
        WithheldDevice(record.device, "kept", int(ended), int(record.until), f"kept {record}")
        for record, ended in kept
        if ended is not None
    ]
    return devices + [
        WithheldDevice(str(function), lent.state, lent.since, None, str(lent))
        for lent in LentDevices(f"{state}/lent").read().values()
        for function in lent.functions
        if lent.state != "used"
    ]


def answer_claim(node: NodeCandidate, documents: Sequence[object], file: str) -> Mapping[str, str]:
    """See `launcherkit.model.candidate.NodeSource.answer_claim`."""
    from launcherkit_plugin.dra.claim_search import answers, read_claim
    from launcherkit_plugin.dra.inventory import inventory

    claim = read_claim(documents, file)
    if not isinstance(node, CandidateNode):
        node.allocate({})  # nothing is known of it, and this raises why
        raise TypeError(f"{node.name} is not a node of this plugin's")
    others = {selector.driver for selector in claim.requests.values()} - {node.offer.driver}
    if node.offer.driver is not None and others:
        raise NOT_OFFERED(
            f"{node.name} has the DRA driver {node.offer.driver}, and {claim.name} asks for devices of {min(others)}",
            "Print the claim with `launcherkit-plugin claim --driver`, or give --config with that `dra.driver`.",
            resource=claim.name,
        )
    devices = inventory(node.offer.resources, node.offer.facts)
    chosen = answers(claim, devices, node.offer.usage.kept_ids)
    if chosen is not None:
        return chosen
    asked = Counter(claim.requests.values())
    have = [f"{sum(map(kind.selects, devices))} where {count} are asked for" for kind, count in asked.items()]
    raise NOT_OFFERED(
        f"{node.name} can't satisfy {claim.name} as a whole: among its {counted(len(devices), 'device')} for DRA, held "
        f"ones included, are {', '.join(have)}",
        "Ask for a wider level with --near, or for fewer devices; `launcherkit-plugin discover --dra` shows the "
        "attributes of each.",
        resource=claim.name,
    )


_ENDINGS = (".json", ".umockdev")
"""The extensions of files in a folder that count as nodes."""


def recorded(
    places: Sequence[str], config: str | None, auto: str | None, env: Mapping[str, str], *, for_claim: bool = False
) -> list[CandidateNode]:
    """See `launcherkit.model.candidate.NodeSource.recorded`.

    Raises:
        NO_NODES: there is none, or two have one name.
        LauncherkitError: a file can't be read, or the configuration is wrong.
    """
    path_of: dict[str, str] = {}
    for path in (path for place in places for path in _files(place)):
        name = _node_name(path)
        if name in path_of:
            raise NO_NODES(
                f"{path} and {path_of[name]} are both the node {name}",
                "A node is named after its file, without the ending: rename one.",
                file=path,
            )
        path_of[name] = path
    settings = config_of(argparse.Namespace(config=config, auto=auto), env)
    driver = None if settings.dra is None else settings.dra.driver
    if for_claim and settings.dra is None:
        settings = with_dra(settings, every=True)
    offers = [_offer(name, path, settings, env) for name, path in path_of.items()]
    return [CandidateNode(offer._replace(driver=driver)) for offer in offers]


def _files(place: str) -> Iterator[str]:
    """The nodes at a path: a file, or a folder with ``sys``, is a node; in any other folder, each snapshot is one."""
    if not os.path.isdir(place) or os.path.isdir(os.path.join(place, "sys", "bus", "pci")):
        yield place
        return
    names = [name for name in sorted(os.listdir(place)) if name.endswith(_ENDINGS)]
    if not names:
        raise NO_NODES(
            f"{place}: no snapshot is in this folder: no file *.json, no *.umockdev",
            "Write one for each node: launcherkit snapshot -o NODE.json",
            file=place,
        )
    yield from (os.path.join(place, name) for name in names)


def _node_name(path: str) -> str:
    name = os.path.basename(os.path.abspath(path)) or path
    return next((name.removesuffix(ending) for ending in _ENDINGS if name.endswith(ending)), name)


def _offer(name: str, path: str, config: Config, env: Mapping[str, str]) -> NodeOffer:
    seen = look(config, path, env, f"{name}: ")
    seen.check()
    left = [address for entry in seen.left for address in entry.functions]
    offer = NodeOffer(
        name,
        seen.facts,
        seen.resources,
        nodes=config.nodes,
        left_out=_would_be_called(left, config, seen.facts),
    )
    return with_topology(offer, seen.host)


def _would_be_called(left: Sequence[PciAddress], config: Config, facts: HostFacts) -> dict[str, list[PciAddress]]:
    """Functions that no pod gets, by the name that their resource would have."""
    namer, match = Namer(config), compile_rules(config.pci)
    functions = [facts.functions[address] for address in left]
    namer.update(functions)
    named: dict[str, list[PciAddress]] = {}
    for function in functions:
        rule = match(function)
        if rule is not None:
            named.setdefault(namer.function(function, rule), []).append(function.address)
    return named
