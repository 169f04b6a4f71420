"""What a DRA driver publishes of the devices that there are (D2, D4)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import NamedTuple, TypeAlias

from launcherkit.model.address import PciAddress
from launcherkit.model.function import PciDetail, PciFunction
from launcherkit.model.host import HostFacts
from launcherkit.model.window import card_bars, window_need
from launcherkit.resolve.vfio import IOMMUFD_NODE, bound_to_vfio
from launcherkit_plugin.dra.counters import CounterUse, Sharer, counter_uses
from launcherkit_plugin.dra.labels import LONGEST_TEXT, Attributes, attribute, device_name, is_bdf
from launcherkit_plugin.model.device import Device, Problem, Resource

STANDARD = "resource.kubernetes.io/"
"""Before the names of attributes that mean the same for every driver."""
TAINTS = "launcherkit.io/"
CONTAINER = "container"
"""The attribute ``type`` of what containers use by the driver of the host (K10)."""

_Values: TypeAlias = dict[str, int | bool | str]
"""Of attributes; an empty text is none."""


class Taint(NamedTuple):
    """Why the scheduler is to leave a device alone."""

    key: str
    """``launcherkit.io/not-viable``."""
    value: str
    effect: str
    """``NoSchedule`` or ``NoExecute``."""


class DraDevice(NamedTuple):
    """A device of the pool: one physical card with all that goes along, or for containers alone, or one vGPU."""

    name: str
    """A DNS label, the same for as long as the device is there: ``pci-0000-e1-00-0``, ``mdev-<uuid>``."""
    resource: str
    """The name of its `launcherkit_plugin.model.device.Resource`."""
    id: str
    """Of its `launcherkit_plugin.model.device.Device` there."""
    attributes: Attributes
    """Names without a domain are the driver's."""
    capacity: Mapping[str, str]
    """Quantities as Kubernetes writes them: ``32Gi``."""
    counters: tuple[CounterUse, ...] = ()
    taints: tuple[Taint, ...] = ()
    problem: Problem | None = None
    """What the taint is for."""

    @property
    def in_container(self) -> bool:
        """Whether containers use it by the driver of the host."""
        return self.attributes.get("type") == attribute(CONTAINER)


def inventory(resources: Iterable[Resource], host: HostFacts, *, evict: bool = False) -> tuple[DraDevice, ...]:
    """The devices of resources for DRA, by name; companions go along with their cards, and are no devices.

    Args:
        resources: as they are listed, those of the device plugin too.
        host: by which they were found.
        evict: whether a device in trouble is taken from its pod.
    """
    listed = [
        (resource, device)
        for resource in resources
        if resource.dra and not resource.companion
        for device in resource.devices.values()
    ]
    sharers = [
        Sharer(
            device.id,
            device.groups,
            device.card or _physical_function(device, host),
            device.most,
            device.place or str(_primary(device) or device.id),
            device.functions,
            resource.use == "container",
        )
        for resource, device in listed
    ]
    effect = "NoExecute" if evict else "NoSchedule"
    found = [
        DraDevice(
            device_name(resource, device.id),
            resource.name,
            device.id,
            _attributes(resource, device, host),
            _capacity(resource, device, host),
            uses,
            () if device.problem is None else (Taint(TAINTS + device.problem.reason, "", effect),),
            device.problem,
        )
        for (resource, device), uses in zip(listed, counter_uses(sharers), strict=True)
    ]
    return tuple(sorted(found, key=lambda device: device.name))


def _attributes(resource: Resource, device: Device, host: HostFacts) -> Attributes:
    """What CEL can ask for. IOMMU groups are not among it: their numbers change with a boot."""
    address = _primary(device)
    function = _function(address, device, host)
    values: _Values = {
        # A part of a long name would be another resource's.
        "resource": resource.name if len(resource.name) <= LONGEST_TEXT else "",
        f"{STANDARD}pcieRoot": device.path[0] if device.path and device.path[0].startswith("pci") else "",
    }
    if device.numa_node is not None:
        values[f"{STANDARD}numaNode"] = device.numa_node
    if function is not None:
        values["class"] = f"{function.class_code:06x}"
        values["vendorID"] = f"{function.vendor:04x}"
        values["deviceID"] = f"{function.device:04x}"
    if address is not None:
        values[f"{STANDARD}pciBusID"] = str(address)
    if resource.use == "container":
        values |= {"type": CONTAINER, "uuid": "" if is_bdf(device.id) else device.id}
    else:
        values |= _of_vgpu(device) if address is None or resource.made_at_start else _of_card(device, function)
        values |= _of_binding(function, None if address is None else host.details.get(address), host)
    return {name: attribute(value) for name, value in sorted(values.items()) if value != ""}


def _physical_function(device: Device, host: HostFacts) -> str:
    """That of a VF; else empty."""
    function = host.functions.get(device.functions[0]) if device.functions else None
    return "" if function is None or function.physfn is None else str(function.physfn)


def _primary(device: Device) -> PciAddress | None:
    """None for an mdev."""
    if device.functions:
        return device.functions[0]
    return PciAddress.parse(device.id) if is_bdf(device.id) else None


def _function(address: PciAddress | None, device: Device, host: HostFacts) -> PciFunction | None:
    """The primary; of an mdev the card that it is on, where that is a PCI device."""
    if address is None and is_bdf(device.card):
        address = PciAddress.parse(device.card)
    return None if address is None else host.functions.get(address)


def _of_card(device: Device, function: PciFunction | None) -> _Values:
    found: _Values = {"type": "card", "functions": len(device.functions), "model": device.model}
    if function is not None and function.physfn is not None:
        found |= {"type": "vf", "card": str(function.physfn)}
    return found


def _of_vgpu(device: Device) -> _Values:
    found: _Values = {"type": "vgpu", "card": device.card}
    if len(device.vgpu_types) == 1:
        found["vgpuType"] = device.vgpu_types[0]
    if not is_bdf(device.id):
        found["mdevUUID"] = device.id
    return found


def _of_binding(function: PciFunction | None, detail: PciDetail | None, host: HostFacts) -> _Values:
    if function is None or detail is None:
        return {}
    cdev = detail.vfio_dev is not None and (host.nodes is None or IOMMUFD_NODE in host.nodes)
    found: _Values = {"iommufd": cdev}
    if function.driver is not None and bound_to_vfio(function, detail):
        found["vfioDriver"] = function.driver
    return found


def _capacity(resource: Resource, device: Device, host: HostFacts) -> dict[str, str]:
    """The room that the BARs take of a guest's 64-bit window (P5)."""
    if not device.functions or resource.made_at_start or resource.use == "container":
        return {}
    return {"window64": quantity(window_need(card_bars(device.functions, host)))}


@lru_cache(maxsize=1024)
def quantity(amount: int) -> str:
    """An amount as Kubernetes writes it: the API server changes any other spelling to this one."""
    for base, suffixes in ((1024, ("Ki", "Mi", "Gi", "Ti", "Pi")), (1000, ("k", "M", "G", "T", "P"))):
        power = 0
        while amount and amount % base == 0 and power < len(suffixes):
            amount, power = amount // base, power + 1
        if power:
            return f"{amount}{suffixes[power - 1]}"
    return str(amount)
