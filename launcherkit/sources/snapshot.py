"""Writes a host as JSON: sorted, reproducible, and with one function on each line so that diffs are readable.

Values that are None, empty or the usual ones are left out. `load` in `snapshot_reader` is the exact inverse of `dump`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from launcherkit.model.cpuset import format_cpuset
from launcherkit.model.function import PciDetail, PciFunction
from launcherkit.model.host import HostFacts, Mdev, MdevParent, NumaNode

FORMAT = "launcherkit.io/host/v1"


def dump(facts: HostFacts, machine: Mapping[str, Any] | None = None) -> str:
    """The facts as JSON text.

    Args:
        facts: the host's.
        machine: names and serial numbers, from `launcherkit.sources.machine`; left out by default.
    """
    parts = [f'"format": {_json(FORMAT)}']
    if not facts.known:
        parts.append('"known": false')
    if machine is not None:
        parts.append(f'"machine": {_json(machine)}')
    parts.append(_lines("functions", [_function(facts, facts.functions[key]) for key in sorted(facts.functions)]))
    members = {key: [str(member) for member in facts.groups[key]] for key in sorted(facts.groups)}
    groups = ",".join(f'\n"{key}": {_json(addresses)}' for key, addresses in members.items())
    parts.append(f'"groups": {{{groups}' + ("\n}" if groups else "}"))
    parts.append(_lines("mdevs", [_mdev(facts.mdevs[key]) for key in sorted(facts.mdevs)]))
    parts.append(_lines("mdev_parents", [_parent(facts.mdev_parents[key]) for key in sorted(facts.mdev_parents)]))
    parts.append(f'"nodes": {_json(sorted(facts.nodes) if facts.nodes is not None else None)}')
    if facts.noiommu:
        parts.append(f'"noiommu": {_json(sorted(facts.noiommu))}')
    if facts.numa:
        parts.append(_lines("numa", [_numa(node, facts.numa[node]) for node in sorted(facts.numa)]))
    if facts.container_dev:
        parts.append('"container_dev": true')
    return "{\n" + ",\n".join(parts) + "\n}\n"


def _json(value: object) -> str:
    return json.dumps(value)


def _lines(key: str, values: Iterable[Mapping[str, Any]]) -> str:
    lines = ",".join("\n" + _json(_known(line)) for line in values)
    return f'"{key}": [{lines}' + ("\n]" if lines else "]")


def _known(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values that are known."""
    return {key: value for key, value in values.items() if value is not None}


def _function(facts: HostFacts, function: PciFunction) -> dict[str, Any]:
    detail = facts.details.get(function.address)
    return {
        "address": str(function.address),
        "vendor": f"{function.vendor:04x}",
        "device": f"{function.device:04x}",
        "subsystem_vendor": f"{function.subsystem_vendor:04x}",
        "subsystem_device": f"{function.subsystem_device:04x}",
        "class": f"{function.class_code:06x}",
        "driver": function.driver,
        "iommu_group": function.iommu_group,
        "numa_node": function.numa_node,
        "physfn": str(function.physfn) if function.physfn else None,
        "detail": None if detail is None else _detail(detail),
    }


def _detail(detail: PciDetail) -> dict[str, Any]:
    vgpu, link = detail.vgpu, detail.link
    return _known(
        {
            "revision": None if detail.revision is None else f"{detail.revision:02x}",
            "header_type": detail.header_type,
            "config_readable": None if detail.config_readable else False,
            "driver_override": detail.driver_override,
            "driver_module": detail.driver_module,
            "parents": list(detail.parents) or None,
            "virtfns": [str(address) for address in detail.virtfns] or None,
            "sriov_numvfs": detail.sriov_numvfs,
            "sriov_totalvfs": detail.sriov_totalvfs,
            "resources": [f"{bar.line} {bar.start:x}-{bar.end:x} {bar.flags:x}" for bar in detail.resources] or None,
            "rom": detail.has_rom or None,
            "reset_methods": list(detail.reset_methods) or None,
            "power_state": detail.power_state,
            "vfio_dev": detail.vfio_dev,
            "vgpu": None if vgpu is None else {"current_type": vgpu.current_type, "creatable": vgpu.creatable},
            "link": None if link is None else _known(link._asdict()),
        }
    )


def _numa(number: int, node: NumaNode) -> dict[str, Any]:
    distances = [node.distances[to] for to in sorted(node.distances)]
    return {"node": number, "cpus": format_cpuset(node.cpus) or None, "distances": distances or None}


def _mdev(mdev: Mdev) -> dict[str, Any]:
    return mdev._asdict() | {"parent": mdev.parent or None}


def _parent(parent: MdevParent) -> dict[str, Any]:
    types = [_known(offered._asdict()) for offered in parent.types]
    return {"name": parent.name, "address": str(parent.address) if parent.address else None, "types": types}
