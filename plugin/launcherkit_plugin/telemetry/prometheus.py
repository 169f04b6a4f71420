"""The metrics for Prometheus. They have base units, and labels with few values.

docs/reference/plugin-metrics.md lists them.
"""

from __future__ import annotations

from collections import Counter as Count
from collections.abc import Iterable, Sequence
from functools import partial

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info, ProcessCollector
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from launcherkit_plugin import __version__
from launcherkit_plugin.model.device import Resource
from launcherkit_plugin.telemetry.metrics import ActionOutcome, Binding, ClaimAction, FabricChange, Metrics, VgpuChange

PREFIX = "launcherkit_plugin"

_ALLOCATE_SECONDS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.01, 0.05, 0.25, 1, 5)
"""For PCI devices an Allocate takes less than a millisecond; creating a vGPU may take seconds."""
_CLAIM_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.1, 0.5, 2.5, 10, 35)
"""Preparing a claim asks the API server and writes files; it may create a vGPU or bind a card."""
_SCAN_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1, 5)


class PrometheusMetrics(Metrics):
    """`Metrics` in a registry of its own, with those of the process: memory, CPU time and open files."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        counter = partial(Counter, namespace=PREFIX, registry=registry)
        gauge = partial(Gauge, namespace=PREFIX, registry=registry)
        histogram = partial(Histogram, namespace=PREFIX, registry=registry)
        ProcessCollector(registry=registry)
        Info("build", "What runs.", namespace=PREFIX, registry=registry).info({"version": __version__})
        self._advertised = _Advertised()
        registry.register(self._advertised)
        by_resource = ["resource", "outcome"]
        self._allocations = counter("allocations", "Calls of Allocate by outcome.", by_resource)
        self._allocate_seconds = histogram(
            "allocate_duration_seconds", "How long an Allocate took.", ["resource"], buckets=_ALLOCATE_SECONDS
        )
        self._registrations = counter("registrations", "Registrations with the kubelet by outcome.", by_resource)
        self._scan_seconds = histogram(
            "scan_duration_seconds", "How long a scan of the host took.", buckets=_SCAN_SECONDS
        )
        by_action = ["action", "outcome"]
        self._claims = counter("claims", "ResourceClaims prepared or unprepared, by outcome.", by_action)
        self._claim_seconds = histogram(
            "claim_duration_seconds",
            "How long it took to prepare or unprepare a ResourceClaim.",
            ["action"],
            buckets=_CLAIM_SECONDS,
        )
        self._bindings = counter("bindings", "Groups bound to VFIO or given back, by outcome.", by_action)
        self._cleanings = counter("cleanings", "Devices cleaned after a pod had them, by outcome.", ["outcome"])
        self._fabric_changes = counter(
            "fabric_changes", "Fabric partitions activated or deactivated, by outcome.", by_action
        )
        self._fabric_active = gauge("fabric_active_partitions", "Fabric partitions that are active.")
        self._fabric_up = gauge("fabric_manager_up", "Whether Fabric Manager can be asked; 1 also where none is used.")
        self._fabric_up.set(1)
        self._xids_up = gauge("xids_up", "Whether Xids of cards are seen; 1 also where no rule asks for it.")
        self._xids_up.set(1)
        self._vgpu_changes = counter("vgpu_changes", "vGPUs created or removed, by outcome.", by_action)
        self._held_groups = gauge("held_iommu_groups", "IOMMU groups with a device that a pod holds.")
        self._reloads = counter("config_reloads", "Readings of a changed configuration.", ["outcome"])
        self._hanging = gauge(
            "hanging_operations", "Work on a card, group or file of the host that has not returned in time."
        )
        self._late = counter("late_operations", "Work on the host that did not return in time.")

    def allocated(self, resource: str, seconds: float, outcome: ActionOutcome) -> None:
        self._allocations.labels(resource, outcome).inc()
        self._allocate_seconds.labels(resource).observe(seconds)

    def claim(self, action: ClaimAction, seconds: float, outcome: ActionOutcome) -> None:
        self._claims.labels(action, outcome).inc()
        self._claim_seconds.labels(action).observe(seconds)

    def registered(self, resource: str, outcome: ActionOutcome) -> None:
        self._registrations.labels(resource, outcome).inc()

    def scanned(self, seconds: float) -> None:
        self._scan_seconds.observe(seconds)

    def devices(self, resources: Sequence[Resource]) -> None:
        self._advertised.resources = tuple(resources)

    def bound(self, action: Binding, outcome: ActionOutcome) -> None:
        self._bindings.labels(action, outcome).inc()

    def cleaned(self, outcome: ActionOutcome) -> None:
        self._cleanings.labels(outcome).inc()

    def fabric_changed(self, action: FabricChange, outcome: ActionOutcome) -> None:
        self._fabric_changes.labels(action, outcome).inc()

    def fabric_state(self, active: int | None) -> None:
        self._fabric_up.set(active is not None)
        if active is not None:
            self._fabric_active.set(active)

    def xids_seen(self, *, seen: bool) -> None:
        self._xids_up.set(seen)

    def vgpu(self, action: VgpuChange, outcome: ActionOutcome) -> None:
        self._vgpu_changes.labels(action, outcome).inc()

    def held_groups(self, number: int) -> None:
        self._held_groups.set(number)

    def reloaded(self, outcome: ActionOutcome) -> None:
        self._reloads.labels(outcome).inc()

    def hangs(self, number: int) -> None:
        self._late.inc()
        self._hanging.set(number)

    def came_back(self, number: int) -> None:
        self._hanging.set(number)


class _Advertised(Collector):
    """Counts devices at each scrape, from one value: no series is left for removed resources, or half updated."""

    def __init__(self) -> None:
        self.resources: tuple[Resource, ...] = ()

    def collect(self) -> Iterable[GaugeMetricFamily]:
        devices = GaugeMetricFamily(f"{PREFIX}_devices", "Devices advertised.", labels=["resource", "health"])
        unhealthy = GaugeMetricFamily(
            f"{PREFIX}_unhealthy_devices", "Unhealthy devices by reason.", labels=["resource", "reason"]
        )
        for resource in self.resources:
            reasons = Count(device.problem.reason for device in resource.devices.values() if device.problem)
            bad = reasons.total()
            devices.add_metric([resource.name, "healthy"], len(resource.devices) - bad)
            devices.add_metric([resource.name, "unhealthy"], bad)
            for reason, number in sorted(reasons.items()):
                unhealthy.add_metric([resource.name, reason], number)
        return devices, unhealthy


def exposition(registry: CollectorRegistry, accept: str) -> tuple[str, bytes]:
    """The content type and the text of all metrics, in the format that is asked for.

    Args:
        registry: of the metrics.
        accept: ``application/openmetrics-text; version=1.0.0``; all else is the text format.
    """
    encode, content_type = choose_encoder(accept)
    return content_type, encode(registry)
