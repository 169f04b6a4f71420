"""Reads snapshots, and reports all errors in those that were edited by hand or truncated."""

from __future__ import annotations

from collections.abc import Iterable

from launcherkit.errors import BadSnapshot
from launcherkit.model.address import MdevAddress, PciAddress
from launcherkit.model.cpuset import parse_cpuset
from launcherkit.model.function import Bar, PciDetail, PciFunction, PciLink, VgpuVf
from launcherkit.model.host import NO_FACTS, HostFacts, Mdev, MdevParent, MdevType, NumaNode
from launcherkit.sources.checked_json import Fields, flag, hex_of, natural, parse_json, text
from launcherkit.sources.numa import distances_of
from launcherkit.sources.problems import Problems, read_text
from launcherkit.sources.snapshot import FORMAT

_REMEDY = "Make the snapshot again with `launcherkit snapshot -o FILE`, or correct that place."
_NOWHERE = PciAddress(0, 0, 0, 0)
_HEX4 = hex_of(4)
_HEX6 = hex_of(6)


def read_snapshot(path: str) -> HostFacts:
    """The facts in a snapshot file.

    Raises:
        UnreadableFile: the file can't be read.
        BadSnapshot, SeveralErrors: everything that is wrong in it, by JSON path.
    """
    return load(read_text(path, Problems(path, BadSnapshot, _REMEDY)), path)


def load(content: str, path: str = "snapshot") -> HostFacts:
    """As `read_snapshot`, from text; ``path`` is for messages."""
    problems = Problems(path, BadSnapshot, _REMEDY)
    fields = Fields(parse_json(content, problems), "$", problems)
    if fields.valid and fields.take("format") != FORMAT:
        problems.fail("$.format", f"not {FORMAT!r}: this is not a snapshot, or it is one of another version")
    known = fields.optional("known", flag, "true or false")
    fields.take("machine")  # for people only
    functions: dict[PciAddress, PciFunction] = {}
    details: dict[PciAddress, PciDetail] = {}
    for entry in fields.objects("functions"):
        function = _function(entry)
        if function.address in functions:
            problems.add(f"{entry.path}.address", f"{function.address} appears twice")
        functions[function.address] = function
        detail = entry.child("detail")
        if detail is not None:
            details[function.address] = _detail(detail)
        entry.finish()
    groups = _groups(fields.take("groups"), functions, problems)
    mdevs = {mdev.uuid: mdev for mdev in map(_mdev, fields.objects("mdevs"))}
    parents = {parent.name: parent for parent in map(_parent, fields.objects("mdev_parents"))}
    nodes = fields.take("nodes")
    if nodes is not None and not (isinstance(nodes, list) and all(isinstance(node, str) for node in nodes)):
        fields.problem("nodes", nodes, "a list of paths")
    noiommu = fields.many("noiommu", natural, "the number of an IOMMU group")
    numa = _numa(fields.objects("numa"))
    container_dev = fields.optional("container_dev", flag, "true or false") is True
    fields.finish()
    problems.raise_if_any()
    if known is False:
        return NO_FACTS
    there = frozenset(nodes) if isinstance(nodes, list) else None
    # Older snapshots have only the nodes.
    made = {group for group in groups if f"/dev/vfio/noiommu-{group}" in (there or ())}.union(noiommu)
    return HostFacts(
        True, functions, details, groups, mdevs, parents, there, container_dev, noiommu=frozenset(made), numa=numa
    )


def _address(value: object) -> PciAddress:
    return PciAddress.parse(text(value))


def _function(fields: Fields) -> PciFunction:
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


def _detail(fields: Fields) -> PciDetail:
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
    fields.finish()
    return VgpuVf(current, creatable)


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
    value: object, functions: dict[PciAddress, PciFunction], problems: Problems
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
    for key in value if isinstance(value, dict) else ():
        members = fields.many(key, _address, "a PCI address")
        if not (key.isascii() and key.isdigit() and len(key) < 10):
            problems.add("$.groups", f"{key!r} is not the number of a group")
        elif not problems.count and sorted(members) != by_function.get(int(key), []):  # else a function may be wrong
            those = " ".join(map(str, by_function.get(int(key), []))) or "that it is empty"
            problems.add(f"$.groups.{key}", f"not what the functions say: {those}")
        else:
            groups[int(key)] = members
    return groups


def _numa(entries: Iterable[Fields]) -> dict[int, NumaNode]:
    """NUMA nodes by number; a node's distances are listed as by the kernel, one for each node in order."""
    read = []
    for fields in entries:
        number = fields.required("node", natural, "a number", 0)
        cpus = fields.optional("cpus", lambda value: parse_cpuset(text(value)), "a list of CPUs such as 0-31,64-95")
        read.append((number, cpus or frozenset(), fields.many("distances", natural, "a number")))
        fields.finish()
    numbers = sorted(number for number, _, _ in read)
    return {number: NumaNode(cpus, distances_of(numbers, figures)) for number, cpus, figures in read}


def _mdev(fields: Fields) -> Mdev:
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


def _parent(fields: Fields) -> MdevParent:
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
