"""Dashboard and alerts ask for metrics and labels that the daemon has."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml

from launcherkit_plugin.model.device import Reason
from launcherkit_plugin.telemetry.device_series import STATES
from launcherkit_plugin.telemetry.metrics import ActionOutcome, Binding, ClaimAction, VgpuChange
from launcherkit_plugin.telemetry.prometheus import PREFIX, PrometheusMetrics
from launcherkit_plugin.telemetry.reporter import USUAL
from tests.plugin.telemetry.test_device_series import observed
from tests.plugin.telemetry.test_metrics import families, tell_all
from tests.support.imports import ROOT

DASHBOARD = ROOT / "deploy" / "grafana" / "launcherkit-plugin.json"
RULES = ROOT / "deploy" / "plugin" / "components" / "prometheus" / "prometheusrule.yaml"
OF_THE_TARGET = {"instance", "le"}
"""Labels that Prometheus adds, and that of a histogram's buckets."""
VALUES = {
    "outcome": {*get_args(ActionOutcome)},
    "action": {*get_args(Binding), *get_args(ClaimAction), *get_args(VgpuChange)},
    "health": {"healthy", "unhealthy"},
    "reason": {*get_args(Reason)},
    "state": {*STATES},
}


def board() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(DASHBOARD.read_text())
    return found


def alerts() -> list[dict[str, Any]]:
    (group,) = yaml.safe_load(RULES.read_text())["spec"]["groups"]
    return list(group["rules"])


def of_dashboard() -> Iterator[Any]:
    for panel in board()["panels"]:
        for target in panel["targets"]:
            yield pytest.param(target["expr"], target["legendFormat"], id=f"{panel['title']} {target['refId']}")
    for variable in board()["templating"]["list"]:
        if variable["type"] == "query":
            yield pytest.param(variable["query"]["query"], "", id=variable["name"])


def of_alerts() -> Iterator[Any]:
    for rule in alerts():
        texts = " ".join(rule["annotations"].values())
        yield pytest.param(rule["expr"], texts.replace("$labels.", ""), id=rule["alert"])


def known() -> dict[str, set[str]]:
    """Series by name, with their labels."""
    metrics = PrometheusMetrics()
    tell_all(metrics)
    metrics.registry.register(observed())
    return {
        name: {label for sample in family.samples if sample.name == name for label in sample.labels} | {"instance"}
        for family in families(metrics).values()
        for name in {sample.name for sample in family.samples}
    }


SERIES = known()


@pytest.mark.parametrize(("expression", "shown"), [*of_dashboard(), *of_alerts()])
def test_every_metric_label_and_value_that_is_asked_for_is_there(expression: str, shown: str) -> None:
    names = set(re.findall(rf"\b(?:{PREFIX}|launcherkit_device|process)_\w+", expression))
    assert names
    assert names <= SERIES.keys()
    has = set.union(*(SERIES[name] for name in names)) | OF_THE_TARGET
    groups = ",".join(re.findall(r"\b(?:by|on) \(([^)]*)\)", expression))
    grouped = set(re.findall(r"\w+", groups))
    matched = re.findall(r'(\w+)\s*(?:=~|!~|!=|=)\s*"([^"]*)"', expression)
    written = set(re.findall(r"\{\{\s*(\w+)\s*\}\}", shown))
    assert grouped | written | {label for label, _ in matched} <= has
    if grouped:
        assert written <= grouped, "what is summed away can't be shown"
    for label, values in matched:
        assert values.startswith("$") or set(values.split("|")) <= VALUES[label]


def test_what_is_usual_where_devices_are_shared_is_no_alert() -> None:
    (rule,) = (rule for rule in alerts() if rule["alert"] == "LauncherkitDeviceUnhealthy")
    (left_out,) = re.findall('reason!~"([^"]*)"', rule["expr"])
    assert set(left_out.split("|")) == USUAL | {"usage"}


def test_every_metric_of_the_daemon_is_on_the_dashboard() -> None:
    text = DASHBOARD.read_text()
    metrics = PrometheusMetrics()
    tell_all(metrics)
    metrics.registry.register(observed())
    own = [name for name in families(metrics) if name.startswith("launcherkit_") and not name.endswith("_created")]
    assert [name for name in own if name not in text] == []


def test_every_alert_says_what_is_wrong_and_where_to_look() -> None:
    assert [rule["alert"] for rule in alerts() if set(rule["annotations"]) != {"summary", "description"}] == []
    assert {rule["labels"]["severity"] for rule in alerts()} == {"warning", "critical"}


def test_panels_have_numbers_of_their_own_and_do_not_lie_on_each_other() -> None:
    places: set[tuple[int, int]] = set()
    for panel in board()["panels"]:
        place = panel["gridPos"]
        across, down = (range(place[at], place[at] + place[length]) for at, length in ("xw", "yh"))
        cells = set(product(across, down))
        assert not cells & places, panel["title"]
        places |= cells
    numbers = [panel["id"] for panel in board()["panels"]]
    assert len(set(numbers)) == len(numbers)


def test_the_page_of_the_metrics_leads_to_both() -> None:
    page = Path(ROOT / "docs" / "reference" / "plugin-metrics.md").read_text()
    assert "deploy/grafana/launcherkit-plugin.json" in page
    assert "deploy/plugin/components/prometheus/prometheusrule.yaml" in page
