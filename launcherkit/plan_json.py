"""The plan as JSON, for ``--plan``, ``explain --json`` and golden cases."""

from __future__ import annotations

from typing import Any

from launcherkit.model.cpuset import format_cpuset
from launcherkit.model.plan import Claim, Plan, PlannedDevice, PlannedFunction
from launcherkit.pipeline import Translation

FORMAT = "launcherkit.io/plan/v1"


def plan_document(translation: Translation) -> dict[str, Any]:
    """The plan and the notes as JSON values; keys and lists are in a fixed order."""
    plan = translation.plan
    return {
        "format": FORMAT,
        "devices": [_device(device) for device in plan.devices],
        "rootPorts": list(plan.root_ports),
        "groups": _groups(plan),
        "nodes": list(plan.nodes),
        "iommufd": plan.iommufd,
        **_window(plan),
        **({"cells": list(plan.cells)} if plan.cells else {}),
        **({"removed": [str(source) for _, source in plan.removed]} if plan.removed else {}),
        "leftAlone": [str(address) for address in plan.left_alone],
        "notes": [{"topic": note.topic, "text": note.text} for note in translation.notes],
    }


def _window(plan: Plan) -> dict[str, Any]:
    """Present only if the default window has no room."""
    window = plan.window
    if window is None:
        return {}
    return {"window": {"need": window.need, "pcihole64": window.hole, "maxphysaddr": window.pass_bits}}


def _device(device: PlannedDevice) -> dict[str, Any]:
    return {
        "kind": device.kind,
        "request": _claim(device.primary.attachment.claim),
        "functions": [_function(function) for function in device.functions],
        "stayed": [{"host": str(stayed.address), "why": stayed.why} for stayed in device.stayed],
    } | ({"kept": True} if device.kept else {})


def _claim(claim: Claim | None) -> dict[str, Any] | None:
    if claim is None:
        return None
    return {
        "origin": claim.origin,
        "section": claim.section,
        "name": claim.name,
        "resource": claim.resource,
        "variable": claim.variable,
    }


def _function(function: PlannedFunction) -> dict[str, Any]:
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
        document["request"] = _claim(attachment.claim)
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
