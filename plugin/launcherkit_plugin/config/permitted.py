"""What KubeVirt must permit for what is advertised, as a patch (K7).

`launcherkit_plugin.config.kubevirt` goes the other way, from what KubeVirt permits to what is advertised.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal, NamedTuple, TypeAlias

from launcherkit.model.host import HostFacts
from launcherkit_plugin.devices.names import type_key
from launcherkit_plugin.model.device import Resource

PermittedList: TypeAlias = Literal["pciHostDevices", "mediatedDevices"]

_SELECTORS: Mapping[PermittedList, str] = {
    "pciHostDevices": "pciVendorSelector",
    "mediatedDevices": "mdevNameSelector",
}
_EXTERNAL = "externalResourceProvider"


class Permit(NamedTuple):
    """An entry of ``permittedHostDevices``."""

    which: PermittedList
    resource: str
    selector: str
    """``10DE:2204``, or the name of a type of vGPUs."""


def permits(resources: Iterable[Resource], host: HostFacts) -> Iterator[Permit]:
    """The entries for what is advertised to the kubelet; VMs request devices of DRA without any.

    Args:
        resources: each with the devices that it has on the host, Unhealthy ones too.
        host: theirs.
    """
    for resource in resources:
        for device in () if resource.dra or resource.use != "vm" else resource.devices.values():
            if device.functions:  # a VF with a vGPU type too is a PCI device to KubeVirt (G4)
                vendor, model = host.functions[device.functions[0]].model
                yield Permit("pciHostDevices", resource.name, f"{vendor:04X}:{model:04X}")
            else:
                for name in device.vgpu_types:
                    yield Permit("mediatedDevices", resource.name, name)


def permitting_patch(
    wanted: Iterable[Permit], current: Mapping[str, Any] | None = None
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """A merge patch for the KubeVirt resource, and notes.

    A merge patch replaces lists whole, so each list has the current entries first, as they are but for
    ``externalResourceProvider`` of ours. A list that needs no entry isn't in the patch, which may be empty.

    Args:
        wanted: in any order, repeated or not.
        current: ``permittedHostDevices`` of the KubeVirt resource; None or empty where it has none.
    """
    needed = sorted(set(wanted))
    notes: list[str] = []
    lists = {}
    for which in _SELECTORS:
        ours = [permit for permit in needed if permit.which == which]
        if ours:
            lists[which] = _merged(which, ours, (current or {}).get(which) or (), notes)
    return ({"spec": {"configuration": {"permittedHostDevices": lists}}} if lists else {}), tuple(notes)


def _merged(
    which: PermittedList, ours: Iterable[Permit], current: Iterable[Mapping[str, Any]], notes: list[str]
) -> list[dict[str, Any]]:
    key = _SELECTORS[which]
    compared = str.upper if which == "pciHostDevices" else type_key
    wanted = {(permit.resource, compared(permit.selector)): permit for permit in ours}
    names, selectors = ({at[part] for at in wanted} for part in (0, 1))
    merged = [dict(entry) for entry in current]
    there = set()
    for entry in merged:
        name, selector = entry["resourceName"], compared(entry[key])
        there.add((name, selector))
        if entry.get(_EXTERNAL):
            continue
        about = f"{which}: {name} ({entry[key]}) is advertised by KubeVirt itself"
        if (name, selector) in wanted:
            entry[_EXTERNAL] = True
            notes.append(f"{about}; the patch leaves it to this plugin")
        elif name in names or selector in selectors:
            notes.append(f"{about}, and by this plugin under the same name or for the same devices: remove the entry")
    new = (
        {key: permit.selector, "resourceName": permit.resource, _EXTERNAL: True}
        for at, permit in wanted.items()
        if at not in there
    )
    return [*merged, *new]
