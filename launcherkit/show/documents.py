"""JSON for programs: a host's tree, a plan, a rehearsal."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields, is_dataclass
from functools import cache
from operator import attrgetter
from typing import Any

from launcherkit.choose.migration import migration_of_all
from launcherkit.errors import LauncherkitError
from launcherkit.model.address import PciAddress, PciSlot, format_cpuset
from launcherkit.model.candidate import PromisedDevice
from launcherkit.model.host import HostFacts
from launcherkit.model.plan import Match, Plan, PlannedDevice, PlannedFunction
from launcherkit.pipeline import Translation
from launcherkit.rehearse.rehearsal import NodeOutcome
from launcherkit.show.topology import HostTopology, TreeFunction

TOPOLOGY_FORMAT = "launcherkit.io/topology/v1"
PLAN_FORMAT = "launcherkit.io/plan/v1"
REHEARSAL_FORMAT = "launcherkit.io/rehearsal/v1"


def topology_json(topology: HostTopology) -> str:
    """The tree as JSON, with one line for each function: addresses are text, and fields have their names in camel
    case."""
    return _laid_out({"format": TOPOLOGY_FORMAT, **_plain(topology)}, "\n") + "\n"


def key_of(field: str) -> str:
    """``possibleVfs`` for ``possible_vfs``."""
    first, *others = field.split("_")
    return first + "".join(map(str.capitalize, others))


class _Line(str):
    """JSON text."""

    __slots__ = ()

    def __new__(cls, value: Any) -> _Line:
        return super().__new__(cls, json.dumps(value))


def _plain(value: Any) -> Any:
    if isinstance(value, PciAddress | PciSlot):
        return str(value)
    kind: Any = type(value)
    if (keys := _keys(kind)) is not None:
        plain = {key: _plain(field) for key, field in zip(keys[0], keys[1](value), strict=True)}
        return _Line(plain) if isinstance(value, TreeFunction) else plain
    return [_plain(each) for each in value] if isinstance(value, tuple) else value


@cache
def _keys(kind: type[Any]) -> tuple[tuple[str, ...], Callable[[Any], tuple[Any, ...]]] | None:
    """The keys for a value's fields, and a getter for them; None if it has no fields."""
    names = [field.name for field in fields(kind)] if is_dataclass(kind) else getattr(kind, "_fields", None)
    return None if names is None else (tuple(map(key_of, names)), attrgetter(*names))


def _laid_out(value: Any, end: str) -> str:
    """As ``json.dumps(value, indent=2)``, whose implementation is in Python, but each `_Line` stays one line."""
    if isinstance(value, _Line):
        return value
    within = f"{end}  "
    if isinstance(value, dict):
        parts = [f"{json.dumps(key)}: {_laid_out(each, within)}" for key, each in value.items()]
        return f"{{{within}{f',{within}'.join(parts)}{end}}}"
    if isinstance(value, list) and value:
        return f"[{within}{f',{within}'.join([_laid_out(each, within) for each in value])}{end}]"
    return json.dumps(value)


def plan_document(translation: Translation, facts: HostFacts) -> dict[str, Any]:
    """The plan and the notes as JSON values; keys and lists are in a fixed order. ``facts`` are those behind it."""
    plan = translation.plan
    return {
        "format": PLAN_FORMAT,
        "devices": [_planned_device(device, facts) for device in plan.devices],
        "rootPorts": list(plan.root_ports),
        "groups": _groups(plan),
        "nodes": list(plan.nodes),
        "iommufd": plan.iommufd,
        **_window(plan),
        **({"cells": list(plan.cells)} if plan.cells else {}),
        **({"removed": [str(source) for _, source in plan.removed]} if plan.removed else {}),
        **({"cliques": {str(gpu): clique for gpu, clique in plan.cliques.items()}} if plan.cliques else {}),
        **({"smmus": list(plan.smmus)} if plan.smmus else {}),
        **({"distances": _distances(plan)} if plan.distances else {}),
        "leftAlone": [str(address) for address in plan.not_attached],
        "notes": [{"topic": note.topic, "text": note.text} for note in translation.notes],
    }


def _distances(plan: Plan) -> dict[str, dict[str, int]]:
    return {str(cell): {str(to): value for to, value in row.items()} for cell, row in plan.distances.items()}


def _window(plan: Plan) -> dict[str, Any]:
    """Present only if the default window has no room."""
    window = plan.window
    if window is None:
        return {}
    return {"window": {"need": window.need, "pcihole64": window.hole, "maxphysaddr": window.pass_bits}}


def _planned_device(device: PlannedDevice, facts: HostFacts) -> dict[str, Any]:
    migration = migration_of_all([function.source for function in device.functions], facts)
    return {
        "kind": device.kind,
        "request": _request(device.primary.attachment.match),
        "functions": [_planned_function(function) for function in device.functions],
        "stayed": [{"host": str(absent.address), "why": absent.why} for absent in device.not_attached],
        "migration": migration._asdict(),
    } | ({"kept": True} if device.kept else {})


def _request(match: Match | None) -> dict[str, Any] | None:
    if match is None:
        return None
    return {
        "origin": match.origin,
        "section": match.section,
        "name": match.name,
        "resource": match.resource,
        "variable": match.variable,
    }


def _planned_function(function: PlannedFunction) -> dict[str, Any]:
    attachment, place, shown = function.attachment, function.guest, function.shown
    document: dict[str, Any] = {
        "host": str(function.source),
        "role": attachment.role,
        "why": attachment.why,
        "alias": function.alias or None,
        "guest": None if place is None else str(place.address),
        "multifunction": bool(place and place.multifunction),
        "managed": function.managed,
        "present": attachment.hostdev is not None,
    }
    if attachment.replaces is not None:
        document["replaces"] = str(attachment.replaces)
    if attachment.role != "primary":
        document["request"] = _request(attachment.match)
    if function.iommufd is not None:
        document["iommufd"] = function.iommufd
    document |= {key: value for key, value in (("rom", function.rom), ("driver", function.driver)) if value is not None}
    if function.boot_order is not None:
        document["bootOrder"] = function.boot_order
    if function.nodeset is not None:
        document["nodeset"] = format_cpuset(function.nodeset)
    if shown is not None:
        document |= {key: value for key, value in shown._asdict().items() if value is not None}
    return document


def _groups(plan: Plan) -> list[dict[str, Any]]:
    return [
        {
            "number": group.number,
            "members": [
                {"host": str(member.address), "driver": member.driver, "attached": member.attached}
                for member in group.members
            ],
        }
        for group in plan.groups
    ]


def rehearsal_document(name: str, outcomes: Sequence[NodeOutcome]) -> dict[str, Any]:
    """The outcome on each node; docs/how-to/rehearse.md describes the keys."""
    return {
        "format": REHEARSAL_FORMAT,
        "vm": name,
        "starts": [outcome.node for outcome in outcomes if outcome.starts],
        "nodes": [_outcome(outcome) for outcome in outcomes],
    }


def _outcome(outcome: NodeOutcome) -> dict[str, Any]:
    allocation, translation = outcome.allocation, outcome.translation
    return {
        "name": outcome.node,
        "starts": outcome.starts,
        "errors": [_error(error) for error in outcome.errors],
        "allocation": None if allocation is None else [_promised_device(device) for device in allocation.devices],
        "environment": None if allocation is None else dict(allocation.env),
        "knownProblems": [
            {"id": match.problem.id, "seen": match.text, "help": match.problem.remedy} for match in outcome.problems
        ],
        "guest": list(guest_functions(outcome)),
        "bars": outcome.bars,
        "plan": None if translation is None or allocation is None else plan_document(translation, allocation.facts),
        "domain": None if translation is None else translation.domain_xml.decode("utf-8", "replace"),
    }


def _error(error: LauncherkitError) -> dict[str, Any]:
    return {"code": error.code, "message": error.message, "help": error.remedy, **error.facts}


def _promised_device(device: PromisedDevice) -> dict[str, Any]:
    return {
        "resource": device.resource,
        "device": device.id,
        "functions": list(device.functions),
        "groups": list(device.groups),
        "numaNode": device.numa_node,
        "choice": device.choice,
    }


def guest_functions(outcome: NodeOutcome) -> Iterator[dict[str, Any]]:
    """What ``lspci -nn`` in the guest shows of its devices: class and IDs, and which functions are one device."""
    if outcome.allocation is None or outcome.translation is None:
        return
    facts = outcome.allocation.facts
    for number, device in enumerate(outcome.translation.plan.devices):
        for planned in device.functions:
            function = facts.functions.get(planned.source) if isinstance(planned.source, PciAddress) else None
            yield {
                "device": number,
                "host": str(planned.source),
                "address": None if planned.guest is None else str(planned.guest.address),
                "class": None if function is None else f"{function.class_code >> 8:04x}",
                "id": None if function is None else function.ids,
                "numaNode": None if function is None else function.numa_node,
                "shown": planned.attachment.role != "reserved",
            }
