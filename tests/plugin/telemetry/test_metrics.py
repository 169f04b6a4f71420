"""What is measured, and in which formats it is handed out."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import pytest
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from launcherkit_plugin.model.device import Device, Problem, Reason, Resource
from launcherkit_plugin.telemetry.metrics import Metrics
from launcherkit_plugin.telemetry.probe_state import ProbeState
from launcherkit_plugin.telemetry.prometheus import PREFIX, PrometheusMetrics, exposition
from tests.plugin.telemetry.test_device_series import observed

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "plugin-metrics.md"


def resource(name: str, *reasons: Reason | None) -> Resource:
    """A resource with a device for each reason, None for a healthy one."""
    devices = {
        str(number): Device(str(number), problem=Problem(reason, "as said") if reason else None)
        for number, reason in enumerate(reasons)
    }
    return Resource(name, "PCI_RESOURCE_X", devices)


def page_of(metrics: PrometheusMetrics) -> str:
    return exposition(metrics.registry, "text/plain")[1].decode()


def families(metrics: PrometheusMetrics) -> dict[str, Metric]:
    return {family.name: family for family in text_string_to_metric_families(page_of(metrics))}


def value(metrics: PrometheusMetrics, name: str, **labels: str) -> float | None:
    return metrics.registry.get_sample_value(f"{PREFIX}_{name}", labels)


# The metrics


def tell_all(metrics: Metrics) -> None:
    metrics.allocated("nvidia.com/A", 0.002, "done")
    metrics.claim("prepare", 0.01, "done")
    metrics.registered("nvidia.com/A", "done")
    metrics.scanned(0.03)
    metrics.devices([resource("nvidia.com/A", None, None, "driver")])
    metrics.bound("bind", "refused")
    metrics.cleaned("failed")
    metrics.vgpu("create", "failed")
    metrics.fabric_changed("activate", "failed")
    metrics.fabric_state(2)
    metrics.xids_seen(seen=False)
    metrics.held_groups(3)
    metrics.reloaded("done")


def test_what_was_told_can_be_read() -> None:
    metrics = PrometheusMetrics()
    tell_all(metrics)
    assert value(metrics, "allocations_total", resource="nvidia.com/A", outcome="done") == 1
    assert value(metrics, "allocate_duration_seconds_sum", resource="nvidia.com/A") == pytest.approx(0.002)
    assert value(metrics, "registrations_total", resource="nvidia.com/A", outcome="done") == 1
    assert value(metrics, "scan_duration_seconds_count") == 1
    assert value(metrics, "bindings_total", action="bind", outcome="refused") == 1
    assert value(metrics, "vgpu_changes_total", action="create", outcome="failed") == 1
    assert value(metrics, "cleanings_total", outcome="failed") == 1
    assert value(metrics, "fabric_changes_total", action="activate", outcome="failed") == 1
    assert (value(metrics, "fabric_active_partitions"), value(metrics, "fabric_manager_up")) == (2, 1)
    assert value(metrics, "xids_up") == 0
    assert value(metrics, "held_iommu_groups") == 3
    assert value(metrics, "config_reloads_total", outcome="done") == 1


def test_devices_are_counted_by_health_and_the_unhealthy_by_reason() -> None:
    metrics = PrometheusMetrics()
    metrics.devices([resource("nvidia.com/A", None, "driver", "driver", "gone"), resource("amd.com/B", None)])
    assert value(metrics, "devices", resource="nvidia.com/A", health="healthy") == 1
    assert value(metrics, "devices", resource="nvidia.com/A", health="unhealthy") == 3
    assert value(metrics, "unhealthy_devices", resource="nvidia.com/A", reason="driver") == 2
    assert value(metrics, "unhealthy_devices", resource="nvidia.com/A", reason="gone") == 1
    assert value(metrics, "devices", resource="amd.com/B", health="unhealthy") == 0


def test_a_resource_that_is_gone_leaves_no_series() -> None:
    metrics = PrometheusMetrics()
    metrics.devices([resource("nvidia.com/A", "gone")])
    metrics.devices([])
    assert value(metrics, "devices", resource="nvidia.com/A", health="healthy") is None
    assert value(metrics, "unhealthy_devices", resource="nvidia.com/A", reason="gone") is None


def test_two_daemons_in_one_process_share_nothing() -> None:
    one, other = PrometheusMetrics(), PrometheusMetrics()
    one.scanned(1.0)
    assert value(other, "scan_duration_seconds_count") == 0


def test_a_command_counts_nothing_and_needs_no_more_code_for_it() -> None:
    tell_all(Metrics())


def test_every_metric_is_on_its_page_with_its_labels_and_no_other_is() -> None:
    metrics = PrometheusMetrics()
    tell_all(metrics)
    metrics.registry.register(observed())
    own = {name: family for name, family in families(metrics).items() if name.startswith("launcherkit_")}
    labels = {
        f"{name}_total" if family.type == "counter" else name: {
            label for sample in family.samples for label in sample.labels if label != "le"
        }
        for name, family in own.items()
        if not name.endswith("_created")
    }
    rows = re.findall(r"^\| `(launcherkit_\w+)` \| \w+ \| (.*?) \|", PAGE.read_text(), re.M)
    assert {name: set(re.findall(r"`(\w+)`", cell)) for name, cell in rows} == labels


def test_every_reason_of_a_device_is_on_the_page_and_no_other_is() -> None:
    part = PAGE.read_text().partition("## Reasons")[2].partition("## Alerts")[0]
    assert re.findall(r"^\| `([a-z-]+)` \|", part, re.M)[1:] == list(get_args(Reason))


def test_names_have_base_units_and_label_values_are_few() -> None:
    metrics = PrometheusMetrics()
    tell_all(metrics)
    for name, family in families(metrics).items():
        assert not re.search(r"_(ms|milliseconds|us|kb|mb|percent)(_|$)", name)
        assert len(family.samples) < 50, f"{name} has many series for one resource"


def test_a_scraper_gets_the_format_that_it_reads() -> None:
    kind, text = exposition(PrometheusMetrics().registry, "application/openmetrics-text; version=1.0.0")
    assert kind.startswith("application/openmetrics-text")
    assert text.endswith(b"# EOF\n")


# Health


def test_a_daemon_that_comes_round_is_well_and_one_that_does_not_is_ill() -> None:
    now = iter([0.0, 5.0, 20.0, 21.0])
    health = ProbeState(lambda: next(now), patience=10)
    assert health.why_restart() == ""
    assert health.why_restart() == "the daemon's loop has not turned for 20 s"
    health.turned()


def test_it_is_not_ready_before_it_says_so_and_then_until_it_waits_again() -> None:
    health = ProbeState(lambda: 0.0, 10)
    assert health.why_not_ready()
    health.waiting("")
    assert not health.why_not_ready()
    health.waiting("the kubelet's socket is not there")
    assert health.why_not_ready() == "the kubelet's socket is not there"
