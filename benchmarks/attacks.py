"""Servers under attack: how long an honest call takes, and how much memory the process has (T4).

The sidecar: four peers at a time reset calls, ping, change settings, ping and read nothing, make calls of known and
unknown methods, or open connections; of this process's user, then, if this runs as root, of another one. The honest
client dials for each call, as KubeVirt's launcher does.

The webhook and the metrics' port: see `benchmarks._webhook_attacks` and `benchmarks._metrics_attacks`.

    python benchmarks/attacks.py [sidecar|webhook|metrics] [--seconds 10] [--peers 4]
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import os
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from math import inf
from pathlib import Path
from typing import TypeAlias

from grpclib import GRPCError
from grpclib.exceptions import StreamTerminatedError

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import _metrics_attacks, _webhook_attacks
from tests.support import hostile
from tests.support.hooks import Client, HookProcess, hook_process

Attack: TypeAlias = Callable[[Path, int], None]
"""Attacks a socket with so many peers until the process ends."""

INFO = "/kubevirt.hooks.info.Info/Info"
STRANGER = 65534
"""A user whom the socket's mode lets in because of its group."""


def flooding(chunks: Callable[[str], Iterator[bytes]], method: str, *, reads: bool = True) -> Attack:
    """Peers that send frames without end."""

    def attack(path: Path, peers: int) -> None:
        with hostile.flood(path, partial(chunks, method), peers, reads=reads) as flood:
            flood.threads[0].join()

    return attack


def dialling(path: Path, peers: int) -> None:
    """Peers that open connections without end."""
    threads = [threading.Thread(target=hostile.dial_often, args=(path, threading.Event())) for _ in range(peers)]
    for thread in threads:
        thread.start()
    threads[0].join()


ATTACKS = {
    "resets": flooding(hostile.resets, INFO),
    "pings": flooding(hostile.pings, INFO),
    "settings": flooding(hostile.settings, INFO),
    "pings that read nothing": flooding(hostile.pings, INFO, reads=False),
    "answered calls": flooding(hostile.answered, INFO),
    "calls of unknown methods": flooding(hostile.answered, "/a/b"),
    "connections": dialling,
}


def main() -> None:
    """Attack, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "server", nargs="?", choices=["sidecar", "webhook", "metrics"], default="sidecar", help="(default: sidecar)"
    )
    parser.add_argument("--seconds", type=float, default=10, help="of each attack (default: 10)")
    parser.add_argument("--peers", type=int, default=4, help="that attack the sidecar at once (default: 4)")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="launcherkit-") as folder:
        if args.server == "webhook":
            _webhook_attacks.measure(Path(folder), args.seconds)
        elif args.server == "metrics":
            _metrics_attacks.measure(Path(folder), args.seconds)
        else:
            attack_sidecar(Path(folder), args.seconds, args.peers)


def attack_sidecar(folder: Path, seconds: float, peers: int) -> None:
    """Print a line for each attack, by this process's user and by a stranger."""
    folder.chmod(0o755)
    with hook_process("--socket-dir", str(folder), "--host", "none") as hook:
        path = folder / "hook.sock"
        report("nothing", *asyncio.run(define_often(path, seconds)), hook)
        for user in dict.fromkeys((os.getuid(), STRANGER if os.getuid() == 0 else os.getuid())):
            for name, attack in ATTACKS.items():
                with attacking(attack, path, peers, user):
                    report(f"{name} of user {user}", *asyncio.run(define_often(path, seconds)), hook)


@contextmanager
def attacking(attack: Attack, path: Path, peers: int, user: int) -> Iterator[None]:
    """Another process attacks while the block runs."""

    def run() -> None:
        os.nice(19)  # real ones have processors of their own
        os.setuid(user)
        attack(path, peers)

    process = multiprocessing.get_context("fork").Process(target=run)
    process.start()
    try:
        yield
    finally:
        process.kill()
        process.join()


async def define_often(path: Path, seconds: float) -> tuple[list[float], int]:
    """Seconds of each call, and the number of those that failed."""
    taken, failed = [], 0
    end = time.perf_counter() + seconds
    while (began := time.perf_counter()) < end:
        try:
            async with Client(path) as client:
                await client.define()
        except (OSError, StreamTerminatedError, GRPCError, AttributeError):  # the last is grpclib's
            failed += 1
        else:
            taken.append(time.perf_counter() - began)
    return taken, failed


def report(attack: str, taken: list[float], failed: int, hook: HookProcess) -> None:
    """One line."""
    p50, p99 = (statistics.median(taken), statistics.quantiles(taken, n=100)[98]) if len(taken) > 1 else (inf, inf)
    print(
        f"under {attack}: {len(taken)} calls, {failed} failed, p50 {1e3 * p50:.1f} ms, p99 {1e3 * p99:.1f} ms, "
        f"at most {hook.resident_peak():.1f} MB resident",
        flush=True,
    )


if __name__ == "__main__":
    main()
