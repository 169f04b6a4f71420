"""Two cards of an NVSwitch board to a VM and back, with the partition activated, against the same two without one.

What Fabric Manager takes is measured apart: the calls that such an allocation makes, by the same process. Its library
is the stand-in of the tests, compiled by cc. Times are the first decile: what else runs on the machine adds to others.

    python benchmarks/fabric.py [--rounds 200]
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from launcherkit_plugin.fabric.manager import FabricManager, ProcessManager
from launcherkit_plugin.model.config import FabricConfig
from tests.plugin.fabric.double import Board, cards_of
from tests.plugin.fabric.hgx import NAME, Node, key_of
from tests.plugin.fabric.test_library import COMPILER, HERE, StandIn

PARTITION = 3
IN_MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK | os.X_OK) else None  # noqa: S108  # a directory of our own
"""As /run is, where the records are, and sysfs."""


class _Real(Board):
    """The board behind a library."""

    def __init__(self, manager: ProcessManager) -> None:
        super().__init__()
        self._manager = manager

    def manager(self, config: FabricConfig | None = None) -> ProcessManager:
        return self._manager


def allocations(node: Node, resource: str, ids: tuple[str, ...], rounds: int) -> list[float]:
    """How long each Allocate takes, in seconds; after each the pod has ended and a turn was taken."""

    async def measure() -> list[float]:
        taken = []
        await node.take_turn()
        for number in range(rounds):
            began = time.perf_counter()
            await node.allocator.allocate(resource, [list(ids)])
            taken.append(time.perf_counter() - began)
            node.pods[f"pod-{number}"] = resource, ids
            node.now += 100
            await node.take_turn()
            node.pods.clear()
            node.now += 100
            await node.take_turn()
        return taken

    return asyncio.run(measure())


def calls(manager: FabricManager, rounds: int) -> list[float]:
    """How long Fabric Manager takes for what an Allocate asks of it: two readings and an activation."""
    taken = []
    for _ in range(rounds):
        began = time.perf_counter()
        manager.partitions()
        manager.activate(PARTITION)
        manager.partitions()
        taken.append(time.perf_counter() - began)
        manager.deactivate(PARTITION)
    return taken


def _shown(what: str, taken: list[float]) -> float:
    first, *_, middle = statistics.quantiles(taken, n=10)[:5]
    print(f"{what:50} {first * 1000:7.2f} ms, median {middle * 1000:7.2f} ms")
    return first


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=200)
    rounds: int = parser.parse_args().rounds
    with tempfile.TemporaryDirectory(dir=IN_MEMORY) as folder:
        library = Path(folder, "libnvfm.so.1")
        subprocess.run([str(COMPILER), "-O2", "-shared", "-fPIC", "-o", library, HERE / "nvfm.c"], check=True)
        state = StandIn(Path(folder))
        config = FabricConfig(str(state.path), library=str(library))
        with closing(ProcessManager(config, f"{folder}/lock")) as manager:
            cards = tuple(sorted(cards_of(PARTITION)))
            make: Callable[[str, FabricConfig | None], Node] = lambda name, fabric: Node(  # noqa: E731
                Path(folder, name), _Real(manager), fabric=fabric
            )
            plain = make("plain", None)
            plain.fabric = None  # type: ignore[assignment]
            plain.restart()
            without = _shown("Allocate of 2 cards without a partition", allocations(plain, NAME, cards, rounds))
            partitioned = make("partitioned", config)
            pair = allocations(partitioned, f"{NAME}-x2", (key_of(cards),), rounds)
            within = _shown("Allocate of a partition of 2", pair)
            own = _shown("Fabric Manager's part of it, by itself", calls(manager, rounds))
    print(f"{'without its part, against one without a partition':50} {(within - own) / without:7.2f} x")


if __name__ == "__main__":
    main()
