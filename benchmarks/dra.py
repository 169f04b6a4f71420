"""The DRA driver: Prepare of eight cards that are bound already, and memory.

It is set against the least that is a driver in Python (benchmarks/_bare_dra.py), which writes the same CDI file: one
that asks which devices are in the claim, without which nobody could write the file; and one that knows them before.
The first is the floor that the target is about. The second is printed because it was the floor once, without the paths
on the host that the file has. The calls are interleaved. The API server is a thread of the benchmark, behind the
daemon's own socket.

All files are in memory where there is a ``/dev/shm``, as the CDI file's folder is on every node: what an inode costs on
a disk depends on how many were freed there lately (12 to 250 us on one machine within an hour), which at ten claims a
second are many.

    python benchmarks/dra.py [--calls 150]
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
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path

import grpc

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from launcherkit_lab.kubelet import running_kubelet
from launcherkit_plugin.dra.proto import dra_v1_pb2 as wire
from tests.dra.api import Api
from tests.dra.cluster import Cluster
from tests.dra.scheduler import DeviceClass, Scheduler, requested
from tests.support.hosttree import HostTree

CARDS = 8
SETTLED_SECONDS = 0.1
"""After a claim was given back the daemon's loop looks at the host, as it would long before the next one."""
DRIVER = "pci.launcherkit.io"
MEMORY = "/dev/shm"  # noqa: S108  # a folder with a name of its own is made in it
CHECKOUT = Path(__file__).resolve().parents[1]
ENVIRONMENT = {"PYTHONPATH": f"{CHECKOUT}{os.pathsep}{CHECKOUT / 'plugin'}", "NODE_NAME": "node-1"}
BARE = (sys.executable, str(Path(__file__).with_name("_bare_dra.py")))
PLUGIN = (sys.executable, "-m", "launcherkit_plugin", "serve", "--config")
SERVICE = "/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin"


def main() -> None:
    """Build, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=150, help="of Prepare, each (default: 150)")
    args = parser.parse_args()
    where = MEMORY if os.path.isdir(MEMORY) else None
    with tempfile.TemporaryDirectory(prefix="launcherkit-bench-", dir=where) as directory:
        folder = Path(directory)
        tree = HostTree(folder / "host")
        for card in range(CARDS):
            tree.card(f"0000:{card + 1:02x}:00", group=card)
        (folder / "host/sys/kernel/uevent_seqnum").write_text("4711\n")
        api = Api()
        (folder / "cdi").mkdir()
        (folder / "k" / "plugins_registry").mkdir(parents=True)
        with (
            running_kubelet(folder / "k"),
            Cluster(folder / "cluster.sock", api),
            Cluster(folder / "asking-cluster.sock", api),
            _bare(folder, "bare"),
            _bare(folder, "asking", folder / "asking-cluster.sock"),
            _serving(folder) as process,
        ):
            sockets = {name: folder / f"{name}.sock" for name in ("bare", "asking")}
            sockets["driver"] = folder / "k" / "plugins" / DRIVER / "dra.sock"
            _until(lambda: all(path.exists() for path in sockets.values()) and bool(api.slices()))
            before = _proportional(process.pid)
            _prepare(api, sockets, args.calls)
            after = _proportional(process.pid)
            print(f"memory: {before:.1f} MB (PSS), after {args.calls} claims {after:.1f} MB")


def _prepare(api: Api, sockets: Mapping[str, Path], calls: int) -> None:
    """The same claims to all, one after the other."""
    scheduler = Scheduler(api, {"gpu": DeviceClass(DRIVER)})
    taken: dict[str, list[float]] = {name: [] for name in sockets}
    with ExitStack() as opened:
        channels = {name: opened.enter_context(grpc.insecure_channel(f"unix:{path}")) for name, path in sockets.items()}
        for number in range(calls + 10):
            name = f"claim-{number}"
            api.create_claim(name, [requested("gpu", "gpu", count=CARDS)])
            scheduler.reserve(name, "vm")
            uid = api.claim("default", name)["metadata"]["uid"]
            for kind, channel in channels.items():
                took = _call(channel, name, uid)
                if number >= 10:
                    taken[kind].append(took)
            scheduler.release(name, "vm")
            api.delete_claim(name)
            time.sleep(SETTLED_SECONDS)
    medians = {kind: statistics.median(seconds) for kind, seconds in taken.items()}
    for kind, seconds in taken.items():
        p99 = statistics.quantiles(seconds, n=100)[98]
        print(f"{kind}: Prepare of {CARDS}, p50 {medians[kind] * 1e6:.0f} us, p99 {p99 * 1e6:.0f} us")
    for kind, words in (("asking", "the bare driver; at most 1.5 wanted"), ("bare", "one that asks for no claim")):
        ratio = statistics.median(ours / floor for ours, floor in zip(taken["driver"], taken[kind], strict=True))
        print(f"Prepare of {CARDS}: {ratio:.2f}x of {words}")


def _call(channel: grpc.Channel, name: str, uid: str) -> float:
    """Seconds of a Prepare; it is taken back afterwards."""
    claim = wire.Claim(namespace="default", name=name, uid=uid)
    prepare = channel.unary_unary(
        f"{SERVICE}/NodePrepareResources",
        request_serializer=wire.NodePrepareResourcesRequest.SerializeToString,
        response_deserializer=wire.NodePrepareResourcesResponse.FromString,
    )
    request = wire.NodePrepareResourcesRequest(claims=[claim])
    began = time.perf_counter()
    answer = prepare(request, timeout=60)
    seconds = time.perf_counter() - began
    assert len(answer.claims[uid].devices) == CARDS, answer
    unprepare = channel.unary_unary(
        f"{SERVICE}/NodeUnprepareResources",
        request_serializer=wire.NodeUnprepareResourcesRequest.SerializeToString,
        response_deserializer=wire.NodeUnprepareResourcesResponse.FromString,
    )
    assert not unprepare(wire.NodeUnprepareResourcesRequest(claims=[claim]), timeout=60).claims[uid].error
    return seconds


def _bare(folder: Path, name: str, *cluster: Path) -> AbstractContextManager[subprocess.Popen[bytes]]:
    (folder / f"{name}-cdi").mkdir()
    places = (folder / f"{name}.sock", folder / f"{name}-cdi", CARDS, folder / "host", *cluster)
    return _running(*BARE, *map(str, places))


@contextmanager
def _serving(folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    config = folder / "plugin.yaml"
    config.write_text(f'{{"auto": "nvidia", "cdi": {{"folder": "{folder}/cdi"}}, "dra": {{"all": true}}}}')
    places = ("--host", "host", "--kubelet-dir", "k", "--cluster-socket", "cluster.sock", "--ledger", "ledger")
    paths = [part if part.startswith("--") else str(folder / part) for part in places]
    with _running(*PLUGIN, str(config), "--dev-root", str(folder / "host"), *paths) as process:
        yield process


@contextmanager
def _running(*command: str) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(command, env=ENVIRONMENT)
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)


def _until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def _proportional(pid: int) -> float:
    """MB; what processes share is divided among them."""
    rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
    (line,) = (line for line in rollup.splitlines() if line.startswith("Pss:"))
    return int(line.split()[1]) / 1e3


if __name__ == "__main__":
    main()
