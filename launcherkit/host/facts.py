"""Reads a whole host from a tree with ``sys/`` and ``dev/``."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from launcherkit.errors import UnreadableFile
from launcherkit.host.functions import DetailReader
from launcherkit.host.identity import DEVICES, DRIVERS, IdentityReader, base_name, group_number, number, text
from launcherkit.host.tree import Tree, why_unread
from launcherkit.model.address import MdevAddress, PciAddress, parse_cpuset
from launcherkit.model.host import HostFacts, Mdev, MdevParent, MdevType, NumaNode, PciFunction

# The host's NUMA nodes: their CPUs and distances (P4).

_NODES = "sys/devices/system/node"


def read_numa(tree: Tree) -> dict[int, NumaNode]:
    """The nodes by number; empty if the kernel was built without NUMA."""
    numbers = sorted(
        int(name[4:])
        for name in tree.names(_NODES)
        if name.startswith("node") and name[4:].isascii() and name[4:].isdigit() and len(name) < 10
    )
    with tree.below(_NODES) as nodes:
        return {number: _read_node(nodes, f"node{number}", numbers) for number in numbers}


def _read_node(nodes: Tree, name: str, numbers: list[int]) -> NumaNode:
    try:
        cpus = parse_cpuset((nodes.read(f"{name}/cpulist") or b"").decode("ascii", "replace"))
    except ValueError:
        cpus = frozenset()
    figures = (nodes.read(f"{name}/distance") or b"").split()
    readable = all(figure.isdigit() and len(figure) < 10 for figure in figures)
    return NumaNode(cpus, distances_of(numbers, [int(figure) for figure in figures]) if readable else {})


def distances_of(numbers: Sequence[int], figures: Sequence[int]) -> dict[int, int]:
    """The distances by node, from one figure for each node in order; empty if the numbers don't match."""
    return dict(zip(numbers, figures, strict=True)) if len(numbers) == len(figures) else {}


# Mediated devices, and the devices on which they can be created.

_DEVICES = "sys/bus/mdev/devices"
_PARENTS = "sys/class/mdev_bus"


def read_mdev(tree: Tree, uuid: str) -> Mdev | None:
    """The mdev with that UUID; None if it doesn't exist."""
    device = f"{_DEVICES}/{uuid}"
    type_id = base_name(tree.link(device + "/mdev_type"))
    if type_id is None:
        return None
    path = (tree.link(device) or "").split("/")
    return Mdev(
        uuid,
        path[-2] if len(path) > 1 else "",
        type_id,
        text(tree.read(device + "/mdev_type/name")),
        text(tree.read(device + "/mdev_type/device_api")),
        group_number(tree.link(device + "/iommu_group")),
    )


def read_mdevs(tree: Tree) -> dict[str, Mdev]:
    """Every mdev, by UUID."""
    mdevs = {}
    for name in tree.names(_DEVICES):
        try:
            uuid = MdevAddress.parse(name).uuid
        except ValueError:
            continue
        mdev = read_mdev(tree, name)
        if mdev is not None:
            mdevs[uuid] = mdev._replace(uuid=uuid)
    return mdevs


def read_parents(tree: Tree) -> dict[str, MdevParent]:
    """Every device on which mdevs can be created, with its types, by name."""
    parents = {}
    for name in tree.names(_PARENTS):
        types = f"{_PARENTS}/{name}/mdev_supported_types"
        offered = tuple(_read_type(tree, types, type_id) for type_id in tree.names(types))
        try:
            address = PciAddress.parse(name)
        except ValueError:
            address = None
        parents[name] = MdevParent(name, address, offered)
    return parents


def _read_type(tree: Tree, types: str, type_id: str) -> MdevType:
    return MdevType(
        type_id,
        text(tree.read(f"{types}/{type_id}/name")),
        text(tree.read(f"{types}/{type_id}/device_api")),
        number(tree.read(f"{types}/{type_id}/available_instances")),
        text(tree.read(f"{types}/{type_id}/description")),
    )


# The machine's identity, which only ``launcherkit snapshot --all`` shows.

_FILES = {
    "hostname": "proc/sys/kernel/hostname",
    "kernel": "proc/sys/kernel/osrelease",
    "vendor": "sys/class/dmi/id/sys_vendor",
    "product": "sys/class/dmi/id/product_name",
    "board": "sys/class/dmi/id/board_name",
    "bios": "sys/class/dmi/id/bios_version",
    "serial_number": "sys/class/dmi/id/product_serial",
}


def read_machine(tree: Tree) -> dict[str, object]:
    """Host name, kernel, DMI names and serial numbers, as far as they exist and are readable."""
    machine: dict[str, object] = {key: value for key, path in _FILES.items() if (value := text(tree.read(path)))}
    with tree.below(DEVICES) as devices:
        serials = {name: text(devices.read(f"{name}/serial_number")) for name in devices.names("")}
    numbers = {name: serial for name, serial in serials.items() if serial}
    if numbers:
        machine["pci_serial_numbers"] = numbers
    return machine


# The device nodes below a tree's ``dev/``, and whether that is a container's.


def read_nodes(tree: Tree) -> frozenset[str] | None:
    """The paths of VFIO's device nodes; None if the tree has no ``dev/``."""
    nodes = ["/dev/vfio/" + name for name in tree.names("dev/vfio") if name != "devices"]
    nodes += ["/dev/vfio/devices/" + name for name in tree.names("dev/vfio/devices")]
    if tree.exists("dev/iommu"):
        nodes.append("/dev/iommu")
    return frozenset(nodes) if nodes or tree.exists("dev") else None


def is_noiommu(tree: Tree, group: int) -> bool:
    """Whether VFIO made a PCI function's group itself, in its no-IOMMU mode (V1).

    Linux names such a group (``drivers/vfio/group.c``). It names those of mediated devices likewise, in every mode.
    """
    return (tree.read(f"sys/kernel/iommu_groups/{group}/name", 32) or b"").rstrip() == b"vfio-noiommu"


_EVERY_HOSTS = ("dev/kmsg", "dev/mem", "dev/cpu_dma_latency")
"""Nodes that the kernel itself makes. Runtimes give them only to privileged containers, with all other nodes."""


def is_container_dev(tree: Tree) -> bool:
    """Whether a container runtime made ``dev/``, with only the nodes that were given to the container (S2)."""
    return tree.exists("dev") and not any(tree.exists(node) for node in _EVERY_HOSTS)


def scan_identity(tree: Tree) -> HostFacts:
    """All functions and groups, without details, mdevs and nodes."""
    reader = IdentityReader()
    functions = {}
    unknown: dict[PciAddress, str] = {}
    with tree.below(DEVICES) as devices:
        for name in devices.names(""):
            address = reader.address(name)
            if address is None:
                continue
            try:
                function = reader.read(devices, name + "/", address)
            except UnreadableFile as problem:
                unknown[address] = why_unread(problem)
                continue
            if function is not None:
                functions[address] = function
    groups = groups_of(functions.values())
    if unknown:
        groups = with_unread(groups, unknown, tree)
    return HostFacts(True, functions, {}, groups, {}, {}, None, unknown=unknown)


def scan_all(tree: Tree) -> HostFacts:
    """Everything about the host."""

    facts = scan_identity(tree)
    details = {}
    unknown = dict(facts.unknown)
    with tree.below(DEVICES) as devices, tree.below(DRIVERS) as drivers:
        reader = DetailReader(drivers, IdentityReader())
        for address, function in facts.functions.items():
            name = str(address)
            with devices.below(name) as directory:
                try:
                    details[address] = reader.whole(directory, function, devices.link(name))
                except UnreadableFile as problem:
                    unknown[address] = why_unread(problem)
    return facts._replace(
        details=details,
        mdevs=read_mdevs(tree),
        mdev_parents=read_parents(tree),
        nodes=read_nodes(tree),
        container_dev=is_container_dev(tree),
        unknown=unknown,
        noiommu=frozenset(group for group in facts.groups if is_noiommu(tree, group)),
        numa=read_numa(tree),
    )


def with_unread(
    groups: dict[int, tuple[PciAddress, ...]], unknown: Iterable[PciAddress], tree: Tree
) -> dict[int, tuple[PciAddress, ...]]:
    """The groups, with members added whose own link to their group can't be read."""
    missing = {str(address): address for address in unknown}
    members_of = {group: set(members) for group, members in groups.items()}
    for name in tree.names("sys/kernel/iommu_groups"):
        if name.isascii() and name.isdigit():
            members = missing.keys() & set(tree.names(f"sys/kernel/iommu_groups/{name}/devices"))
            if members:
                members_of.setdefault(int(name), set()).update(missing[member] for member in members)
    return {group: tuple(sorted(members)) for group, members in sorted(members_of.items())}


def groups_of(functions: Iterable[PciFunction]) -> dict[int, tuple[PciAddress, ...]]:
    """The members of each group, by the functions' own links."""
    members: dict[int, list[PciAddress]] = {}
    for function in functions:
        if function.iommu_group is not None:
            members.setdefault(function.iommu_group, []).append(function.address)
    return {group: tuple(sorted(addresses)) for group, addresses in sorted(members.items())}
