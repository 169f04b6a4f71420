"""A rehearsal as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from launcherkit.errors import LauncherkitError
from launcherkit.model.address import PciAddress
from launcherkit.model.candidate import PromisedDevice
from launcherkit.plan_json import plan_document
from launcherkit.rehearse.rehearsal import NodeOutcome

FORMAT = "launcherkit.io/rehearsal/v1"


def rehearsal_document(name: str, outcomes: Sequence[NodeOutcome]) -> dict[str, Any]:
    """The outcome on each node; docs/how-to/rehearse.md describes the keys."""
    return {
        "format": FORMAT,
        "vm": name,
        "starts": [outcome.node for outcome in outcomes if outcome.starts],
        "nodes": [_outcome(outcome) for outcome in outcomes],
    }


def _outcome(outcome: NodeOutcome) -> dict[str, Any]:
    given, translation = outcome.given, outcome.translation
    return {
        "name": outcome.node,
        "starts": outcome.starts,
        "errors": [_error(error) for error in outcome.errors],
        "allocation": None if given is None else [_device(device) for device in given.devices],
        "environment": None if given is None else dict(given.env),
        "guest": list(guest_functions(outcome)),
        "bars": outcome.bars,
        "plan": None if translation is None else plan_document(translation),
        "domain": None if translation is None else translation.domain_xml.decode("utf-8", "replace"),
    }


def _error(error: LauncherkitError) -> dict[str, Any]:
    return {"code": error.code, "message": error.message, "help": error.remedy, **error.facts}


def _device(device: PromisedDevice) -> dict[str, Any]:
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
    if outcome.given is None or outcome.translation is None:
        return
    facts = outcome.given.facts
    for number, device in enumerate(outcome.translation.plan.devices):
        for each in device.functions:
            function = facts.functions.get(each.source) if isinstance(each.source, PciAddress) else None
            yield {
                "device": number,
                "host": str(each.source),
                "address": None if each.guest is None else str(each.guest.address),
                "class": None if function is None else f"{function.class_code >> 8:04x}",
                "id": None if function is None else function.ids,
                "numaNode": None if function is None else function.numa_node,
                "shown": each.attachment.role != "reserved",
            }
