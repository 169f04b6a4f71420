"""Writes a host as JSON: sorted, reproducible, and with one function on each line so that diffs are readable.

Values that are None, empty or the usual ones are left out. `load` in `snapshot_reader` is the exact inverse of `dump`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from launcherkit.errors import BAD_SNAPSHOT
from launcherkit.host.query import distances_of
from launcherkit.model.address import MdevAddress, PciAddress, format_cpuset, parse_cpuset
from launcherkit.model.host import (
    NO_FACTS,
    Bar,
    HostFacts,
    Mdev,
    MdevParent,
    MdevType,
    NumaNode,
    PciDetail,
    PciFunction,
    PciLink,
    VgpuVf,
)
from launcherkit.request.fields import DocumentErrors, Fields, flag, hex_of, natural, parse_json, read_text, text

FORMAT = "launcherkit.io/host/v1"


def dump(facts: HostFacts, machine: Mapping[str, Any] | None = None) -> str:
    """The facts as JSON text.

    Args:
        facts: the host's.
        machine: names and serial numbers, from `launcherkit.host.facts`; left out by default.
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
            "vgpu": None if vgpu is None else _known(vgpu._asdict()),
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


# Snapshots that are read: some were edited by hand, or truncated, and all their errors are reported.

_REMEDY = "Make the snapshot again with `launcherkit snapshot -o FILE`, or correct that place."
_NOWHERE = PciAddress(0, 0, 0, 0)
_HEX4 = hex_of(4)
_HEX6 = hex_of(6)


def read_snapshot(path: str) -> HostFacts:
    """The facts in a snapshot file.

    Raises:
        UnreadableFile: the file can't be read.
        BAD_SNAPSHOT, SeveralErrors: everything that is wrong in it, by JSON path.
    """
    return load(read_text(path, DocumentErrors(path, BAD_SNAPSHOT, _REMEDY)), path)


def load(content: str, path: str = "snapshot") -> HostFacts:
    """As `read_snapshot`, from text; ``path`` is for messages."""
    problems = DocumentErrors(path, BAD_SNAPSHOT, _REMEDY)
    fields = Fields(parse_json(content, problems), "$", problems)
    if fields.valid and fields.pop("format") != FORMAT:
        problems.fail("$.format", f"not {FORMAT!r}: this is not a snapshot, or it is one of another version")
    is_known = fields.optional("known", flag, "true or false")
    fields.pop("machine")  # for people only
    functions: dict[PciAddress, PciFunction] = {}
    details: dict[PciAddress, PciDetail] = {}
    for entry in fields.objects("functions"):
        function = _read_function(entry)
        if function.address in functions:
            problems.add(f"{entry.path}.address", f"{function.address} appears twice")
        functions[function.address] = function
        detail = entry.child("detail")
        if detail is not None:
            details[function.address] = _read_detail(detail)
        entry.finish()
    groups = _groups(fields.pop("groups"), functions, problems)
    mdevs = {mdev.uuid: mdev for mdev in map(_read_mdev, fields.objects("mdevs"))}
    parents = {parent.name: parent for parent in map(_read_parent, fields.objects("mdev_parents"))}
    paths = fields.optional("nodes", _paths, "a list of paths")
    noiommu = fields.many("noiommu", natural, "the number of an IOMMU group")
    numa = _read_numa(fields.objects("numa"))
    container_dev = fields.optional("container_dev", flag, "true or false") is True
    fields.finish()
    problems.raise_if_any()
    if is_known is False:
        return NO_FACTS
    # Older snapshots have only the nodes.
    made = {group for group in groups if f"/dev/vfio/noiommu-{group}" in (paths or ())}.union(noiommu)
    return HostFacts(
        True, functions, details, groups, mdevs, parents, paths, container_dev, noiommu=frozenset(made), numa=numa
    )


def _paths(value: object) -> frozenset[str]:
    if not isinstance(value, list) or not all(isinstance(path, str) for path in value):
        raise ValueError
    return frozenset(value)


def _address(value: object) -> PciAddress:
    return PciAddress.parse(text(value))


def _read_function(fields: Fields) -> PciFunction:
    return PciFunction(
        fields.required("address", _address, "a PCI address", _NOWHERE),
        fields.required("vendor", _HEX4, "4 hex digits", 0),
        fields.required("device", _HEX4, "4 hex digits", 0),
        fields.optional("subsystem_vendor", _HEX4, "4 hex digits") or 0,
        fields.optional("subsystem_device", _HEX4, "4 hex digits") or 0,
        fields.required("class", _HEX6, "6 hex digits", 0),
        fields.optional("driver", text, "the name of a driver"),
        fields.optional("iommu_group", natural, "a number"),
        fields.optional("numa_node", natural, "a number"),
        fields.optional("physfn", _address, "a PCI address"),
    )


def _read_detail(fields: Fields) -> PciDetail:
    vgpu, link = fields.child("vgpu"), fields.child("link")
    detail = PciDetail(
        revision=fields.optional("revision", hex_of(2), "2 hex digits"),
        header_type=fields.optional("header_type", natural, "a number"),
        config_readable=fields.optional("config_readable", flag, "true or false") is not False,
        driver_override=fields.optional("driver_override", text, "the name of a driver"),
        driver_module=fields.optional("driver_module", text, "the name of a module"),
        parents=fields.many("parents", text, "a name"),
        virtfns=fields.many("virtfns", _address, "a PCI address"),
        sriov_numvfs=fields.optional("sriov_numvfs", natural, "a number"),
        sriov_totalvfs=fields.optional("sriov_totalvfs", natural, "a number"),
        resources=fields.many("resources", _bar, "of the form 'INDEX START-END FLAGS', the last three in hex"),
        has_rom=fields.optional("rom", flag, "true or false") is True,
        reset_methods=fields.many("reset_methods", text, "a name"),
        power_state=fields.optional("power_state", text, "a power state"),
        vfio_dev=fields.optional("vfio_dev", text, "a name such as vfio0"),
        vgpu=None if vgpu is None else _vgpu(vgpu),
        link=None if link is None else _link(link),
    )
    fields.finish()
    return detail


def _link(fields: Fields) -> PciLink:
    link = PciLink(*(fields.optional(name, natural, "a number") for name in PciLink._fields))
    fields.finish()
    return link


def _vgpu(fields: Fields) -> VgpuVf:
    current = fields.required("current_type", natural, "a number", 0)
    creatable = fields.many("creatable", _type_row, "a pair of number and name")
    placement = fields.optional("placement", natural, "a number")
    instance = fields.optional("gpu_instance", natural, "a number")
    fields.finish()
    return VgpuVf(current, creatable, placement, instance)


def _type_row(value: object) -> tuple[int, str]:
    if not isinstance(value, list) or len(value) != 2 or not isinstance(value[1], str):
        raise ValueError
    return natural(value[0]), value[1]


def _bar(value: object) -> Bar:
    index, span, flags = text(value).split(" ")
    start, end = span.split("-")
    if not index.isdigit() or not index.isascii() or len(index) > 3:
        raise ValueError
    return Bar(int(index), *(_hex_up_to_64_bits(part) for part in (start, end, flags)))


def _hex_up_to_64_bits(part: str) -> int:
    return hex_of(min(max(len(part), 1), 16))(part)


def _groups(
    value: object, functions: dict[PciAddress, PciFunction], problems: DocumentErrors
) -> dict[int, tuple[PciAddress, ...]]:
    """The listed groups, or those of the functions if none are listed; the two must not differ."""
    by_function: dict[int, list[PciAddress]] = {}
    for address in sorted(functions):
        group = functions[address].iommu_group
        if group is not None:
            by_function.setdefault(group, []).append(address)
    if value is None:
        return {group: tuple(members) for group, members in by_function.items()}
    fields = Fields(value, "$.groups", problems)
    groups = {}
    for key in fields.rest():
        members = fields.many(key, _address, "a PCI address")
        if not (key.isascii() and key.isdigit() and len(key) < 10):
            problems.add("$.groups", f"{key!r} is not the number of a group")
        elif not problems.count and sorted(members) != by_function.get(int(key), []):  # else a function may be wrong
            those = " ".join(map(str, by_function.get(int(key), []))) or "that it is empty"
            problems.add(f"$.groups.{key}", f"not what the functions say: {those}")
        else:
            groups[int(key)] = members
    return groups


def _read_numa(entries: Iterable[Fields]) -> dict[int, NumaNode]:
    """NUMA nodes by number; a node's distances are listed as by the kernel, one for each node in order."""
    read = []
    for fields in entries:
        number = fields.required("node", natural, "a number", 0)
        cpus = fields.optional("cpus", lambda value: parse_cpuset(text(value)), "a list of CPUs such as 0-31,64-95")
        read.append((number, cpus or frozenset(), fields.many("distances", natural, "a number")))
        fields.finish()
    numbers = sorted(number for number, _, _ in read)
    return {number: NumaNode(cpus, distances_of(numbers, figures)) for number, cpus, figures in read}


def _read_mdev(fields: Fields) -> Mdev:
    mdev = Mdev(
        fields.required("uuid", lambda value: MdevAddress.parse(text(value)).uuid, "a UUID", ""),
        fields.optional("parent", text, "a name") or "",
        fields.required("type_id", text, "a name", ""),
        fields.optional("type_name", text, "a name"),
        fields.optional("device_api", text, "a name"),
        fields.optional("iommu_group", natural, "a number"),
    )
    fields.finish()
    return mdev


def _read_parent(fields: Fields) -> MdevParent:
    name = fields.required("name", text, "a name", "")
    address = fields.optional("address", _address, "a PCI address")
    types = tuple(map(_type, fields.objects("types")))
    fields.finish()
    return MdevParent(name, address, types)


def _type(fields: Fields) -> MdevType:
    offered = MdevType(
        fields.required("id", text, "a name", ""),
        fields.optional("name", text, "a name"),
        fields.optional("device_api", text, "a name"),
        fields.optional("available_instances", natural, "a number"),
        fields.optional("description", text, "a text"),
    )
    fields.finish()
    return offered
