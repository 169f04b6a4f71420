"""The devices that a DRA driver publishes, with their attributes, capacity and taints (D2, D4); none of them is the
device plugin's (D1)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import NamedTuple, TypeAlias

from launcherkit.choose.nodes import IOMMUFD_NODE
from launcherkit.errors import Collector
from launcherkit.model.address import PciAddress
from launcherkit.model.host import HostFacts, PciDetail, PciFunction, bound_to_vfio
from launcherkit.model.window import card_bars, window_need
from launcherkit_plugin.devices.selectors import auto_rules, compile_rules
from launcherkit_plugin.dra.counters import CounterUse, Sharer, counter_uses
from launcherkit_plugin.dra.labels import LONGEST_TEXT, Attributes, attribute, device_name, is_bdf
from launcherkit_plugin.dra.switches import Switches
from launcherkit_plugin.model.config import Config
from launcherkit_plugin.model.device import Device, Problem, Resource
from launcherkit_plugin.model.errors import CARD_IN_BOTH_WORLDS

STANDARD = "resource.kubernetes.io/"
"""The prefix of attributes that are the same for all drivers."""
TAINTS = "launcherkit.io/"
CONTAINER = "container"
"""The attribute ``type`` of devices that containers use through the host's driver (K10)."""
USB = "usb"
"""The same of USB devices (K14)."""

_Values: TypeAlias = dict[str, int | bool | str]
"""Values of attributes; one that is an empty string is left out."""


class Taint(NamedTuple):
    """Why the scheduler must not allocate a device."""

    key: str
    """``launcherkit.io/not-viable``."""
    value: str
    effect: str
    """``NoSchedule`` or ``NoExecute``."""


class DraDevice(NamedTuple):
    """A device of the pool: a physical card with its siblings, a card for containers, or a vGPU."""

    name: str
    """A DNS label, which never changes while the device exists: ``pci-0000-e1-00-0``, ``mdev-<uuid>``."""
    resource: str
    """The name of its `launcherkit_plugin.model.device.Resource`."""
    id: str
    """The ID of its `launcherkit_plugin.model.device.Device`."""
    attributes: Attributes
    """Names without a domain belong to the driver's domain."""
    capacity: Mapping[str, str]
    """Quantities in the format of Kubernetes: ``32Gi``."""
    counters: tuple[CounterUse, ...] = ()
    taints: tuple[Taint, ...] = ()
    problem: Problem | None = None
    """The reason for the taint."""
    awaited: bool = False
    """It can be allocated as it is: the scheduler waits for `device_state.READY` before the pod is bound (KEP-5007)."""
    shares: int = 0
    """How many shares claims can have of it (KEP-5075, D14); 0: it is one claim's as a whole."""
    most_shares: int = 0
    """How many of them one request may take."""

    @property
    def is_usb(self) -> bool:
        return self.attributes.get("type") == attribute(USB)

    @property
    def in_container(self) -> bool:
        """Whether containers use it through the host's driver."""
        return self.attributes.get("type") == attribute(CONTAINER)


def inventory(
    resources: Iterable[Resource],
    host: HostFacts,
    *,
    evict: bool = False,
    binding_conditions: bool = False,
    before: Mapping[str, DraDevice] = {},
) -> tuple[DraDevice, ...]:
    """The devices to publish, sorted by name. Companions are no devices: they are attached with their cards.

    Args:
        resources: all resources, including those of the device plugin.
        host: the facts from which they were made.
        evict: whether taints evict the pod of an unhealthy device.
        binding_conditions: a device that is being cleaned is waited for, in place of a taint.
        before: the devices published last, by name. A device that is gone keeps its attributes: a CEL selector that
            uses a missing one is an error, and then the scheduler allocates no other device either.
    """
    listed = [
        (resource, device)
        for resource in resources
        if resource.dra and not resource.companion
        for device in resource.devices.values()
    ]
    sharers = [_sharer(resource, device, host) for resource, device in listed]
    switches = Switches(host)
    devices = []
    for (resource, device), uses in zip(listed, counter_uses(sharers), strict=True):
        taints = _taints(device.problem, evict=evict, awaited=binding_conditions)
        name, function = device_name(resource, device.id), _function(device, host)
        last = before.get(name) if function is None else None
        if last is not None and last.resource == resource.name and "class" in last.attributes:
            attributes, capacity = last.attributes, last.capacity
        else:
            attributes = _attributes(resource, device, function, host, switches)
            capacity = _capacity(resource, device, host)
        devices.append(
            DraDevice(
                name,
                resource.name,
                device.id,
                attributes,
                capacity,
                uses,
                taints,
                device.problem,
                device.problem is not None and not taints,
                resource.replicas,
                resource.most_shares,
            )
        )
    return tuple(sorted(devices, key=lambda device: device.name))


def _sharer(resource: Resource, device: Device, host: HostFacts) -> Sharer:
    return Sharer(
        device.id,
        device.groups,
        device.card or _physical_function(device, host),
        device.per_card,
        device.place or str(_primary(device) or device.id),
        device.functions,
        resource.use == "container",
    )


def _taints(problem: Problem | None, *, evict: bool, awaited: bool) -> tuple[Taint, ...]:
    """The taint of a problem. One that passes by itself evicts no pod that waits for the device, and where it can be
    awaited there is none."""
    if problem is None or (awaited and problem.reason == "cleaning"):
        return ()
    effect = "NoExecute" if evict and problem.reason != "cleaning" else "NoSchedule"
    return (Taint(TAINTS + problem.reason, "", effect),)


def _attributes(
    resource: Resource, device: Device, function: PciFunction | None, host: HostFacts, switches: Switches
) -> Attributes:
    """The attributes, which CEL selectors can use. IOMMU groups are left out: their numbers change at each boot."""
    address = _primary(device)
    values: _Values = {
        # A truncated name could be that of another resource.
        "resource": resource.name if len(resource.name) <= LONGEST_TEXT else "",
        "keptFor": device.kept_for if len(device.kept_for) <= LONGEST_TEXT else "",
        f"{STANDARD}pcieRoot": device.path[0] if device.path and device.path[0].startswith("pci") else "",
    }
    if device.numa_node is not None:
        values[f"{STANDARD}numaNode"] = device.numa_node
    if function is not None:
        values["class"] = f"{function.class_code:06x}"
        values["vendorID"] = f"{function.vendor:04x}"
        values["deviceID"] = f"{function.device:04x}"
        values |= switches.attributes(function)
    if address is not None:
        values[f"{STANDARD}pciBusID"] = str(address)
    if device.usb:
        values |= {"type": USB, **dict(device.traits)}
    elif resource.use == "container":
        values |= {"type": CONTAINER, "uuid": "" if is_bdf(device.id) else device.id}
    else:
        values |= _of_vgpu(device) if address is None or resource.made_at_start else _of_card(device, function)
        values |= _of_binding(function, None if address is None else host.details.get(address), host)
    return {name: attribute(value) for name, value in sorted(values.items()) if value != ""}


def _physical_function(device: Device, host: HostFacts) -> str:
    """The physical function of a VF; empty for other devices."""
    function = host.functions.get(device.functions[0]) if device.functions else None
    return "" if function is None or function.physfn is None else str(function.physfn)


def _primary(device: Device) -> PciAddress | None:
    """The primary of a device; None for an mdev."""
    if device.functions:
        return device.functions[0]
    return PciAddress.parse(device.id) if is_bdf(device.id) else None


def _function(device: Device, host: HostFacts) -> PciFunction | None:
    """The primary; for an mdev, the function of its card. None if there is none."""
    address = _primary(device)
    if address is None and is_bdf(device.card):
        address = PciAddress.parse(device.card)
    return None if address is None else host.functions.get(address)


def _of_card(device: Device, function: PciFunction | None) -> _Values:
    values: _Values = {"type": "card", "functions": len(device.functions), "model": device.model}
    if function is not None and function.physfn is not None:
        values |= {"type": "vf", "card": str(function.physfn)}
    if device.module:  # as NVIDIA's DRA driver has them, under its own domain
        values["gpuModuleID"] = device.module
    return values | {f"partition{size}": number for size, number in device.partitions}


def _of_vgpu(device: Device) -> _Values:
    values: _Values = {"type": "vgpu", "card": device.card}
    if len(device.vgpu_types) == 1:
        values["vgpuType"] = device.vgpu_types[0]
    if not is_bdf(device.id):
        values["mdevUUID"] = device.id
    return values


def _of_binding(function: PciFunction | None, detail: PciDetail | None, host: HostFacts) -> _Values:
    if function is None or detail is None:
        return {}
    cdev = detail.vfio_dev is not None and (host.nodes is None or IOMMUFD_NODE in host.nodes)
    values: _Values = {"iommufd": cdev}
    if function.driver is not None and bound_to_vfio(function, detail):
        values["vfioDriver"] = function.driver
    return values


def _capacity(resource: Resource, device: Device, host: HostFacts) -> dict[str, str]:
    """How much of a guest's 64-bit MMIO window the BARs need (P5)."""
    if not device.functions or resource.made_at_start or resource.use == "container":
        return {}
    return {"window64": quantity(window_need(card_bars(device.functions, host)))}


@lru_cache(maxsize=1024)
def quantity(amount: int) -> str:
    """A quantity in the canonical format of Kubernetes, to which the API server converts every other one."""
    for base, suffixes in ((1024, ("Ki", "Mi", "Gi", "Ti", "Pi")), (1000, ("k", "M", "G", "T", "P"))):
        power = 0
        while amount and amount % base == 0 and power < len(suffixes):
            amount, power = amount // base, power + 1
        if power:
            return f"{amount}{suffixes[power - 1]}"
    return str(amount)


_REMEDY = (
    "Narrow one of the two: `exclude` takes selectors, vGPU rules have `parents`; or let both say the same for `dra`."
)
_SHOWN = 4


def check_rules(config: Config, host: HostFacts) -> None:
    """Check that no function is selected by configured rules of both. The rules of ``auto`` only take what is left.

    Raises:
        CARD_IN_BOTH_WORLDS, SeveralErrors: names the rules and the functions.
    """
    implied = () if config.auto is None else auto_rules(config.auto)[0].select
    rules = {id(rule): number for number, rule in enumerate(config.pci, 1) if rule.select != implied}
    ours, theirs = ([rule for rule in config.pci if id(rule) in rules and rule.dra is dra] for dra in (True, False))
    if not ours or not theirs:
        return
    by_dra, by_plugin = compile_rules(ours), compile_rules(theirs)
    both: dict[tuple[int, int], list[PciAddress]] = {}
    for address, function in sorted(host.functions.items()):
        one, other = by_dra(function), by_plugin(function)
        if one is not None and other is not None:
            both.setdefault((rules[id(one)], rules[id(other)]), []).append(address)
    errors = Collector()
    for (one_number, other_number), shared in both.items():
        functions = ", ".join(map(str, shared[:_SHOWN])) + (", ..." if len(shared) > _SHOWN else "")
        words = f"rule {one_number} (for DRA) and rule {other_number} (for the device plugin) both select {functions}"
        errors.add(CARD_IN_BOTH_WORLDS(words, _REMEDY, device=str(shared[0])))
    errors.raise_if_any()


def check_resources(resources: Iterable[Resource]) -> None:
    """Check that devices of the two share no function, and no card on which vGPUs are created.

    Raises:
        CARD_IN_BOTH_WORLDS, SeveralErrors: names the card and the resources.
    """
    owners: dict[bool, dict[str, str]] = {True: {}, False: {}}
    for resource in resources:
        for device in resource.devices.values():
            owners[resource.dra].update(dict.fromkeys(_parts(device), resource.name))
    errors = Collector()
    reported = set()
    for part, ours in owners[True].items():
        theirs = owners[False].get(part)
        if theirs is not None and (ours, theirs) not in reported:
            reported.add((ours, theirs))
            words = f"{part} is for DRA by the resource {ours} and for the device plugin by {theirs}"
            errors.add(CARD_IN_BOTH_WORLDS(words, _REMEDY, device=part, resource=ours))
    errors.raise_if_any()


def _parts(device: Device) -> tuple[str, ...]:
    return (device.card,) if device.card else tuple(map(str, device.functions))
