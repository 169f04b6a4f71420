"""Two cards of an NVSwitch board to a VM with their partition activated, against the same two without one.

An Allocate is what the kubelet calls, over the plugin's socket; the floor of the same run is the least that is a device
plugin in Python. What Fabric Manager's library takes for the calls that one makes, two readings and an activation, is
measured apart, without a process between. The library is the stand-in of the tests, compiled by cc. Times are the first
decile: what else runs on the machine adds to others.

    python benchmarks/fabric.py [--turns 20]
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.plugin import IN_MEMORY, _allocate, _kubelet, _running, _seconds
from launcherkit_lab.kubelet import Holding, Kubelet
from launcherkit_lab.proto import deviceplugin_v1beta1_pb2 as wire
from launcherkit_plugin.fabric.library import Library
from tests.plugin.fabric.double import cards_of
from tests.plugin.fabric.hgx import NAME, key_of
from tests.plugin.fabric.test_library import COMPILER, HERE, Machine

PARTITIONS = (3, 4, 5, 6)
"""Those of two cards."""
_SEEN = 1.5
"""Seconds in which the daemon takes a turn and sees who has what: rescanSeconds is 1."""


_NOTHING = wire.ContainerAllocateResponse()


class Side:
    """A plugin, and what its kubelet gives to pods."""

    def __init__(self, kubelet: Kubelet, resource: str, ids: Sequence[Sequence[str]], library: Library) -> None:
        self.kubelet, self.resource, self.ids, self.library = kubelet, resource, ids, library
        self.taken: list[float] = []
        kubelet.wait(lambda: resource in kubelet.resources() and len(kubelet.devices(resource)) >= len(ids))

    def admit(self) -> None:
        """A pod for each pair."""
        for number, ids in enumerate(self.ids):
            self.taken += _allocate(self.kubelet, self.resource, ids, 1)
            self.kubelet.holdings.append(Holding(f"pod-{number}", "compute", self.resource, tuple(ids), _NOTHING))

    def end(self) -> None:
        """All have ended."""
        for number in range(len(self.ids)):
            self.kubelet.delete(f"pod-{number}")

    def is_at_rest(self) -> bool:
        """Whether no partition is active."""
        return '"active": true' not in self.library.answer({"call": "partitions"})

    @property
    def fastest(self) -> float:
        return statistics.quantiles(self.taken, n=10)[0]


def calls(library: Library) -> float:
    """How many seconds the library takes for what an Allocate asks of it."""

    def ask() -> None:
        library.answer({"call": "partitions"})
        library.answer({"call": "activate", "id": PARTITIONS[0], "vfs": []})
        library.answer({"call": "partitions"})

    taken = []
    for _ in range(200):
        taken.append(_seconds(ask))
        library.answer({"call": "deactivate", "id": PARTITIONS[0]})
    return statistics.quantiles(taken, n=10)[0]


def main() -> None:
    """Build, measure by turns, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=25)
    turns: int = parser.parse_args().turns
    with tempfile.TemporaryDirectory(dir=IN_MEMORY) as folder, ExitStack() as running:
        library = Path(folder, "libnvfm.so.1")
        subprocess.run([str(COMPILER), "-O2", "-shared", "-fPIC", "-o", library, HERE / "nvfm.c"], check=True)
        pairs = [sorted(cards_of(number)) for number in PARTITIONS]
        sides = {}
        for name, resource, ids in (
            ("bare", "bench.example/bare0", [["d0", "d1"]] * len(pairs)),
            ("without a partition", NAME, pairs),
            ("with a partition", f"{NAME}-x2", [[key_of(pair)] for pair in pairs]),
        ):
            place = Path(folder, name)
            place.mkdir()
            machine = Machine(place, str(library))
            if name == "without a partition":
                machine.configure({})
            kubelet = running.enter_context(_kubelet(place / "kubelet"))
            options = ["--config", str(machine.config), "--ledger", str(place / "ledger")]
            running.enter_context(_running(name, machine.tree.root, kubelet, *options))
            sides[name] = Side(kubelet, resource, ids, Library(str(library), "socket", str(machine.fm.path)))
        for _ in range(turns):
            for side in sides.values():
                side.admit()
            time.sleep(_SEEN)
            for side in sides.values():
                side.end()
            while not all(side.is_at_rest() for side in sides.values()):
                time.sleep(0.05)
            time.sleep(_SEEN)
        for name, side in sides.items():
            print(f"{name:24} {side.fastest * 1e3:6.2f} ms, median {statistics.median(side.taken) * 1e3:6.2f} ms")
        own = calls(sides["bare"].library)
        print(f"{'the library by itself':24} {own * 1e3:6.2f} ms")
        ratio = (sides["with a partition"].fastest - own) / sides["without a partition"].fastest
        print(f"with a partition, less the library's time: {ratio:.2f}x of one without; at most 1.5 wanted")


if __name__ == "__main__":
    main()
