"""The functions of a host, remembered from scan to scan."""

from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from launcherkit.errors import UnreadableFile
from launcherkit.host.functions import DEVICES, IdentityReader
from launcherkit.host.query import groups_of, scan_identity, with_unread
from launcherkit.host.source import Host, bound_names
from launcherkit.host.tree import DiskTree, why_unread
from launcherkit.model.address import PciAddress
from launcherkit.model.host import HostFacts, PciFunction

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
    """Remembers the functions of a host, for a process that scans it again and again: the device plugin.

    A scan reads a function only if it is new: if its entry in sysfs has another inode than at the last scan, or if a
    VFIO driver was bound to it or unbound since. If the kernel has sent no uevent since then, nothing else is read.

    So the IDs, the group, the physical function and the VFIO driver of a function are always right. Another driver, and
    the NUMA node, are those of the time when the function was read. Scans may run at the same time.

    Args:
        numa: whether NUMA nodes are read, too.
    """

    def __init__(self, *, numa: bool = False) -> None:
        self._numa = numa
        self._last = _Remembered({}, {}, {}, frozenset(), None)

    def scan(self, host: Host, without: Collection[str] = ()) -> HostFacts:
        """As `Host.scan` without details. The next scan tries again what can't be read.

        Drivers and NUMA nodes may be outdated or unknown: `Host.facts` has the present ones.

        Args:
            host: the same each time; a snapshot, a recording or a confined host is read completely.
            without: names of functions that must not be remembered.
        """
        tree = host.tree()
        if tree is None:
            return host.scan(details=False)
        with tree:
            return self._scan(tree, without) if isinstance(tree, DiskTree) else scan_identity(tree)

    def _scan(self, tree: DiskTree, without: Collection[str]) -> HostFacts:
        last, events = self._last, tree.read(EVENTS)
        if events is not None and events == last.events:
            return _identities(last.functions, last.groups, events)
        inodes, bound = tree.inodes(DEVICES), bound_names(tree)
        kept, changed = last.inodes, last.bound ^ bound
        if changed:
            kept = {name: inode for name, inode in kept.items() if name not in changed}
        if inodes == kept:
            self._last = last._replace(events=events)
            return _identities(last.functions, last.groups, events)
        current = {name for name, inode in inodes.items() if kept.get(name) == inode}
        functions, unknown = _read(tree, IdentityReader(numa=self._numa), inodes, last.functions, current)
        groups = groups_of(functions.values())
        unsure = {*map(str, unknown), *(name for name in without if name not in kept)}
        sure = {name: inode for name, inode in inodes.items() if name not in unsure}
        events = None if unsure else events
        self._last = _Remembered(sure, functions, groups, bound, events)
        if unknown:
            groups = with_unread(groups, unknown, tree)
        return _identities(functions, groups, events, unknown)


def _read(
    tree: DiskTree,
    reader: IdentityReader,
    names: Iterable[str],
    remembered: Mapping[PciAddress, PciFunction],
    current: Collection[str],
) -> tuple[dict[PciAddress, PciFunction], dict[PciAddress, str]]:
    """The functions of these names, the remembered ones of those that are ``current``; and why others can't be read."""
    functions: dict[PciAddress, PciFunction] = {}
    unknown: dict[PciAddress, str] = {}
    with tree.below(DEVICES) as devices:
        for name in sorted(names):
            address = reader.address(name)
            if address is None:
                continue
            function = remembered.get(address) if name in current else None
            try:
                function = function or reader.read(devices, name + "/", address)
            except UnreadableFile as problem:
                unknown[address] = why_unread(problem)
            if function is not None:
                functions[address] = function
    return functions, unknown


def _identities(
    functions: Mapping[PciAddress, PciFunction],
    groups: Mapping[int, tuple[PciAddress, ...]],
    events: bytes | None,
    unknown: Mapping[PciAddress, str] = {},
) -> HostFacts:
    return HostFacts(True, functions, {}, groups, {}, {}, None, unknown=unknown, events=events)
