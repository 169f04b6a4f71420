"""The series of each device: who has it, and since when it is in which state.

docs/reference/plugin-metrics.md lists their labels, and says how they are joined with those of KubeVirt and of NVIDIA's
exporter.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Literal, NamedTuple, TypeAlias, get_args

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from launcherkit.model.address import PciAddress
from launcherkit.model.host import NO_FACTS, HostFacts
from launcherkit_plugin.model.device import NO_USAGE, Device, Holder, Resource, Usage, holders_by_device
from launcherkit_plugin.telemetry.reporter import USUAL

MOST = 512
"""The most devices of a node that have series; of more, those that are free are left out first."""

SeriesState: TypeAlias = Literal["free", "held", "kept", "cleaning", "quarantined", "blocked", "unhealthy"]
"""``blocked``: because another device is in use, which is no fault. Whatever else a device is, it may be ``held``."""
STATES: tuple[SeriesState, ...] = get_args(SeriesState)

_LABELS = ("node", "device", "resource", "vendor", "model", "uuid", "namespace", "pod", "vm", "claim")
_LAUNCHER = re.compile(r"virt-launcher-(?P<vm>[a-z0-9.-]+)-[a-z0-9]{5}")
_LONGEST_POD = 63
"""The most characters of a generated name: KubeVirt's names of pods are cut to it, and then the VM's is unknown."""


class HeldBy(NamedTuple):
    """Who has a device; what isn't known is empty."""

    namespace: str = ""
    pod: str = ""
    vm: str = ""
    claim: str = ""
    """The ResourceClaim; then there is no pod, for several may share it."""


def held_by(holder: Holder) -> HeldBy:
    """Who a holder is. The VM is taken from the name that KubeVirt gives to its pod; nothing else tells it here."""
    if holder.claim is not None:
        return HeldBy(namespace=holder.claim.namespace, claim=holder.claim.name)
    namespace, _, pod = holder.pod.partition("/")
    if not pod:  # the kubelet's checkpoint has only a UID
        return HeldBy()
    launcher = _LAUNCHER.fullmatch(pod) if len(pod) < _LONGEST_POD else None
    return HeldBy(namespace, pod, launcher["vm"] if launcher else "")


class DeviceSeries(Collector):
    """Series for each device, made at each scrape from what was observed last.

    Args:
        node: its name.
        names: whether they say who has a device.
        clock: seconds since the epoch.
    """

    def __init__(self, node: str, clock: Callable[[], float], *, names: bool) -> None:
        self._node = node
        self._names = names
        self._clock = clock
        self._facts = NO_FACTS
        self._resources: Sequence[Resource] = ()
        self._usage = NO_USAGE
        self._since: Mapping[tuple[str, str], tuple[SeriesState, float]] = {}

    def observe(self, facts: HostFacts, resources: Sequence[Resource], usage: Usage) -> None:
        """Set the facts, resources and usage of the loop's last turn."""
        if resources != self._resources or usage != self._usage:
            now, before = self._clock(), self._since
            held = usage.kept
            holders = {resource.name: holders_by_device(held.get(resource.name, {})) for resource in resources}
            self._since = {}
            for resource, device in _devices_of(resources, held):
                state = _state_of(device, device.id in holders[resource.name])
                last = before.get((resource.name, device.id))
                since = last[1] if last is not None and last[0] == state else now
                self._since[resource.name, device.id] = state, since
        self._facts, self._resources, self._usage = facts, resources, usage

    def collect(self) -> Iterable[GaugeMetricFamily]:
        """See prometheus_client."""
        info = GaugeMetricFamily("launcherkit_device_info", "A device, and who has it.", labels=_LABELS)
        since = GaugeMetricFamily(
            "launcherkit_device_state_timestamp_seconds",
            "When a device was found to be in its state.",
            labels=("node", "device", "resource", "state"),
        )
        held = self._usage.kept
        holders = {resource.name: holders_by_device(held.get(resource.name, {})) for resource in self._resources}
        for resource, device in self._chosen(held):
            of = (self._node, device.id, resource.name)
            those = holders[resource.name].get(device.id, ()) if self._names else ()
            for by in dict.fromkeys(map(held_by, those)) or (HeldBy(),):  # of a shared card, several
                info.add_metric((*of, *self._model_of(device), device.uuid, *by), 1)
            state, moment = self._since[resource.name, device.id]
            since.add_metric((*of, state), moment)
        return info, since

    def _chosen(self, held: Mapping[str, Mapping[str, Holder]]) -> list[tuple[Resource, Device]]:
        devices = list(_devices_of(self._resources, held))
        if len(devices) > MOST:
            devices.sort(key=lambda pair: self._since[pair[0].name, pair[1].id][0] == "free")
        return devices[:MOST]

    def _model_of(self, device: Device) -> tuple[str, str]:
        """Vendor and model: IDs, or the type of a vGPU."""
        address = device.functions[0] if device.functions else None
        if address is None and ":" in device.card:
            address = PciAddress.parse(device.card)
        function = None if address is None else self._facts.functions.get(address)
        traits = dict(device.traits)
        vendor, model = str(traits.get("vendorID", "")), str(traits.get("productID", ""))
        if function is not None:
            vendor, model = f"{function.vendor:04x}", f"{function.device:04x}"
        return vendor, device.vgpu_types[0] if len(device.vgpu_types) == 1 else model


def _devices_of(
    resources: Iterable[Resource], held: Mapping[str, Mapping[str, Holder]]
) -> Iterator[tuple[Resource, Device]]:
    """The devices that exist, with a vGPU that doesn't if a pod has it."""
    for resource in resources:
        of_resource = held.get(resource.name, {})
        for device in resource.devices.values():
            if device.made or device.id in of_resource:
                yield resource, device


def _state_of(device: Device, is_held: bool) -> SeriesState:
    if is_held:
        return "held"
    if device.problem is None:
        return "free"
    reason = device.problem.reason
    own = next((each for each in STATES if each == reason), None)
    return own or ("blocked" if reason in USUAL else "unhealthy")
