"""Who uses a function: a pod, a process, or the host itself. A function in use is never taken away (K8)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from launcherkit.errors import UnreadableFile
from launcherkit.model.address import PciAddress
from launcherkit.model.host import HostFacts
from launcherkit.resolve.vfio import vfio_nodes
from launcherkit.sources.file_tree import DiskTree
from launcherkit.sources.host import Host
from launcherkit.sources.identity import hexadecimal
from launcherkit_plugin.host.driver_nodes import driver_nodes, nvidia_uuids
from launcherkit_plugin.host.processes import OpenNodes
from launcherkit_plugin.model.device import Usage, without_replica
from launcherkit_plugin.model.errors import DeviceHeld, HoldersUnknown

if TYPE_CHECKING:
    from launcherkit.sources.file_tree import Tree

_FORCE = "`launcherkit-plugin unbind --force`"


class Holders:
    """Checks that no pod and no process uses functions: a `launcherkit_plugin.binding.binder.CheckFree`.

    Args:
        host: facts are read from here at each check.
        usage: returns which pod holds which device.
        open_nodes: returns which process has which device node open, of VFIO's and of those that it is given.
        root: where the host's ``sys/`` is.
        proc: where its proc file system is mounted.
        unknown_is_free: never raise HoldersUnknown.
    """

    def __init__(
        self,
        host: Host,
        usage: Callable[[], Usage],
        open_nodes: Callable[[Mapping[str, tuple[int, int]]], OpenNodes],
        *,
        root: str,
        proc: str,
        unknown_is_free: bool = False,
    ) -> None:
        self._host = host
        self._usage = usage
        self._open_nodes = open_nodes
        self._root = root
        self._proc = proc
        self._unknown_is_free = unknown_is_free

    def __call__(self, addresses: Sequence[PciAddress], *, giving_back: bool) -> None:
        """See `launcherkit_plugin.binding.binder.CheckFree`."""
        if not giving_back:
            self.users(addresses)
            return
        facts, usage, nodes = self._host.facts(addresses), self._usage(), self._open_nodes({})
        _refuse_held(addresses, holders_of(addresses, facts, usage, nodes))
        if self._unknown_is_free:
            return
        who = ", ".join(map(str, addresses))
        for address in _near(addresses, facts) & facts.unknown.keys():
            raise HoldersUnknown(
                f"it is unknown whether somebody has {address}: {facts.unknown[address]}",
                f"Fix what keeps it from being read; or, if you know that nobody has it: {_FORCE}.",
                device=str(address),
            )
        if not usage.known:
            raise HoldersUnknown(
                f"it is unknown whether a pod has {who}: neither PodResources nor the kubelet's checkpoint can be read",
                "Name their places with --pod-resources or --kubelet-dir; or, if you know that no pod has them: "
                f"{_FORCE}.",
                device=who,
            )
        if not nodes.complete:
            raise HoldersUnknown(
                f"it is unknown whether a process has {who} open: {nodes.unseen}",
                "Run this as root in the host's PID namespace (in a pod: hostPID); or, if you know that nobody has "
                f"them: {_FORCE}.",
                device=who,
            )

    def users(self, addresses: Sequence[PciAddress]) -> OpenNodes:
        """Check that no pod and no process uses functions by their present drivers; returns what processes have open.

        Raises:
            DeviceHeld: a pod or a process has one of them.
            UnreadableFile: their device nodes can't be determined.
        """
        devices = driver_nodes(self._root, self._proc, addresses)
        nodes, usage = self._open_nodes(devices), by_address(self._usage(), nvidia_uuids(self._proc))
        _refuse_held(addresses, holders_of(addresses, self._host.facts(addresses), usage, nodes, devices))
        return nodes


def _refuse_held(addresses: Sequence[PciAddress], holders: Iterator[str]) -> None:
    holder = next(holders, None)
    if holder is not None:
        raise DeviceHeld(
            holder,
            "End that pod or process first: a device in use is never taken away.",
            device=", ".join(map(str, addresses)),
        )


def holders_of(
    addresses: Sequence[PciAddress], host: HostFacts, usage: Usage, nodes: OpenNodes, own: Collection[str] = ()
) -> Iterator[str]:
    """Sentences that say who uses some functions.

    Args:
        addresses: functions.
        host: facts about them, their groups and slots.
        usage: which pod holds which device.
        nodes: which process has which node open.
        own: the functions' nodes by the drivers that they have.
    """
    near = _near(addresses, host)
    for devices in usage.kept.values():
        for device, holder in devices.items():
            address = address_in(device)
            if address in near:
                yield f"{address} is held by {holder}"
    for node in sorted({*own, *(node for address in addresses for node in vfio_nodes(address, host))}):
        for process in nodes.holders.get(node, ()):
            yield f"{node} is open in {process}"


def by_address(usage: Usage, uuids: Mapping[str, str]) -> Usage:
    """Usage with UUIDs of cards replaced by addresses. NVIDIA's device plugin and ours use UUIDs as device IDs.

    Args:
        usage: which pod holds which device.
        uuids: from UUID to address.
    """
    held = {
        name: {uuids.get(without_replica(device), device): holder for device, holder in devices.items()}
        for name, devices in usage.kept.items()
    }
    return Usage(usage.source, held)


def _near(addresses: Iterable[PciAddress], host: HostFacts) -> set[PciAddress]:
    """These functions and those of their groups and slots: whoever uses one of them may use the others."""
    near = set(addresses)
    for function in [host.functions[address] for address in near if address in host.functions]:
        if function.iommu_group is not None:
            near.update(host.groups.get(function.iommu_group, ()))
        if not function.is_vf:
            near.update(each.address for each in host.slot_functions(function.address) if not each.is_vf)
    return near


def address_in(device: str) -> PciAddress | None:
    """The address in a device ID, of ours or of another plugin; None if the ID is no address."""
    try:
        return PciAddress.parse(without_replica(device))
    except ValueError:
        return None


_PROC_BYTES = 1 << 24
"""The most that is read of a file. ``mountinfo`` of a node with thousands of pods has a megabyte."""

_IFF_UP = 1


class HostUse(NamedTuple):
    """What a function is used for."""

    text: str
    """``nvme0n1p2 is mounted at /srv``."""
    by_guests: bool = False
    """Guests may use a part of it, such as an mdev; then not even ``--force`` takes it away."""


def read_uses(root: str, proc: str, addresses: Iterable[PciAddress]) -> dict[PciAddress, tuple[HostUse, ...]]:
    """What the host uses each function for; an empty tuple for an idle one.

    Args:
        root: the directory that contains the host's ``sys``.
        proc: where its proc file system is mounted.
        addresses: functions.
    """
    with DiskTree(root) as tree:
        return {address: tuple(_uses(tree, proc, address)) for address in dict.fromkeys(addresses)}


def _uses(tree: Tree, proc: str, address: PciAddress) -> Iterator[HostUse]:
    """The uses of one function. If something can't be read, that counts as a use (T2)."""
    looks: tuple[tuple[Callable[[], Iterator[str]], bool], ...] = (
        (lambda: _networks(tree, address), False),
        (lambda: _disks(tree, proc, address), False),
        (lambda: _mdevs(tree, address), True),
    )
    for look, by_guests in looks:
        try:
            for text in look():
                yield HostUse(text, by_guests)
        except UnreadableFile as problem:
            yield HostUse(f"its use is unknown: {problem.message}", by_guests)


def _networks(tree: Tree, address: PciAddress) -> Iterator[str]:
    """Interfaces that are up. The function's own directory lists them even where ``sys/class/net`` is missing."""
    device = f"sys/bus/pci/devices/{address}/net"
    own = {name: f"{device}/{name}" for name in tree.names(device)}
    places = own | {name: f"sys/class/net/{name}" for name in _below(tree, "sys/class/net", f"/{address}/")}
    for name, place in places.items():
        flags = hexadecimal(tree.read(f"{place}/flags", 32), 0xFFFFFFFF)
        if flags is None:
            yield f"network interface {name} may be up: {place}/flags can't be read"
        elif flags & _IFF_UP:
            yield f"network interface {name} is up"


def _disks(tree: Tree, proc: str, address: PciAddress) -> Iterator[str]:
    """Block devices and partitions that are mounted, used as swap, or part of another device (RAID, LVM)."""
    blocks = _blocks(tree, address)
    if not blocks:
        return
    mounts, swapped = _mounts(proc), _swapped(proc)
    for name in blocks:
        number = (tree.read(f"sys/class/block/{name}/dev", 32) or b"").decode(errors="replace").strip()
        where = mounts.get(number) or mounts.get(f"/dev/{name}")
        if where is not None:
            yield f"{name} is mounted at {where}"
        if f"/dev/{name}" in swapped:
            yield f"{name} is swapped to"
        holders = tree.names(f"sys/class/block/{name}/holders")
        if holders:
            yield f"{name} is part of {', '.join(holders)}"


def _blocks(tree: Tree, address: PciAddress) -> list[str]:
    found = _below(tree, "sys/class/block", f"/{address}/")
    # With multipath, an NVMe namespace is not below its controller but below the controller's subsystem.
    for controller in tree.names(f"sys/bus/pci/devices/{address}/nvme"):
        for subsystem in tree.names("sys/class/nvme-subsystem"):
            if controller in tree.names(f"sys/class/nvme-subsystem/{subsystem}"):
                found += _below(tree, "sys/class/block", f"/{subsystem}/")
    return list(dict.fromkeys(found))


def _below(tree: Tree, directory: str, part: str) -> list[str]:
    """The entries of a class directory whose links contain ``part``: their devices are below that one."""
    return [name for name in tree.names(directory) if part in (tree.link(f"{directory}/{name}") or "")]


def _mdevs(tree: Tree, address: PciAddress) -> Iterator[str]:
    types = f"sys/bus/pci/devices/{address}/mdev_supported_types"
    count = sum(len(tree.names(f"{types}/{name}/devices")) for name in tree.names(types))
    if count:
        yield f"it has mediated devices ({count})"


def _mounts(proc: str) -> dict[str, str]:
    """The host's mount points, from ``mountinfo`` of process 1, by ``major:minor`` and by device path.

    The path is needed because btrfs reports anonymous device numbers.

    Raises:
        UnreadableFile: it is unknown what is mounted.
    """
    found: dict[str, str] = {}
    lines = _lines(f"{proc}/1/mountinfo")
    if lines is None:
        raise UnreadableFile(
            f"{proc}/1/mountinfo is not there", "Mount the host's proc file system there.", file=f"{proc}/1/mountinfo"
        )
    for line in lines:
        fields = line.split()
        if len(fields) < 10 or "-" not in fields[6:-2]:
            continue
        source = fields[fields.index("-", 6) + 2]
        for key in (fields[2], source):
            if key.startswith("/dev/") or not key.startswith("0:"):
                found.setdefault(key, fields[4])
    return found


def _swapped(proc: str) -> set[str]:
    """The paths of the swap devices. A kernel without swap has no ``swaps`` file."""
    return {line.split()[0] for line in (_lines(f"{proc}/swaps") or [])[1:] if line.strip()}


def _lines(path: str) -> list[str] | None:
    """The lines of a file of proc, which the kernel gives a page at a time; None if there is no such file.

    Raises:
        UnreadableFile: it exists and can't be read.
    """
    try:
        with open(path, "rb") as file:
            return file.read(_PROC_BYTES).decode(errors="replace").splitlines()
    except FileNotFoundError:
        return None
    except OSError as problem:
        raise UnreadableFile(f"{path}: {problem.strerror}", "Run it as root on the host.", file=path) from problem
