"""A card from a container to a VM and back, through Allocate, against the bare writes to sysfs that this takes.

With --address on a real kernel, as root: a card whose functions have drivers of the host and are used by nobody. The
machine of `./dev kernel shell` has one, once `modprobe -a bochs snd_hda_intel` has loaded its drivers.
Without it on a built host whose kernel takes --driver-seconds for each function that is bound or unbound; there each
step of the daemon asks its process for something else, and then has its effect.

    python benchmarks/turnover.py [--address 0000:01:00.0] [--rounds 10] [--driver-seconds 0.1]
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from launcherkit.model.host import HostFacts
from launcherkit_plugin.daemon.wiring import Setup, Wiring, assemble
from launcherkit_plugin.host.drivers import SpareProcess, Worker
from launcherkit_plugin.host.files import node_host
from launcherkit_plugin.host.scan import read_node
from launcherkit_plugin.host.work_queue import WorkQueue
from launcherkit_plugin.model.config import Config, ContainerUse, PciRule, Selector
from launcherkit_plugin.model.device import Resource, Usage
from launcherkit_plugin.telemetry.metrics import Metrics
from launcherkit_plugin.telemetry.reporter import Reporter
from launcherkit_plugin.vgpu.lifecycle import Stopped
from tests.support.hosttree import HostTree
from tests.support.kernel import VFIO, FakeKernel

NOBODY = Usage("pod-resources", {})
BUILT = "0000:01:00.0"
IN_MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK | os.X_OK) else None  # noqa: S108  # a directory of our own


class Machine(NamedTuple):
    """What is measured on."""

    root: str
    make_worker: Callable[[Sequence[int]], Worker]
    write: Callable[[str, str], None]
    """By hand."""


class SlowKernel(FakeKernel):
    """Drivers take their time, as those of GPUs do."""

    seconds = 0.0

    def write(self, path: str, text: str, seconds: float = 1) -> None:
        if path.endswith(("/bind", "/unbind", "/drivers_probe")):
            time.sleep(self.seconds)
        super().write(path, text, seconds)


class Asking(NamedTuple):
    """A `Worker` of a built host, which takes as long as the daemon's own."""

    kernel: FakeKernel
    process: Worker

    def read(self, path: str, seconds: float) -> bytes:
        self.process.read(os.devnull, seconds)
        return self.kernel.read(path, seconds)

    def write(self, path: str, text: str, seconds: float) -> None:
        self.process.read(os.devnull, seconds)
        self.kernel.write(path, text, seconds)

    def close(self) -> None:
        self.process.close()


def main() -> None:
    """Take turns, and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--address", help="of a real card")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--driver-seconds", type=float, default=0.1)
    args = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="launcherkit-bench-", dir=IN_MEMORY) as folder,
        closing(SpareProcess()) as spare,
    ):
        machine = Machine("/", spare.worker, write_file)
        if args.address is None:
            machine = built_host(Path(folder) / "host", args.driver_seconds, spare)
        asyncio.run(measure(machine, args.address or BUILT, f"{folder}/ledger", args.rounds))


def built_host(folder: Path, seconds: float, spare: SpareProcess) -> Machine:
    """A card of two functions."""
    tree = HostTree(folder)
    kernel = SlowKernel(tree, {"nvidia": {(0x10DE, 0x2204)}, "snd_hda_intel": {(0x10DE, 0x1AEF)}})
    kernel.seconds = seconds
    tree.node("vfio/vfio")
    tree.function(BUILT, driver="nvidia", group=44)
    tree.function("0000:01:00.1", device=0x1AEF, class_code=0x040300, driver="snd_hda_intel", group=44)
    drm = tree.path(BUILT) / "drm/card1"
    drm.mkdir(parents=True)
    (drm / "dev").write_text("226:1\n")
    (drm / "uevent").write_text("DEVNAME=dri/card1\n")
    for name, content in (("1/ns/pid", ""), ("sys/kernel/random/boot_id", "bench\n")):
        path = folder / "proc" / name
        path.parent.mkdir(parents=True)
        path.symlink_to("pid:[4026531836]") if not content else path.write_text(content)
    return Machine(str(folder), lambda keep: Asking(kernel, spare.worker(keep)), kernel.write)


def write_file(path: str, text: str) -> None:
    """As the shell's ``echo`` does."""
    with open(path, "w", encoding="ascii") as file:
        file.write(text)


async def measure(machine: Machine, address: str, ledger: str, rounds: int) -> None:
    """Both ways in turn, so that the machine's load is the same."""
    rule = PciRule(
        select=(Selector(addresses=(address,)),),
        name="example.com/GPU",
        bind="on-demand",
        bind_seconds=40,
        grace_seconds=0,
        use="any",
        container=ContainerUse("nodes"),
    )
    host, root = node_host(machine.root), machine.root
    reporter = Reporter(lambda *_, **__: None, Metrics())
    proc = f"{root.rstrip('/')}/proc"
    make_worker = machine.make_worker
    wiring = Wiring(host, root, reporter, WorkQueue(), Stopped(), proc=proc, ledger=ledger)
    wiring = wiring._replace(usage=lambda: NOBODY, make_worker=make_worker)
    setup = assemble(Config(pci=(rule,)), wiring)
    facts = read_node(host, setup.wants, vgpu=False)
    for reconciler in setup.reconcilers:
        await asyncio.gather(*reconciler.reconcile(facts, NOBODY, time.monotonic()))
    (vm,), (container,) = (each.resources(facts, NOBODY, time.monotonic()) for each in setup.providers)
    functions = [str(each) for each in vm.devices[address].functions]
    ours, bare = [], []
    for _ in range(rounds):
        ours.append(await turn(setup, vm, container, address))
        bare.append(by_hand(root, facts, functions, machine.write))
    ratio = statistics.median(ours) / statistics.median(bare)
    print(f"VM and back, {len(functions)} functions, median of {rounds}: Allocate {statistics.median(ours):.3f} s,")
    print(f"  bare writes {statistics.median(bare):.3f} s: {ratio:.2f}x")


async def turn(setup: Setup, vm: Resource, container: Resource, address: str) -> float:
    """To a VM, and to a container."""
    began = time.perf_counter()
    await setup.providers[0].allocate(vm, [address])
    await setup.providers[1].allocate(container, [address])
    return time.perf_counter() - began


def by_hand(root: str, facts: HostFacts, functions: Sequence[str], write: Callable[[str, str], None]) -> float:
    """The same, by the writes alone."""
    pci = f"{root.rstrip('/')}/sys/bus/pci"
    drivers = {str(at): function.driver for at, function in facts.functions.items()}
    began = time.perf_counter()
    for to_vfio in (True, False):
        for function in functions:
            write(f"{pci}/drivers/{drivers[function] if to_vfio else VFIO}/unbind", function)
            write(f"{pci}/devices/{function}/driver_override", f"{VFIO}\n" if to_vfio else "\n")
            write(f"{pci}/drivers_probe", function)
    return time.perf_counter() - began


if __name__ == "__main__":
    main()
