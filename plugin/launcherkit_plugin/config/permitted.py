"""The entries of ``permittedHostDevices`` that KubeVirt needs for the advertised resources, as a patch (K7).

`launcherkit_plugin.config.kubevirt` goes the other way: from KubeVirt's entries to rules.
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
    """``10DE:2204``, or the name of a vGPU type."""


def permits(resources: Iterable[Resource], host: HostFacts) -> Iterator[Permit]:
    """The entries for resources of the device plugin; for DRA, KubeVirt needs none.

    Args:
        resources: with all their devices, including Unhealthy ones.
        host: facts about their functions.
    """
    for resource in resources:
        for device in () if resource.dra or resource.use != "vm" else resource.devices.values():
            if device.functions:  # to KubeVirt, a VF with a vGPU type is a PCI device, too (G4)
                vendor, model = host.functions[device.functions[0]].model
                yield Permit("pciHostDevices", resource.name, f"{vendor:04X}:{model:04X}")
            else:
                for name in device.vgpu_types:
                    yield Permit("mediatedDevices", resource.name, name)


def permitting_patch(
    wanted: Iterable[Permit], current: Mapping[str, Any] | None = None
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """A JSON merge patch for the KubeVirt resource, and notes.

    A merge patch replaces whole lists, so each list begins with the current entries. These are unchanged, except that
    ``externalResourceProvider`` is set for our resources. A list that needs no new entry isn't in the patch.

    Args:
        wanted: in any order; may contain duplicates.
        current: ``permittedHostDevices`` of the KubeVirt resource; None or empty if it has none.
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
