"""The device plugin: its scan, its start, Allocate, what a restarted kubelet waits for, and memory.

Each is set against a floor of the same run: the scan against five small files a function by ``open()``, the rest
against the least that is a device plugin in Python (benchmarks/_bare_plugin.py), which looks at no host. The kubelet is
the tests' own; its client costs the same on both sides.

    python benchmarks/plugin.py [--functions 4096] [--rounds 15] [--calls 10000]
"""

from __future__ import annotations

import argparse
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.sysfs_scan import five_files
from launcherkit.host.source import Host
from launcherkit.model.host import PciFunction
from launcherkit_lab.kubelet import Kubelet
from launcherkit_plugin.host.scan import NodeReader
from launcherkit_plugin.kubelet.proto import deviceplugin_v1beta1_pb2 as wire
from tests.support.apiserver import NODES, ApiServer
from tests.support.clusterprocess import ClusterProcess
from tests.support.hosttree import HostTree
from tests.support.webprocess import WebProcess

IN_MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK | os.X_OK) else None  # noqa: S108  # a directory of our own
"""sysfs is in memory, too: on a disk that others use a look waits for that."""
CARDS = 256
_TURN = 100
"""Calls of Allocate before it is the other plugin's turn: the machine's speed changes meanwhile, but hardly within."""
_SETTLED = 4.0
"""Seconds after the start: the first look ends, and the collector begins."""
MODELS = (0x2204, 0x2230, 0x20B5, 0x1EB8)
PLUGIN = (sys.executable, "-m", "launcherkit_plugin", "serve", "--auto", "nvidia")
BARE = (sys.executable, str(Path(__file__).with_name("_bare_plugin.py")))
CHECKOUT = Path(__file__).resolve().parents[1]
ENVIRONMENT = {"PYTHONPATH": f"{CHECKOUT}{os.pathsep}{CHECKOUT / 'plugin'}"}


def build(root: Path, functions: int) -> None:
    """256 cards of two functions and four models, bound to vfio-pci, and network functions on drivers of the host."""
    tree = HostTree(root)
    (root / "sys/kernel/uevent_seqnum").write_text("4711\n")
    for card in range(CARDS):
        slot = f"{card >> 7:04x}:{card & 0x7F:02x}:00"
        model = MODELS[card % len(MODELS)]
        tree.function(f"{slot}.0", device=model, driver="vfio-pci", group=card, numa=card % 2)
        tree.function(f"{slot}.1", device=0x1AEF, class_code=0x040300, driver="vfio-pci", group=card, numa=card % 2)
    for other in range(functions - 2 * CARDS):
        address = f"{16 + (other >> 13):04x}:{other >> 5 & 0xFF:02x}:{other & 0x1F:02x}.0"
        tree.function(
            address, vendor=0x15B3, device=0x1018, class_code=0x020000, driver="mlx5_core", group=1000 + other
        )


def main() -> None:
    """Build, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--functions", type=int, default=4096, help="of the host (default: 4096)")
    parser.add_argument("--rounds", type=int, default=15, help="starts and scans of each kind (default: 15)")
    parser.add_argument("--calls", type=int, default=10000, help="of Allocate, at least 200 (default: 10000)")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="launcherkit-bench-", dir=IN_MEMORY) as directory:
        root = Path(directory) / "host"
        build(root, args.functions)
        scan(root, args)
        start(root, Path(directory), args)
        serve(root, Path(directory), args)
        memory(root, Path(directory))


def scan(root: Path, args: argparse.Namespace) -> None:
    """The daemon's look at the host."""
    host, reader = Host.from_sysfs(root), NodeReader()

    def is_wanted(function: PciFunction) -> bool:
        return function.class_code >> 16 == 0x03

    def look() -> None:
        reader.read(host, is_wanted, vgpu=False)

    five_files(root)
    look()
    taken = [(_seconds(lambda: five_files(root)), _seconds(look)) for _ in range(args.rounds)]
    _report(f"scan of {args.functions} functions, five files a function by open()", taken)


def start(root: Path, folder: Path, args: argparse.Namespace) -> None:
    """From the start of the process to the last registration, and until the kubelet has all lists of devices.

    The processor's time until then says more where the machine does other things too.
    """
    registered: list[tuple[float, float]] = []
    listed: list[tuple[float, float]] = []
    processor: list[tuple[float, float]] = []
    for number in range(args.rounds):
        seconds = []
        for name, resources in (("bare", "bench.example/bare"), ("plugin", "nvidia.com/")):
            with _kubelet(folder / f"{name}{number}") as kubelet:
                began = time.perf_counter()
                with _running(name, root, kubelet) as process:
                    kubelet.wait(partial(_are_registered, kubelet, resources))
                    at_registration = time.perf_counter() - began
                    _wait(kubelet, resources)
                    seconds.append((at_registration, time.perf_counter() - began, _processor_seconds(process.pid)))
        for taken, pair in zip((registered, listed, processor), zip(*seconds, strict=True), strict=True):
            taken.append((pair[0], pair[1]))
    _report(f"start to the last of {len(MODELS)} registrations, the bare plugin", registered)
    _report("start to the last of the first lists of devices, the bare plugin", listed)
    _report("the processor's time until then, the bare plugin", processor)


def serve(root: Path, folder: Path, args: argparse.Namespace) -> None:
    """Allocate, by turns with the bare plugin; memory; a kubelet that restarts."""
    with ExitStack() as running:
        sides = {}
        for name, resources in (("bare", "bench.example/bare"), ("plugin", "nvidia.com/")):
            kubelet = running.enter_context(_kubelet(folder / f"serve-{name}"))
            process = running.enter_context(_running(name, root, kubelet))
            _wait(kubelet, resources)
            resource = min(kubelet.resources())
            sides[name] = kubelet, process.pid, resource, sorted(kubelet.devices(resource))[:8]
        before = {name: _resident(pid) for name, (_, pid, _, _) in sides.items()}
        seconds: dict[str, list[list[float]]] = {name: [] for name in sides}
        for _ in range(args.calls // _TURN):
            for name, (kubelet, _, resource, ids) in sides.items():
                seconds[name].append(_allocate(kubelet, resource, ids, _TURN))
        for name, (_, pid, _, _) in sides.items():
            taken = [each for in_round in seconds[name] for each in in_round]
            print(
                f"{name}: Allocate of 8, p50 {statistics.median(taken) * 1e6:.0f} us, p99 {_p99(taken) * 1e6:.0f} us; "
                f"resident {before[name]:.1f} MB, after {len(taken)} calls {_resident(pid):.1f} MB"
            )
        ratios = [
            statistics.median(ours) / statistics.median(floor) for floor, ours in zip(*seconds.values(), strict=True)
        ]
        low, middle, high = statistics.quantiles(ratios)
        print(
            f"Allocate of 8: {middle:.2f}x of the bare plugin, {low:.2f} to {high:.2f} in half of {len(ratios)} turns"
        )
        kubelet = sides["plugin"][0]
        began = time.perf_counter()
        kubelet.restart()
        _wait(kubelet, "nvidia.com/")
        back = time.perf_counter() - began
        print(f"plugin: all resources are back {back * 1e3:.0f} ms after a kubelet was told to restart")


def memory(root: Path, folder: Path) -> None:
    """What all of the plugin's processes take together, without a cluster and with one."""
    server = ApiServer()
    server.put(NODES, {"metadata": {"name": "node-1", "labels": {}}})
    config = folder / "plugin.yaml"
    config.write_text("auto: nvidia\nkubevirt: {cluster: true}\n")
    path = folder / "c.sock"
    with _kubelet(folder / "memory") as kubelet, _running("plugin", root, kubelet) as process:
        _wait(kubelet, "nvidia.com/")
        print(
            f"without a cluster: {_proportional(process.pid):.1f} MB (PSS) with {CARDS} devices; at most 36 wanted; "
            f"{_resident(process.pid):.1f} MB resident"
        )
    with _kubelet(folder / "page") as kubelet:
        _page_memory(root, kubelet)
    reported = ("--config", str(config), "--cluster-socket", str(path), "--web-socket", str(folder / "w.sock"))
    with (
        server.running(folder) as kubeconfig,
        ClusterProcess(path, "node-1", kubeconfig, python=sys.executable) as speaking,  # no fork of one with more
        _kubelet(folder / "cluster") as kubelet,
        _running("plugin", root, kubelet, *reported) as process,
    ):
        _wait(kubelet, "nvidia.com/")
        server.wait_for("the watches", lambda: server.watches >= 2)
        both = [_proportional(pid) for pid in (process.pid, speaking.process.pid)]
        resident = _resident(process.pid) + _resident(speaking.process.pid)
        print(
            f"with one: {sum(both):.1f} MB (PSS), {both[0]:.1f} of them the daemon's, which serves metrics too; "
            f"at most 76 wanted; {resident:.1f} MB resident"
        )


def _page_memory(root: Path, kubelet: Kubelet) -> None:
    """The daemon with its web process, and with a page that a browser follows."""
    taken: list[list[float]] = []
    drawn = 0
    path = kubelet.plugins.parent / "w.sock"
    for looked_at in (False, True):
        with (
            _running("plugin", root, kubelet, "--web-socket", str(path)) as process,
            WebProcess(path, python=sys.executable) as web,
        ):
            _wait(kubelet, "nvidia.com/")
            time.sleep(_SETTLED)
            with ExitStack() as looking:
                if looked_at:
                    next(looking.enter_context(web.events()))
                    drawn = len(web.text())
                web.text("/metrics")
                taken.append([_proportional(pid) for pid in (process.pid, web.process.pid)])
    for situation, (daemon, beside) in zip(("with metrics", "while somebody looks at the page"), taken, strict=True):
        print(f"{situation}: {daemon + beside:.1f} MB (PSS), {beside:.1f} of them the web process's; at most 64 wanted")
    print(f"the page has {drawn / 1e3:.0f} KB")


def _allocate(kubelet: Kubelet, resource: str, ids: Sequence[str], calls: int) -> list[float]:
    """Seconds of each call."""
    request = wire.AllocateRequest(container_requests=[wire.ContainerAllocateRequest(devices_ids=ids)])
    return [_seconds(lambda: kubelet.call(resource, "Allocate", request, wire.AllocateResponse)) for _ in range(calls)]


@contextmanager
def _kubelet(folder: Path) -> Iterator[Kubelet]:
    folder.mkdir()
    kubelet = Kubelet(folder)
    kubelet.start()
    try:
        yield kubelet
    finally:
        kubelet.stop()


@contextmanager
def _running(name: str, root: Path, kubelet: Kubelet, *more: str) -> Iterator[subprocess.Popen[bytes]]:
    folder = kubelet.plugins
    command = (
        [*BARE, str(folder), str(len(MODELS)), str(CARDS // len(MODELS))]
        if name == "bare"
        else [*PLUGIN, "--host", str(root), "--dev-root", str(root), "--kubelet-dir", str(folder.parent), *more]
    )
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(command, env=ENVIRONMENT, stderr=log)
        try:
            yield process
        except BaseException:
            log.seek(0)
            print(log.read().decode(), file=sys.stderr)
            raise
        finally:
            process.send_signal(signal.SIGKILL if name == "bare" else signal.SIGTERM)
            process.wait(60)


def _wait(kubelet: Kubelet, resources: str) -> None:
    kubelet.wait(
        lambda: (
            _are_registered(kubelet, resources)
            and len([name for name in kubelet.resources() if kubelet.devices(name)]) == len(MODELS)
        )
    )


def _are_registered(kubelet: Kubelet, resources: str) -> bool:
    names = [name for name in kubelet.registrations if name.startswith(resources)]
    return bool(names) and len(names) % len(MODELS) == 0


def _seconds(action: Callable[[], object]) -> float:
    began = time.perf_counter()
    action()
    return time.perf_counter() - began


def _p99(seconds: Sequence[float]) -> float:
    return statistics.quantiles(seconds, n=100)[98]


def _processor_seconds(pid: int) -> float:
    """That all threads of a process have taken so far."""
    return time.clock_gettime(~pid << 3 | 2)  # as clock_getcpuclockid(3) makes it


def _resident(pid: int) -> float:
    """MB."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def _proportional(pid: int) -> float:
    """MB; what processes share is divided among them."""
    rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
    (line,) = (line for line in rollup.splitlines() if line.startswith("Pss:"))
    return int(line.split()[1]) / 1e3


def _report(action: str, taken: Sequence[tuple[float, float]]) -> None:
    """Floor and measured, in pairs."""
    ratio = statistics.median(ours / floor for floor, ours in taken)
    floor, ours = (statistics.median(pair[side] for pair in taken) for side in (0, 1))
    print(f"{action} as the floor: {ours * 1e3:.0f} ms, floor {floor * 1e3:.0f} ms, {ratio:.2f}x")


if __name__ == "__main__":
    main()
