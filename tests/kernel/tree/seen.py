"""A guest with Linux and nothing else: it says what its kernel finds on PCI, and that is held against the plan."""

from __future__ import annotations

import re
import stat
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from launcherkit.model.address import GuestAddress
from launcherkit.model.domain import GuestTree
from launcherkit_lab.initramfs import Entry, archive

INIT = Path(__file__).parent / "init"
KERNEL_LINE = " ".join(
    (
        "console=ttyS0 loglevel=4 panic=-1 mitigations=off no_timer_check",
        # What takes time where the processor is emulated, and nothing here needs.
        "nokaslr cryptomgr.notests raid=noautodetect lpj=4000000 audit=0 selinux=0 apparmor=0",
    )
)

_FUNCTION = re.compile(r"^guest: pci \S+/devices/pci0000:(\w\w)/(\S+) 0x(\w{4}) 0x(\w{4}) (-?\d+)\r?$", re.MULTILINE)
_BAR = re.compile(r"^guest: bar (\S+) 0x(\w+) 0x(\w+) 0x(\w+)\r?$", re.MULTILINE)
_DISTANCES = re.compile(r"^guest: distances (\d+) ([\d ]+)\r?$", re.MULTILINE)
_MEMORY, _UNSET = 0x200, 0x20000000  # linux/ioport.h


def read_distances(serial: str) -> dict[int, list[int]]:
    """From each NUMA node of the guest, the distance to each in order."""
    return {int(node): [int(value) for value in values.split()] for node, values in _DISTANCES.findall(serial)}


class Spot(NamedTuple):
    """Where a function is in a guest, in terms that firmware's bus numbers have no part in."""

    root: int
    """The number of the root bus."""
    way: tuple[str, ...]
    """``00.0`` of each bridge from there on, and of the function itself."""

    def __str__(self) -> str:
        return " > ".join((f"root bus {self.root:02x}", *self.way))


class Planned(NamedTuple):
    """What a guest should find of a function."""

    spot: Spot
    node: int
    """-1 where it belongs to none."""
    model: tuple[int, int] | None
    """Vendor and device; None where any will do."""
    bars: tuple[int, ...]
    """The sizes of the memory BARs that must have an address, in bytes."""


class Found(NamedTuple):
    """What a guest says of a function."""

    node: int
    model: tuple[int, int]
    bars: tuple[int, ...]
    """The sizes of the memory BARs that have an address."""


def first_file_system(busybox: Path) -> bytes:
    """The guest's only files: busybox and `init`."""
    folders = (Entry(name, stat.S_IFDIR | 0o755) for name in ("bin", "dev", "sys"))
    programs = (("bin/busybox", busybox), ("init", INIT))
    return archive([*folders, *(Entry(name, stat.S_IFREG | 0o755, path.read_bytes()) for name, path in programs)])


def spot_of(guest: GuestAddress, tree: GuestTree) -> Spot:
    """Where a guest address of a document is."""
    root, *bridges = tree.path(guest)
    assert root.is_root, f"the document doesn't say how {guest} is reached"
    assert root.bus_number is not None, f"the document gives controller {root.number} no bus number"
    inner = [bridge.guest for bridge in bridges if bridge.guest is not None]
    return Spot(root.bus_number, tuple(f"{each.slot:02x}.{each.function}" for each in (*inner, guest)))


def node_of(guest: GuestAddress, tree: GuestTree) -> int:
    """The cell that a document gives to an address; -1 for none, as Linux has it."""
    node = tree.path(guest)[0].cell
    return -1 if node is None else node


def read_seen(text: str) -> dict[Spot, Found]:
    """What a guest said on its serial port."""
    assert "guest: off" in text, f"the guest said: {text[-3000:]!r}"
    bars: dict[str, list[int]] = {}
    for address, start, end, flags in _BAR.findall(text):
        if int(flags, 16) & (_MEMORY | _UNSET) == _MEMORY and int(start, 16):
            bars.setdefault(address, []).append(int(end, 16) - int(start, 16) + 1)
    found = {}
    for root, path, vendor, device, node in _FUNCTION.findall(text):
        parts = path.split("/")
        spot = Spot(int(root, 16), tuple(part.rpartition(":")[2] for part in parts))
        found[spot] = Found(int(node), (int(vendor, 16), int(device, 16)), tuple(bars.get(parts[-1], ())))
    return found


def differences(planned: Mapping[str, Planned], seen: Mapping[Spot, Found]) -> list[str]:
    """Point by point what the guest says otherwise than the plan; empty where they agree."""
    return [line for name, plan in planned.items() for line in _differences(name, plan, seen.get(plan.spot))]


def _differences(name: str, plan: Planned, found: Found | None) -> Iterator[str]:
    if found is None:
        yield f"{name}: nothing at {plan.spot}"
        return
    if found.node != plan.node:
        yield f"{name}: on node {found.node}, not {plan.node}"
    if plan.model is not None and found.model != plan.model:
        yield f"{name}: {found.model[0]:04x}:{found.model[1]:04x} is at {plan.spot}"
    if missing := sorted(_without(plan.bars, found.bars)):
        yield f"{name}: no address for BARs of {', '.join(map(hex, missing))}"


def _without(wanted: Iterable[int], there: Iterable[int]) -> list[int]:
    left = list(wanted)
    for size in there:
        if size in left:
            left.remove(size)
    return left
