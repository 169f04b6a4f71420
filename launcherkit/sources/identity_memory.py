"""Who the functions of a host are, for a process that looks at it again and again: the device plugin."""

from __future__ import annotations

from typing import TYPE_CHECKING

from launcherkit.errors import UnreadableFile
from launcherkit.model.function import is_vfio_name
from launcherkit.model.host import HostFacts
from launcherkit.model.value import NamedTuple
from launcherkit.sources.identity import DEVICES, DRIVERS, IdentityReader
from launcherkit.sources.sysfs import groups_of, scan_identity, with_unread
from launcherkit.sources.tree import DiskTree, why_unread

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from launcherkit.model.address import PciAddress
    from launcherkit.model.function import PciFunction
    from launcherkit.sources.tree import Tree

EVENTS = "sys/kernel/uevent_seqnum"
"""How many uevents the kernel has sent: one for each new device, and after each binding, unbinding and removal."""


class _Remembered(NamedTuple):
    """What a look left behind."""

    inodes: Mapping[str, int]
    """Of the entries whose functions are remembered, by name."""
    functions: Mapping[PciAddress, PciFunction]
    groups: Mapping[int, tuple[PciAddress, ...]]
    bound: frozenset[str]
    """The names of those that VFIO drivers had."""
    events: bytes | None
    """What `EVENTS` held before the look; None where a part of it must be tried again."""


class IdentityMemory:
    """Who the functions of a host are, read anew only where an entry of sysfs is another one than at the last look.

    A function keeps its IDs, its group and its physical function for as long as it is there. Its driver may change:
    which functions have a VFIO driver is looked at each time, other drivers are those of when it was read. So are NUMA
    nodes with ``numa``, without it they are not read. Looks may overlap: what a look leaves behind holds for as long as
    the entries are the same. Nothing is listed while the kernel has sent no uevent, on a host that counts them.
    """

    def __init__(self, *, numa: bool = False) -> None:
        self._numa = numa
        self._last = _Remembered({}, {}, {}, frozenset(), None)

    def scan(self, tree: Tree, without: Collection[str] = ()) -> HostFacts:
        """As `scan_identity`. What can't be read is tried again by the next look.

        Args:
            tree: of the same host each time. One that isn't on a disk is read as a whole.
            without: names of functions of which what is read now is not to be remembered.
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
    """The functions that VFIO drivers list, by name."""
    drivers = [name for name in tree.names(DRIVERS) if is_vfio_name(name)]
    return frozenset(entry for driver in drivers for entry in tree.names(f"{DRIVERS}/{driver}") if ":" in entry)
