"""How long it takes to read a host from sysfs, against five small files a function by plain ``open()``.

Trees of several sizes are built in a temporary directory. Each figure is the median of interleaved pairs: the floor,
then what is measured, so that a machine that slows down slows both. Only the ratios travel to another machine; on
real sysfs every call costs about twice as much, on both sides.

    python benchmarks/sysfs_scan.py [--pairs 21] [--sizes 8,256,4096]
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from launcherkit.host.source import Host
from launcherkit.model.address import PciAddress
from launcherkit.model.host import PciFunction
from launcherkit_plugin.host.scan import NodeReader
from tests.support.hosttree import HostTree

_FIVE = ("vendor", "device", "class", "numa_node", "uevent")


def build(root: Path, functions: int) -> list[PciAddress]:
    """A host of two-function cards in groups of their own; gives the cards' first functions."""
    tree = HostTree(root)
    primaries = []
    for card in range(functions // 2):
        slot = f"{card >> 13:04x}:{card >> 5 & 0xFF:02x}:{card & 0x1F:02x}"
        tree.card(slot, group=card)
        primaries.append(PciAddress.parse(slot + ".0"))
    (root / "sys/kernel/uevent_seqnum").write_text("4711\n")
    return primaries


def five_files(root: Path) -> None:
    """The floor."""
    devices = f"{root}/sys/bus/pci/devices"
    for name in os.listdir(devices):
        for file in _FIVE:
            with open(f"{devices}/{name}/{file}") as handle:
                handle.read()


def _seconds(action: Callable[[], object]) -> float:
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def measure(label: str, floor: Callable[[], object], action: Callable[[], object], pairs: int, functions: int) -> None:
    """Print the median ratio and time of ``action``, which reads so many functions."""
    floor(), action()
    taken = [(_seconds(floor), _seconds(action)) for _ in range(pairs)]
    ratio = statistics.median(ours / theirs for theirs, ours in taken)
    ours = statistics.median(ours for _, ours in taken)
    print(f"{label:54} {ratio:6.3f}x {ours * 1e3:9.3f} ms {ours / functions * 1e6:7.1f} us a function")


def looks_at(host: Host, cards: list[PciAddress]) -> tuple[Callable[[], object], Callable[[], object]]:
    """The device plugin's first look at a host where some cards are of interest, and all that follow."""
    slots = {card.slot for card in cards}

    def is_wanted(function: PciFunction) -> bool:
        return function.address.slot in slots

    reader = NodeReader()
    return (
        lambda: NodeReader().read(host, is_wanted, vgpu=False),
        lambda: reader.read(host, is_wanted, vgpu=False),
    )


def measure_plugin(host: Host, cards: list[PciAddress], floor: Callable[[], object], pairs: int, size: int) -> None:
    """What the plugin's looks cost where 16 cards are of interest, also against a host that has only these."""
    first, following = looks_at(host, cards)
    name = f"{size} functions, 16 cards of interest"
    measure(f"{name}: first look", floor, first, pairs, size)
    measure(f"{name}: next look", floor, following, pairs, size)
    with tempfile.TemporaryDirectory(prefix="launcherkit-bench-") as directory:
        alone = build(Path(directory), 2 * len(cards))
        _, look_alone = looks_at(Host.from_sysfs(directory), alone)
        measure(f"{size} functions: next look, to that at 16 cards alone", look_alone, following, pairs, size)


def main() -> None:
    """Build, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=21, help="pairs a figure (default: 21)")
    parser.add_argument("--sizes", default="8,32,256,4096", help="functions a tree (default: 8,32,256,4096)")
    args = parser.parse_args()
    for size in map(int, args.sizes.split(",")):
        with tempfile.TemporaryDirectory(prefix="launcherkit-bench-") as directory:
            root = Path(directory)
            primaries = build(root, size)
            host = Host.from_sysfs(root)

            def floor(root: Path = root) -> None:
                five_files(root)

            def scan(host: Host = host) -> object:
                return host.scan(details=False)

            measure(f"{size} functions: identity scan", floor, scan, args.pairs, size)
            measure(f"{size} functions: whole scan", floor, host.scan, args.pairs, size)
            measure_plugin(host, primaries[:: max(1, len(primaries) // 16)][:16], floor, args.pairs, size)
            for devices in (8, 64):
                if devices <= len(primaries):

                    def facts(host: Host = host, named: list[PciAddress] = primaries[:devices]) -> object:
                        return host.facts(named)

                    measure(f"{size} functions: {devices} cards by need", floor, facts, args.pairs, 2 * devices)


if __name__ == "__main__":
    main()
