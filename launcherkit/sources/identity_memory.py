"""Remembers the functions of a host, for a process that reads it again and again: the device plugin."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

from launcherkit.errors import UnreadableFile
from launcherkit.model.address import PciAddress
from launcherkit.model.function import PciFunction, is_vfio_name
from launcherkit.model.host import HostFacts
from launcherkit.sources.file_tree import DiskTree, Tree, why_unread
from launcherkit.sources.identity import DEVICES, DRIVERS, IdentityReader
from launcherkit.sources.sysfs import groups_of, scan_identity, with_unread

EVENTS = "sys/kernel/uevent_seqnum"
"""The file with the number of uevents that the kernel has sent: one for each new device, binding, unbinding and
removal."""


class _Remembered(NamedTuple):
    """The result of a scan."""

    inodes: Mapping[str, int]
    """The inodes of the entries whose functions are remembered, by name."""
    functions: Mapping[PciAddress, PciFunction]
    groups: Mapping[int, tuple[PciAddress, ...]]
    bound: frozenset[str]
    """The names of functions that were bound to VFIO drivers."""
    events: bytes | None
    """The content of `EVENTS` before the scan; None if a part of the scan must be repeated."""


class IdentityMemory:
    """The functions of a host, read again only if their entry in sysfs is another one than at the last scan.

    A function keeps its IDs, its group and its physical function as long as it exists. Its driver may change: VFIO
    drivers are checked by each scan, but other drivers, and NUMA nodes, are those of the time when the function was
    read; without ``numa``, NUMA nodes are not read. Scans may overlap: results stay valid as long as the entries are
    the same. If the host counts uevents and there is no new one, a scan lists nothing.
    """

    def __init__(self, *, numa: bool = False) -> None:
        self._numa = numa
        self._last = _Remembered({}, {}, {}, frozenset(), None)

    def scan(self, tree: Tree, without: Collection[str] = ()) -> HostFacts:
        """As `scan_identity`. The next scan tries again what can't be read.

        Args:
            tree: of the same host each time; one that isn't a `DiskTree` is read completely.
            without: names of functions that must not be remembered.
        """
        if not isinstance(tree, DiskTree):
            return scan_identity(tree)
        last, events = self._last, tree.read(EVENTS)
        if events is not None and events == last.events:
            return HostFacts(True, last.functions, {}, last.groups, {}, {}, None, events=events)
        inodes, bound = tree.inodes(DEVICES), bound_names(tree)
        kept, changed = last.inodes, last.bound ^ bound
        if changed:
            kept = {name: inode for name, inode in kept.items() if name not in changed}
        unknown: dict[PciAddress, str] = {}
        if inodes == kept:
            self._last = last._replace(events=events)
            return HostFacts(True, last.functions, {}, last.groups, {}, {}, None, events=events)
        reader, functions = IdentityReader(numa=self._numa), {}
        with tree.below(DEVICES) as devices:
            for name in sorted(inodes):
                address = reader.address(name)
                if address is None:
                    continue
                function = last.functions.get(address) if kept.get(name) == inodes[name] else None
                if function is None:
                    try:
                        function = reader.read(devices, name + "/", address)
                    except UnreadableFile as problem:
                        unknown[address] = why_unread(problem)
                if function is not None:
                    functions[address] = function
        groups = groups_of(functions.values())
        unsure = {*map(str, unknown), *(name for name in without if name not in kept)}
        sure = {name: inode for name, inode in inodes.items() if name not in unsure}
        events = None if unsure else events
        self._last = _Remembered(sure, functions, groups, bound, events)
        if unknown:
            groups = with_unread(groups, unknown, tree)
        return HostFacts(True, functions, {}, groups, {}, {}, None, unknown=unknown, events=events)


def bound_names(tree: Tree) -> frozenset[str]:
    """The names of the functions bound to VFIO drivers."""
    drivers = [name for name in tree.names(DRIVERS) if is_vfio_name(name)]
    return frozenset(entry for driver in drivers for entry in tree.names(f"{DRIVERS}/{driver}") if ":" in entry)
