"""What the host itself uses a function for: mounted disks, swap space, network interfaces (V1, K8).

A function in use is not taken from its driver, neither by binding it to vfio-pci nor by libvirt's ``managed='yes'``.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

from launcherkit.errors import UNREADABLE_FILE, UnreadableFile
from launcherkit.host.functions import hexadecimal
from launcherkit.host.tree import DiskTree, Tree
from launcherkit.model.address import PciAddress

USB_DEVICES = "sys/bus/usb/devices"
_PROC_BYTES = 1 << 24
"""The most that is read of a file. ``mountinfo`` of a node with thousands of pods has a megabyte."""

_IFF_UP = 1


@dataclass(frozen=True, slots=True)
class HostUse:
    """What a function is used for."""

    text: str
    """``nvme0n1p2 is mounted at /srv``."""
    vital: bool = False
    """Something is mounted or swapped to there, or the default route goes through it."""
    by_guests: bool = False
    """Guests may use a part of it, such as an mdev; then not even ``--force`` takes it away."""


def read_uses(
    root: str, proc: str, addresses: Iterable[PciAddress], *, process: str = "1"
) -> dict[PciAddress, tuple[HostUse, ...]]:
    """What the host uses each function for; an empty tuple for an idle one.

    Args:
        root: the directory that contains the host's ``sys``.
        proc: where its proc file system is mounted.
        addresses: functions.
        process: the one in ``proc`` whose mounts and routes count.
    """
    with DiskTree(root) as tree:
        return {address: tuple(_uses(tree, proc, process, address)) for address in dict.fromkeys(addresses)}


def read_usb_uses(root: str, proc: str, names: Iterable[str], *, process: str = "1") -> dict[str, tuple[HostUse, ...]]:
    """The same of USB devices, by their names in sysfs, ``1-1.3``.

    A keyboard of the host's console counts as a use, and so does what can't be seen here (T2): who mounts a disk, and
    an interface of another network namespace.
    """
    with DiskTree(root) as tree:
        return {name: tuple(_usb_uses(tree, proc, process, name)) for name in names}


def _usb_uses(tree: Tree, proc: str, process: str, name: str) -> Iterator[HostUse]:
    blocks = _blocks(tree, name)
    if blocks and not shows_host(proc):
        yield HostUse(f"whether {', '.join(blocks)} is mounted can't be seen here", vital=True)
    else:
        yield from _known_uses(_looks(tree, proc, process, name))
    parts = [f"{USB_DEVICES}/{part}" for part in tree.names(USB_DEVICES) if part.startswith(f"{name}:")]
    if any(tree.exists(f"{part}/net") and not tree.names(f"{part}/net") for part in parts):
        # The kernel shows an interface only in its own network namespace, and the directory for it in all.
        yield HostUse("its network interface is in another network namespace")
    if any(f"/{name}/" in where and "kbd" in handlers for where, handlers in _inputs(f"{proc}/bus/input/devices")):
        yield HostUse("it is a keyboard of the host's console")


def _inputs(path: str) -> Iterator[tuple[str, list[str]]]:
    """The input devices: where each is below ``sys``, and the kernel's handlers that have it."""
    where = ""
    for line in _lines(path) or []:
        if line.startswith("S: Sysfs="):
            where = line.partition("=")[2]
        elif line.startswith("H: Handlers="):
            yield where, line.partition("=")[2].split()


def shows_host(proc: str) -> bool:
    """Whether process 1 of a proc file system is the host's: only beside it is process 2 the kernel's ``kthreadd``.

    Where that can't be read, it isn't (T2).
    """
    try:
        return _lines(f"{proc}/2/comm") == ["kthreadd"]
    except UnreadableFile:
        return False


def out_of_sight(root: str, proc: str, address: PciAddress) -> str | None:
    """What the host may need a function for that can't be seen in this container; None if everything can.

    Disks of the host are in every container's ``sys``, but who mounts them is seen only where `shows_host` is true. An
    interface is in ``sys`` only of its own network namespace. A VF's isn't looked for: whoever made VFs hands them out.

    Args:
        root: as for `read_uses`.
        proc: as for `read_uses`.
        address: a function with a driver of the host.
    """
    with DiskTree(root) as tree:
        blocks = _blocks(tree, address)
        if blocks and not shows_host(proc):
            return f"whether {', '.join(blocks)} is mounted"
        device = f"sys/bus/pci/devices/{address}"
        is_network = (tree.read(f"{device}/class", 32) or b"").startswith(b"0x02")
        if not is_network or tree.link(f"{device}/physfn") is not None or _interfaces(tree, address):
            return None
    # A setting that only the host's own network namespace has (Linux: net/core/sysctl_net_core.c).
    is_hosts = os.path.exists(f"{proc}/sys/net/core/dev_weight")
    return None if is_hosts else "whether the default route goes through it"


def _uses(tree: Tree, proc: str, process: str, address: PciAddress) -> Iterator[HostUse]:
    """The uses of one function."""
    yield from _known_uses([*_looks(tree, proc, process, address), (lambda: _mdevs(tree, address), True)])


_Look: TypeAlias = tuple[Callable[[], Iterator[HostUse]], bool]
"""Reads uses of one kind, and whether these are by guests."""


def _looks(tree: Tree, proc: str, process: str, device: PciAddress | str) -> list[_Look]:
    """What a function or USB device may be used for; its name is part of the links of what is below it."""
    return [
        (lambda: _networks(tree, f"{proc}/{process}/net", device), False),
        (lambda: _disks(tree, f"{proc}/{process}/mountinfo", f"{proc}/swaps", device), False),
    ]


def _known_uses(looks: Iterable[_Look]) -> Iterator[HostUse]:
    """The uses that are found. If something can't be read, that counts as a use (T2)."""
    for look, by_guests in looks:
        try:
            yield from look()
        except UnreadableFile as problem:
            yield HostUse(f"its use is unknown: {problem.message}", vital=not by_guests, by_guests=by_guests)


def _networks(tree: Tree, routes: str, address: PciAddress | str) -> Iterator[HostUse]:
    """Interfaces that are up, or that the default route goes through, perhaps in a bond, bridge or VLAN."""
    interfaces = _interfaces(tree, address)
    routed = _routed(routes) if interfaces else set()
    for name, place in interfaces.items():
        tops = routed & _stack(name, lambda lower: _uppers(tree, lower))
        flags = hexadecimal(tree.read(f"{place}/flags", 32), 0xFFFFFFFF)
        if tops:
            yield HostUse(f"network interface {_within(name, min(tops))} has the default route", vital=True)
        elif flags is None:
            yield HostUse(f"network interface {name} may be up: {place}/flags can't be read")
        elif flags & _IFF_UP:
            yield HostUse(f"network interface {name} is up")


def _interfaces(tree: Tree, address: PciAddress | str) -> dict[str, str]:
    """The interfaces' directories. The function's own lists them even where ``sys/class/net`` is missing."""
    device = f"sys/bus/pci/devices/{address}/net"
    own = {name: f"{device}/{name}" for name in tree.names(device)}
    return own | {name: f"sys/class/net/{name}" for name in _below(tree, "sys/class/net", f"/{address}/")}


def _uppers(tree: Tree, name: str) -> list[str]:
    entries = tree.names(f"sys/class/net/{name}")
    return [entry.removeprefix("upper_") for entry in entries if entry.startswith("upper_")]


def _routed(directory: str) -> set[str]:
    """The interfaces of the default routes of IPv4 and IPv6, from a process's ``net`` directory.

    Routes that reject are listed with ``*`` or ``lo``.

    Raises:
        UnreadableFile: the routes are unknown.
    """
    interfaces = set()
    for fields in map(str.split, _needed_lines(f"{directory}/route")[1:]):
        if len(fields) > 7 and fields[1] == fields[7] == "00000000":
            interfaces.add(fields[0])
    for fields in map(str.split, _lines(f"{directory}/ipv6_route") or []):
        if len(fields) > 9 and fields[1] == "00":  # the length of the prefix
            interfaces.add(fields[9])
    return interfaces


def _disks(tree: Tree, mountinfo: str, swaps: str, address: PciAddress | str) -> Iterator[HostUse]:
    """Block devices and partitions that are mounted or swapped to, perhaps in another device (RAID, LVM)."""
    blocks = _blocks(tree, address)
    if not blocks:
        return
    used = _mounted(mountinfo) | _swapped(swaps)
    for name in blocks:
        stack = _stack(name, lambda part: _holders(tree, part))
        uses = {top: next(filter(None, map(used.get, _names(tree, top))), None) for top in sorted(stack)}
        vital = [HostUse(f"{_within(name, top)} {use}", vital=True) for top, use in uses.items() if use]
        yield from vital
        if len(stack) > 1 and not vital:
            yield HostUse(f"{name} is part of {', '.join(sorted(stack - {name}))}")


def _blocks(tree: Tree, address: PciAddress | str) -> list[str]:
    blocks = _below(tree, "sys/class/block", f"/{address}/")
    # With multipath, an NVMe namespace is not below its controller but below the controller's subsystem.
    for controller in tree.names(f"sys/bus/pci/devices/{address}/nvme"):
        for subsystem in tree.names("sys/class/nvme-subsystem"):
            if controller in tree.names(f"sys/class/nvme-subsystem/{subsystem}"):
                blocks += _below(tree, "sys/class/block", f"/{subsystem}/")
    return list(dict.fromkeys(blocks))


def _holders(tree: Tree, name: str) -> Iterator[str]:
    """The devices that are made of a block device, and their partitions."""
    for holder in tree.names(f"sys/class/block/{name}/holders"):
        yield holder
        yield from _below(tree, "sys/class/block", f"/{holder}/")


def _names(tree: Tree, name: str) -> list[str]:
    """What ``mountinfo`` and ``swaps`` may call a block device: by its number, its node, or the device mapper's."""
    read = [tree.read(f"sys/class/block/{name}/{file}", 256) or b"" for file in ("dev", "dm/name")]
    number, mapped = (text.decode(errors="replace").strip() for text in read)
    return [number, f"/dev/{name}", f"/dev/mapper/{mapped}"]


def _stack(name: str, above: Callable[[str], Iterable[str]]) -> set[str]:
    """A device, and all that are made of it."""
    stack, todo = {name}, [name]
    while todo:
        new = {*above(todo.pop())} - stack
        stack |= new
        todo += new
    return stack


def _within(name: str, top: str) -> str:
    return name if top == name else f"{name}, in {top},"


def _below(tree: Tree, directory: str, part: str) -> list[str]:
    """The entries of a class directory whose links contain ``part``: their devices are below that one."""
    return [name for name in tree.names(directory) if part in (tree.link(f"{directory}/{name}") or "")]


def mdevs_on(root: str, address: PciAddress) -> list[str]:
    """The UUIDs of the mediated devices on a function; raises `UnreadableFile`."""
    with DiskTree(root) as tree:
        return _mdevs_on(tree, address)


def _mdevs_on(tree: Tree, address: PciAddress) -> list[str]:
    types = f"sys/bus/pci/devices/{address}/mdev_supported_types"
    return [uuid for name in tree.names(types) for uuid in tree.names(f"{types}/{name}/devices")]


def _mdevs(tree: Tree, address: PciAddress) -> Iterator[HostUse]:
    if count := len(_mdevs_on(tree, address)):
        yield HostUse(f"it has mediated devices ({count})", by_guests=True)


def _mounted(path: str) -> dict[str, str]:
    """Where a ``mountinfo`` says that devices are mounted, in words, by ``major:minor`` and by device path.

    The path is needed because btrfs reports anonymous device numbers.

    Raises:
        UnreadableFile: it is unknown what is mounted.
    """
    mounts: dict[str, str] = {}
    for fields in map(str.split, _needed_lines(path)):
        if len(fields) < 10 or "-" not in fields[6:-2]:
            continue
        source = fields[fields.index("-", 6) + 2]
        for key in (fields[2], source):
            if key.startswith("/dev/") or not key.startswith("0:"):
                mounts.setdefault(key, f"is mounted at {fields[4]}")
    return mounts


def _swapped(path: str) -> dict[str, str]:
    """The same of swap devices, by path. A kernel without swap has no ``swaps`` file."""
    return {line.split()[0]: "is swapped to" for line in (_lines(path) or [])[1:] if line.strip()}


def _needed_lines(path: str) -> list[str]:
    """The lines of a file that every kernel has; raises `UnreadableFile` if it isn't there."""
    lines = _lines(path)
    if lines is None:
        raise UNREADABLE_FILE(f"{path} is not there", "Mount the host's proc file system there.", file=path)
    return lines


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
        raise UNREADABLE_FILE(f"{path}: {problem.strerror}", "Run it as root on the host.", file=path) from problem
