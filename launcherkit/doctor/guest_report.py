"""What `launcherkit verify` found, for others: series for Prometheus, and a condition for KubeVirt's VMI."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from launcherkit.doctor.finding import Finding, Status
from launcherkit.errors import BAD_VMI, counted

CONDITION = "launcherkit.io/GuestDevices"
"""The type of the condition. KubeVirt's controllers add and remove only their own types."""

_SERIES = "launcherkit_guest_check"
_HELP = "What launcherkit verify found of a device in its guest: 0 as it should be, 1 a warning, 2 a failure."
_VALUES: Mapping[Status, int] = {"ok": 0, "warn": 1, "fail": 2}
_PATH = "/status/conditions"
_LONGEST = 1024
"""Of a message, in characters."""


def series(domain: str, findings: Sequence[Finding]) -> str:
    """A gauge for each check of each device, in Prometheus's text format; what was skipped has none."""
    lines = [f"# HELP {_SERIES} {_HELP}", f"# TYPE {_SERIES} gauge"]
    for finding in findings:
        if finding.status in _VALUES:
            labels = {"domain": domain, "device": finding.subject, "check": finding.check}
            shown = ",".join(f'{name}="{_escaped(text)}"' for name, text in labels.items())
            lines.append(f"{_SERIES}{{{shown}}} {_VALUES[finding.status]}")
    return "\n".join(lines) + "\n"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def condition_patch(vmi: object, findings: Sequence[Finding], now: str) -> list[dict[str, Any]]:
    """The JSON patch that gives a VMI the condition `CONDITION`, which is False if something failed.

    It changes nothing if the conditions are others by then, as with the patches of KubeVirt's own controllers.

    Args:
        vmi: as the API has it.
        now: the time in the API's format; the condition keeps an older one while its status is the same.

    Raises:
        BAD_VMI: the VMI has no status, or no list of conditions in it.
    """
    status = vmi.get("status") if isinstance(vmi, Mapping) else None
    before = status.get("conditions", []) if isinstance(status, Mapping) else None
    if not isinstance(before, list) or not all(isinstance(each, Mapping) for each in before):
        remedy = "Give what `kubectl get vmi NAME -o json` prints of a VMI that runs."
        raise BAD_VMI("$.status.conditions: there is no list of conditions of a VMI", remedy, key="$.status.conditions")
    condition = _condition(findings, now)
    kept = [each for each in before if each.get("type") != CONDITION]
    for own in before:
        if (own.get("type"), own.get("status")) == (CONDITION, condition["status"]) and "lastTransitionTime" in own:
            condition["lastTransitionTime"] = own["lastTransitionTime"]
    if not before:
        return [{"op": "add", "path": _PATH, "value": [condition]}]
    return [
        {"op": "test", "path": _PATH, "value": before},
        {"op": "replace", "path": _PATH, "value": [*kept, condition]},
    ]


def _condition(findings: Sequence[Finding], now: str) -> dict[str, Any]:
    failed = [each for each in findings if each.status == "fail"]
    message = "; ".join(f"{each.subject}: {each.check}: {each.seen}" for each in failed)
    if not failed:
        devices = {each.subject for each in findings if each.status in _VALUES}
        message = f"{counted(len(devices), 'device')}: nothing that was checked has failed"
    return {
        "type": CONDITION,
        "status": "False" if failed else "True",
        "reason": "ChecksFailed" if failed else "ChecksPassed",
        "message": message[:_LONGEST],
        "lastTransitionTime": now,
    }
