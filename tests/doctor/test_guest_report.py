"""What `launcherkit verify` found, for Prometheus and for a VMI."""

from __future__ import annotations

import json
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from launcherkit.doctor.finding import Finding
from launcherkit.doctor.guest_report import CONDITION, condition_patch, series
from launcherkit.errors import BAD_VMI
from tests.support.errors import raises_code
from tests.support.pages import ROOT, blocks

NOW = "2026-11-26T08:00:00Z"
READY = {"type": "Ready", "status": "True"}
GOOD = Finding("guest-device", "0000:65:00.0", "ok", "10de:2330 at 0000:01:00.0 in the guest")
BAD = Finding("guest-memory", "0000:65:00.0", "fail", "no place for BAR 1 (64 GiB)", "make it larger")
PAGE = ROOT / "docs/how-to/verify.md"
(PATCH,) = (json.loads(each.text) for each in blocks(PAGE) if each.reported.get("file") == "patch.json")


def vmi(*conditions: dict[str, Any]) -> dict[str, Any]:
    return {"kind": "VirtualMachineInstance", "status": {"conditions": list(conditions)}}


def patched(before: list[dict[str, Any]], patch: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The conditions after a patch, of which only the forms here are known."""
    for step in patch:
        assert step["path"] == "/status/conditions"
        if step["op"] == "test":
            assert step["value"] == before
        else:
            before = step["value"]
    return before


def test_each_check_of_each_device_is_a_series_that_prometheus_can_read() -> None:
    odd = Finding("guest-driver", 'a "hostdev"\\', "warn", "none", "load it")
    text = series("ns_vm", [GOOD, BAD, odd, Finding("guest-device", "usb", "skipped", "USB")])
    (family,) = text_string_to_metric_families(text)
    assert (family.name, family.type) == ("launcherkit_guest_check", "gauge")
    assert {(each.labels["device"], each.labels["check"]): each.value for each in family.samples} == {
        ("0000:65:00.0", "guest-device"): 0,
        ("0000:65:00.0", "guest-memory"): 2,
        ('a "hostdev"\\', "guest-driver"): 1,
    }
    assert {each.labels["domain"] for each in family.samples} == {"ns_vm"}


def test_a_failure_is_a_condition_beside_those_of_kubevirt_as_the_page_shows_it() -> None:
    assert condition_patch(vmi(READY), [GOOD, BAD], NOW) == PATCH
    assert patched([], condition_patch(vmi(), [GOOD], NOW)) == [
        {
            "type": CONDITION,
            "status": "True",
            "reason": "ChecksPassed",
            "message": "1 device: nothing that was checked has failed",
            "lastTransitionTime": NOW,
        }
    ]


@pytest.mark.parametrize(("second", "changed"), [([GOOD], NOW), ([BAD], "2026-11-26T07:00:00Z")])
def test_a_second_result_replaces_the_first_and_says_when_it_changed(second: list[Finding], changed: str) -> None:
    before = patched([READY], condition_patch(vmi(READY), [BAD], "2026-11-26T07:00:00Z"))
    ready, after = patched(before, condition_patch(vmi(*before), second, NOW))
    assert ready == READY
    assert (after["type"], after["lastTransitionTime"]) == (CONDITION, changed)
    assert after["status"] == ("False" if BAD in second else "True")


@pytest.mark.parametrize("document", [{}, [], {"status": 1}, {"status": {"conditions": {}}}])
def test_what_has_no_conditions_is_no_vmi_that_runs(document: object) -> None:
    with raises_code(BAD_VMI, r"\$.status.conditions"):
        condition_patch(document, [GOOD], NOW)
