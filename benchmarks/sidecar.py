"""The hook sidecar over its socket: how long a call takes, above what the client and gRPC cost, and how much memory.

The targets: at most 3 ms for the median of 8 devices, at most 40 MB resident after 1,000 calls. The client is Python
too and costs most of the floor, which is a call of Info.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from grpclib.client import Channel

from benchmarks.hook import host_tree
from launcherkit.hooks.proto import hooks_info_pb2, hooks_v1alpha3_pb2
from launcherkit.rpc.methods import call
from tests.support.samples import from_kubevirt, sample

COUNTS = (1, 8, 64)
FUNCTIONS = 2
LAUNCHERKIT = (sys.executable, "-c", "import sys; from launcherkit.cli.main import main; sys.exit(main())")


def main() -> None:
    """Measure with facts from a sysfs tree, for VMs of some numbers of two-function cards."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=1000, help="of each kind (default: 1000)")
    calls = parser.parse_args().calls
    with tempfile.TemporaryDirectory(prefix="launcherkit-") as folder:
        for count in COUNTS:
            measure(Path(folder) / str(count), count, calls)


def measure(folder: Path, count: int, calls: int) -> None:
    """One sidecar, for VMs of so many devices; prints two lines."""
    folder.mkdir()
    host = host_tree(folder / "host", count, FUNCTIONS)
    start = time.perf_counter()
    process = subprocess.Popen(
        [*LAUNCHERKIT, "hook", "serve", "--socket-dir", str(folder), "--host", host],
        env={"CONTAINER_NAME": "hook", "PYTHONPATH": str(Path(__file__).parents[1])},
        stderr=subprocess.PIPE,
    )
    try:
        assert process.stderr is not None
        line = process.stderr.readline()
        if b"serving" not in line:
            raise SystemExit(line.decode())
        ready = time.perf_counter() - start
        before = resident(process.pid)
        floor, defined = asyncio.run(call_often(folder / "hook.sock", count, calls))
        print(f"{count} devices of {FUNCTIONS} functions, {calls} calls; ready after {1000 * ready:.0f} ms")
        print(f"  Info           p50 {quantile(floor, 50):.2f} ms, p99 {quantile(floor, 99):.2f} ms")
        print(f"  OnDefineDomain p50 {quantile(defined, 50):.2f} ms, p99 {quantile(defined, 99):.2f} ms")
        print(f"  resident       {before:.1f} MB at first, {resident(process.pid):.1f} MB after")
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)


async def call_often(path: Path, count: int, calls: int) -> tuple[list[float], list[float]]:
    """Seconds of each call of Info and of OnDefineDomain, one after the other over one connection."""
    channel = Channel(path=str(path))
    info = hooks_info_pb2.DESCRIPTOR.services_by_name["Info"].methods_by_name["Info"]
    define = hooks_v1alpha3_pb2.DESCRIPTOR.services_by_name["Callbacks"].methods_by_name["OnDefineDomain"]
    asked = hooks_v1alpha3_pb2.OnDefineDomainParams(
        domainXML=from_kubevirt(count), vmi=sample(count, FUNCTIONS).vmi_json.encode()
    )
    floor: list[float] = []
    defined: list[float] = []
    try:
        for _ in range(calls):
            floor.append(await timed(lambda: call(channel, info, hooks_info_pb2.InfoParams())))
            defined.append(await timed(lambda: call(channel, define, asked)))
    finally:
        channel.close()
    return floor, defined


async def timed(call: Callable[[], Awaitable[object]]) -> float:
    """Seconds that a call takes."""
    start = time.perf_counter()
    await call()
    return time.perf_counter() - start


def quantile(seconds: list[float], percent: int) -> float:
    """In milliseconds."""
    return 1000 * statistics.quantiles(seconds, n=100)[percent - 1]


def resident(pid: int) -> float:
    """MB."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


if __name__ == "__main__":
    main()
