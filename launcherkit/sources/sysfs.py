"""Reads a whole host from a tree with ``sys/`` and ``dev/``."""

from __future__ import annotations

from collections.abc import Iterable

from launcherkit.errors import UnreadableFile
from launcherkit.model.address import PciAddress
from launcherkit.model.function import PciFunction
from launcherkit.model.host import HostFacts
from launcherkit.sources.detail import DetailReader
from launcherkit.sources.device_nodes import is_container_dev, is_noiommu, read_nodes
from launcherkit.sources.file_tree import Tree, why_unread
from launcherkit.sources.identity import DEVICES, DRIVERS, IdentityReader


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
    from launcherkit.sources.mdev import read_mdevs, read_parents  # the hook rarely gets here
    from launcherkit.sources.numa import read_numa

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
    found = {group: set(members) for group, members in groups.items()}
    for name in tree.names("sys/kernel/iommu_groups"):
        if name.isascii() and name.isdigit():
            members = missing.keys() & set(tree.names(f"sys/kernel/iommu_groups/{name}/devices"))
            if members:
                found.setdefault(int(name), set()).update(missing[member] for member in members)
    return {group: tuple(sorted(members)) for group, members in sorted(found.items())}


def groups_of(functions: Iterable[PciFunction]) -> dict[int, tuple[PciAddress, ...]]:
    """The members of each group, by the functions' own links."""
    members: dict[int, list[PciAddress]] = {}
    for function in functions:
        if function.iommu_group is not None:
            members.setdefault(function.iommu_group, []).append(function.address)
    return {group: tuple(sorted(addresses)) for group, addresses in sorted(members.items())}
