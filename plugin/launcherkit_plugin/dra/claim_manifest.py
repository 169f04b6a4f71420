"""The manifests of a claim for cards that are close together, with the DeviceClasses that it names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

from launcherkit_plugin.dra.inventory import STANDARD
from launcherkit_plugin.dra.switches import SWITCH
from launcherkit_plugin.model.config import DRA_DRIVER

BusLevel: TypeAlias = Literal["pcieSwitch", "pcieSwitch0", "pcieRoot", "numaNode"]
"""What devices that are close together have in common, the closest first. ``pcieSwitch0`` is the switch next to the
root complex; others may be below it."""
LEVELS: tuple[BusLevel, ...] = get_args(BusLevel)
MOST = 32
"""The most devices of a claim."""


class CardKind(NamedTuple):
    """A kind of devices."""

    name: str
    """``gpu``, of which the names of requests are formed: ``gpu-0``."""
    plural: str
    device_class: str
    types: tuple[str, ...]
    """Values of the attribute ``type``."""
    classes: tuple[str, ...]
    """The first digits of PCI class codes."""


KINDS = (
    CardKind("gpu", "gpus", "gpu.launcherkit.io", ("card",), ("03", "12")),
    CardKind("nic", "nics", "network-function.launcherkit.io", ("card", "vf"), ("02",)),
    CardKind("nvme", "nvmes", "nvme.launcherkit.io", ("card", "vf"), ("0108",)),
)


def manifests(
    name: str,
    counts: Mapping[CardKind, int],
    driver: str,
    *,
    near: BusLevel | None = None,
    together: BusLevel | None = None,
    template: bool = False,
) -> list[dict[str, Any]]:
    """A ResourceClaim, or its template, and the DeviceClasses that it names.

    Each device is a request of its own, because KubeVirt takes one device of each request. Requests whose devices must
    be near each other follow one another: the scheduler tries devices in this order, and gives up a wrong one early.

    Args:
        name: of the claim.
        counts: how many of each kind; `MOST` in all.
        driver: the name of the DRA driver.
        near: each device is near its share of the other kinds. If there are 4 GPUs and 2 NICs, these are two GPUs for
            each NIC. Devices of one kind alone are all near each other.
        together: what all devices have in common.
        template: whether each pod gets a claim of its own.
    """
    groups = _groups({kind: count for kind, count in counts.items() if count})
    devices: dict[str, Any] = {
        "requests": [
            {"name": request, "exactly": {"deviceClassName": _class_name(kind, driver)}}
            for group in groups
            for kind, request in group
        ]
    }
    names = [[request for _, request in group] for group in groups]
    constraints = [_in_common(near, group) for group in names if near is not None and len(group) > 1]
    if together is not None:
        constraints.append(_in_common(together, [request for group in names for request in group]))
    if constraints:
        devices["constraints"] = constraints
    spec: dict[str, Any] = {"devices": devices}
    classes = [_device_class(kind, driver) for kind, count in counts.items() if count]
    if template:
        return [*classes, _resource("ResourceClaimTemplate", name, {"spec": spec})]
    return [*classes, _resource("ResourceClaim", name, spec)]


def _resource(kind: str, name: str, spec: Mapping[str, Any]) -> dict[str, Any]:
    return {"apiVersion": "resource.k8s.io/v1", "kind": kind, "metadata": {"name": name}, "spec": spec}


def _class_name(kind: CardKind, driver: str) -> str:
    """Its DeviceClass. That of another driver has another name, so that it doesn't replace the common one."""
    return kind.device_class if driver == DRA_DRIVER else f"{kind.device_class}.{driver}"


def _device_class(kind: CardKind, driver: str) -> dict[str, Any]:
    """The DeviceClass of a kind. Its CEL doesn't look at attributes of other drivers' devices, which would fail."""
    of = f'device.attributes["{driver}"]'
    types = ", ".join(f'"{each}"' for each in kind.types)
    expression = (
        f'device.driver == "{driver}" && {of}.type in [{types}] && {of}.class.matches("^({"|".join(kind.classes)})")'
    )
    return _resource("DeviceClass", _class_name(kind, driver), {"selectors": [{"cel": {"expression": expression}}]})


def _groups(counts: Mapping[CardKind, int]) -> list[list[tuple[CardKind, str]]]:
    """The requests, dealt to as many groups as there are devices of the rarest kind; one group of a single kind."""
    number = min(counts.values()) if len(counts) > 1 else 1
    return [list(_share(counts, group, number)) for group in range(number)]


def _share(counts: Mapping[CardKind, int], group: int, groups: int) -> Iterator[tuple[CardKind, str]]:
    for kind, count in counts.items():
        for at in range(group, count, groups):
            yield kind, f"{kind.name}-{at}"


def _in_common(level: BusLevel, requests: Sequence[str]) -> dict[str, Any]:
    attribute = level.replace("pcieSwitch", SWITCH) if level.startswith("pcieSwitch") else f"{STANDARD}{level}"
    return {"requests": list(requests), "matchAttribute": attribute}
