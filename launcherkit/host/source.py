"""A host, whatever its facts come from."""

import os
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import NamedTuple, Self

from launcherkit.errors import NO_SYSFS, UNREADABLE_FILE, UnreadableFile
from launcherkit.host.facts import groups_of, read_mdevs, read_parents, scan_all, scan_identity, with_unread
from launcherkit.host.identity import DEVICES, DRIVERS, IdentityReader
from launcherkit.host.query import read_needed
from launcherkit.host.tree import DiskTree, Tree, why_unread
from launcherkit.model.address import MdevAddress, PciAddress
from launcherkit.model.host import NO_FACTS, HostFacts, PciFunction, is_vfio_name
from launcherkit.model.policy import Policy

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


def bound_names(tree: Tree) -> frozenset[str]:
    """The names of the functions bound to VFIO drivers."""
    drivers = [name for name in tree.names(DRIVERS) if is_vfio_name(name)]
    return frozenset(entry for driver in drivers for entry in tree.names(f"{DRIVERS}/{driver}") if ":" in entry)


HOST = "LAUNCHERKIT_HOST"


class Host:
    """A source of host facts: sysfs, a snapshot, a recording, or none at all.

    Class methods create it. Two hosts are equal if their `scan` is.
    """

    __slots__ = ("_confined", "_facts", "_followed", "_root", "_source")

    def __init__(self, source: str, root: str | None, facts: HostFacts, *, confined: bool = False) -> None:
        self._confined = confined
        self._followed: Callable[[str], Tree] | None = None
        self._source = source
        self._root = root
        self._facts = facts

    @classmethod
    def from_sysfs(cls, root: str | os.PathLike[str] = "/", *, confined: bool = False) -> Self:
        """A host whose ``sys/`` and ``dev/`` are below ``root``; they are read for each query.

        Args:
            root: a directory.
            confined: read nothing outside the directory, wherever its links point: `ConfinedTree`.

        Raises:
            NoSysfs: ``<root>/sys/bus/pci/devices`` doesn't exist.
        """
        path = os.fspath(root) or "."
        with open_tree(path, confined=confined) as tree:
            exists = tree.exists(DEVICES + "/.")
        if not exists:
            raise NO_SYSFS(
                f"{os.path.join(path, DEVICES)}: no such directory",
                "Give the root of a file system with sys/ below it, mount the host's /sys there, "
                "or give a snapshot made by `launcherkit snapshot`.",
                file=path,
            )
        return cls(f"from_sysfs({path!r})", path, NO_FACTS, confined=confined)

    @classmethod
    def from_snapshot(cls, path: str | os.PathLike[str]) -> Self:
        """A host from a file of ``launcherkit snapshot``.

        Raises:
            UnreadableFile: the file can't be read.
            BAD_SNAPSHOT, SeveralErrors: everything that is wrong in it, up to twenty errors.
        """
        from launcherkit.host.snapshot import read_snapshot

        name = os.fspath(path)
        return cls(f"from_snapshot({name!r})", None, read_snapshot(name))

    @classmethod
    def from_umockdev(cls, path: str | os.PathLike[str]) -> Self:
        """A host from a recording of ``umockdev-record``.

        Raises:
            UnreadableFile: the file can't be read.
            BAD_RECORDING, SeveralErrors: everything that is wrong in it, up to twenty errors.
        """
        from launcherkit.host.umockdev import read_recording

        name = os.fspath(path)
        facts = scan_all(read_recording(name))._replace(container_dev=False)  # a recording has few nodes of any /dev
        return cls(f"from_umockdev({name!r})", None, facts)

    @classmethod
    def none(cls) -> Self:
        """A host about which nothing is known (C3)."""
        return cls("none()", None, NO_FACTS)

    def followed(self, follow: Callable[[str], Tree]) -> "Host":
        """The same host, read through a tree that monitors what is read; not for a confined one."""
        assert not self._confined
        host = Host(self._source, self._root, self._facts)
        host._followed = follow
        return host

    def _tree(self, root: str) -> Tree:
        return open_tree(root, confined=self._confined) if self._followed is None else self._followed(root)

    def facts(
        self,
        addresses: Iterable[PciAddress],
        mdevs: Iterable[MdevAddress] = (),
        *,
        places: bool = False,
        bars: bool = True,
        topology: bool = False,
    ) -> HostFacts:
        """At least the facts that the rules need to attach these devices.

        From sysfs these are: the named functions, those in their slots, all members of the IOMMU groups of both, and
        the first VF of a physical function with VFs; the named mdevs; and which VFIO nodes of all these exist.
        Functions and mdevs that don't exist are left out; unreadable ones are in ``unknown``.

        Facts that no rule needs are not read, but `scan` reads them: revision, driver_override, has_rom and
        reset_methods are empty, and so are the resources of HD audio, and vfio_dev if there is a ``dev/`` without
        ``iommu``. Only with ``places`` or ``topology`` functions have their NUMA nodes, and details their parents; with
        ``topology`` also all resources, and the host's NUMA nodes are read (P4). Without ``bars`` there are no
        resources: for those who don't size a guest's window (P5).

        From a snapshot or a recording, all its facts are returned, and ``recorded`` is set.
        """
        if self._root is None:
            return self._facts._replace(recorded=self.recorded)

        with self._tree(self._root) as tree:
            return read_needed(tree, addresses, mdevs, places=places, bars=bars, topology=topology)

    @property
    def recorded(self) -> bool:
        """Whether it is a snapshot or a recording."""
        return self._root is None and self._facts.known

    def bound_to_vfio(self) -> list[PciAddress]:
        """The functions bound to VFIO drivers, in order; only the drivers' folders are read."""
        if self._root is None:
            return sorted(each.address for each in self._facts.functions.values() if is_vfio_name(each.driver))

        with self._tree(self._root) as tree:
            return sorted(map(PciAddress.parse, bound_names(tree)), key=tuple)  # plain tuples are quicker to compare

    def mdevs(self) -> HostFacts:
        """Only the mediated devices, and the parents on which they can be created."""
        if self._root is None:
            return NO_FACTS._replace(known=True, mdevs=self._facts.mdevs, mdev_parents=self._facts.mdev_parents)

        with self._tree(self._root) as tree:
            return NO_FACTS._replace(known=True, mdevs=read_mdevs(tree), mdev_parents=read_parents(tree))

    def scan(self, *, details: bool = True) -> HostFacts:
        """Everything about the host.

        Args:
            details: False gives only functions and groups, which is quicker; then ``details``, ``mdevs`` and
                ``mdev_parents`` are empty, and ``nodes`` is None.
        """
        if self._root is None:
            if details:
                return self._facts
            return NO_FACTS._replace(
                known=self._facts.known, functions=self._facts.functions, groups=self._facts.groups
            )

        with self._tree(self._root) as tree:
            return scan_all(tree) if details else scan_identity(tree)

    def identities(self, memory: IdentityMemory, without: Collection[str] = ()) -> HostFacts:
        """As `scan` without details, using what ``memory`` knows; a memory is for only one host.

        Functions named in ``without`` are not remembered. Drivers and NUMA nodes may be outdated or unknown: `facts`
        has the present ones.
        """
        if self._root is None:
            return self.scan(details=False)
        with self._tree(self._root) as tree:
            return memory.scan(tree, without)

    def __eq__(self, other: object) -> bool:
        return self.scan() == other.scan() if isinstance(other, Host) else NotImplemented

    __hash__ = None  # type: ignore[assignment]  # equality depends on what is read, which may change

    def __repr__(self) -> str:
        return f"Host.{self._source}"


def open_tree(root: str, *, confined: bool, strict: bool = True) -> Tree:
    """The files below a root; the caller closes it. Arguments as for `Host.from_sysfs` and `DiskTree`."""
    if not confined:
        return DiskTree(root, strict=strict)
    from launcherkit.host.confined import ConfinedTree

    return ConfinedTree(root)


def open_host(text: str, *, confined: bool = False) -> Host:
    """The host that ``--host`` means: ``none``, a directory, ``X.umockdev``, else a snapshot.

    ``confined`` is as for `Host.from_sysfs`.

    Raises:
        UnreadableFile: there is nothing by that name.
        NoSysfs, BAD_SNAPSHOT, BAD_RECORDING: see the class methods of `Host`.
    """
    if text == "none":
        return Host.none()
    if os.path.isdir(text):
        return Host.from_sysfs(text, confined=confined)
    if not os.path.exists(text):
        raise UNREADABLE_FILE(
            f"{text or repr(text)}: no such file or directory",
            "Give `none`, a directory with sys/ below it, a snapshot by `launcherkit snapshot`, or a file *.umockdev.",
            file=text,
        )
    return Host.from_umockdev(text) if text.endswith(".umockdev") else Host.from_snapshot(text)


class DeferredHost:
    """A host that is opened when facts are asked for: a VM without devices needs none."""

    def __init__(self, text: str) -> None:
        self.text = text

    def facts(
        self, addresses: Iterable[PciAddress], mdevs: Iterable[MdevAddress] = (), *, topology: bool = False
    ) -> HostFacts:
        """As `Host.facts`; also raises the errors of `open_host`."""
        return open_host(self.text).facts(addresses, mdevs, topology=topology)


def host_of(option: str | None, env: Mapping[str, str], policy: Policy) -> DeferredHost:
    """The host that ``--host``, ``LAUNCHERKIT_HOST`` or the policy's ``sysfsRoot`` names, in this order."""
    return DeferredHost(option or env.get(HOST) or policy.sysfs_root)
