"""A host, whatever its facts come from."""

import os
from collections.abc import Callable, Iterable, Mapping
from typing import ClassVar, Self

from launcherkit.errors import NO_SYSFS, UNREADABLE_FILE
from launcherkit.host.functions import DEVICES, DRIVERS
from launcherkit.host.query import read_needed, scan_identity
from launcherkit.host.tree import DiskTree, Tree
from launcherkit.model.address import MdevAddress, PciAddress
from launcherkit.model.host import NO_FACTS, HostFacts, is_vfio_name
from launcherkit.model.policy import Policy


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
        from launcherkit.host.facts import scan_all
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

    def tree(self) -> Tree | None:
        """The files that are read, which the caller closes; None for a snapshot, a recording and no host."""
        return None if self._root is None else self._tree(self._root)

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

        from launcherkit.host.facts import read_mdevs, read_parents  # a hook reads only what it needs

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

        from launcherkit.host.facts import scan_all  # a hook reads only what it needs

        with self._tree(self._root) as tree:
            return scan_all(tree) if details else scan_identity(tree)

    def __eq__(self, other: object) -> bool:
        return self.scan() == other.scan() if isinstance(other, Host) else NotImplemented

    __hash__: ClassVar[None] = None  # type: ignore[assignment]  # equality depends on what is read, which may change

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
