"""What DRA adds to a pass of the daemon: the slices of 4,096 functions, which are 16 of 64 devices.

The host has 1,024 cards of four functions, two to an IOMMU group, so that every device has a counter. Each figure is
the median of interleaved pairs in one process, in CPU time: the look at the host, or what the device plugin does too,
then that and what DRA does after it. What was imported is kept from the collector, as the daemon keeps it.

    python benchmarks/dra_slices.py [--pairs 15] [--cards 1024]
"""

from __future__ import annotations

import argparse
import gc
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from launcherkit.model.host import HostFacts
from launcherkit_plugin.daemon.wiring import Wiring, assemble
from launcherkit_plugin.dra.inventory import inventory
from launcherkit_plugin.dra.slices import slices
from launcherkit_plugin.host.files import node_host
from launcherkit_plugin.host.scan import NodeReader
from launcherkit_plugin.host.work_queue import WorkQueue
from launcherkit_plugin.model.config import Config, PciRule, Selector
from launcherkit_plugin.model.device import Resource, Usage
from launcherkit_plugin.telemetry.reporter import Reporter
from launcherkit_plugin.vgpu.lifecycle import Stopped
from tests.support.hosttree import HostTree

FUNCTIONS = 4
IN_A_GROUP = 2


def build(root: Path, cards: int) -> None:
    """Cards of a display controller and three other functions."""
    tree = HostTree(root)
    for card in range(cards):
        slot = f"{card >> 13:04x}:{card >> 5 & 0xFF:02x}:{card & 0x1F:02x}"
        for number in range(FUNCTIONS):
            tree.function(
                f"{slot}.{number}",
                device=0x2204 + number,
                class_code=0x040300 if number else 0x030000,
                driver="vfio-pci",
                group=card // IN_A_GROUP,
            )
    (root / "sys/kernel/uevent_seqnum").write_text("4711\n")


class Pass:
    """The parts of a pass, as the daemon does them."""

    def __init__(self, root: Path) -> None:
        self._host = node_host(str(root))
        rule = PciRule(select=(Selector(classes=("03",)),), name="example.com/GPU", dra=True)
        wiring = Wiring(self._host, str(root), Reporter(lambda *_, **__: None), WorkQueue(), Stopped())
        self._setup = assemble(Config(pci=(rule,)), wiring)
        self._reader = NodeReader()
        self._usage = Usage("pod-resources", {})
        self.specs = slices(inventory(*self.listed()), "pci.launcherkit.io")

    def look(self) -> HostFacts:
        return self._reader.read(self._host, self._setup.wants, vgpu=False)

    def listed(self) -> tuple[list[Resource], HostFacts]:
        """As for the device plugin."""
        facts = self.look()
        devices = [each for provider in self._setup.providers for each in provider.resources(facts, self._usage, 0.0)]
        self._found = devices
        return devices, facts

    def looked_and_published(self) -> None:
        """Without what the device plugin does too."""
        slices(inventory(self._found, self.look()), "pci.launcherkit.io")

    def published(self) -> None:
        slices(inventory(*self.listed()), "pci.launcherkit.io")


def _seconds(action: Callable[[], object]) -> float:
    start = time.process_time()
    action()
    return time.process_time() - start


def measure(label: str, floor: Callable[[], object], action: Callable[[], object], pairs: int) -> None:
    """Print the median ratio and time of ``action``."""
    floor(), action()
    taken = [(_seconds(floor), _seconds(action)) for _ in range(pairs)]
    ratio = statistics.median(ours / theirs for theirs, ours in taken)
    ours = statistics.median(ours for _, ours in taken)
    print(f"{label:64} {ratio:6.3f}x {ours * 1e3:9.3f} ms")


def main() -> None:
    """Build, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=15, help="pairs a figure (default: 15)")
    parser.add_argument("--cards", type=int, default=1024, help="cards of four functions (default: 1024)")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="launcherkit-bench-") as directory:
        build(Path(directory), args.cards)
        one = Pass(Path(directory))
        gc.collect()
        gc.freeze()
        sizes = [len(spec["devices"]) for spec in one.specs if "devices" in spec]
        print(f"{args.cards * FUNCTIONS} functions, {len(sizes)} slices of at most {max(sizes)} devices")
        measure("look, inventory and slices, to the look", one.look, one.looked_and_published, args.pairs)
        measure("a whole pass with DRA, to one of the device plugin", one.listed, one.published, args.pairs)


if __name__ == "__main__":
    main()
