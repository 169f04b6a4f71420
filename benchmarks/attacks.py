"""Servers under attack: how long an honest call takes, and how much memory the process has (T4).

The sidecar: four peers at a time reset calls, ping, change settings, or ping and read nothing. The honest client dials
for each call, as KubeVirt's launcher does. The targets: p99 under 50 ms, resident under 64 MB.

The webhook: see `benchmarks._webhook_attacks`.

    python benchmarks/attacks.py [sidecar|webhook] [--seconds 10] [--peers 4]
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import _webhook_attacks
from tests.support import hostile
from tests.support.hooks import Client, HookProcess, hook_process

INFO = "/kubevirt.hooks.info.Info/Info"
ATTACKS = {
    "resets": (hostile.resets, True),
    "pings": (hostile.pings, True),
    "settings": (hostile.settings, True),
    "pings that read nothing": (hostile.pings, False),
}


def main() -> None:
    """Attack, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "server", nargs="?", choices=["sidecar", "webhook"], default="sidecar", help="(default: sidecar)"
    )
    parser.add_argument("--seconds", type=float, default=10, help="of each attack (default: 10)")
    parser.add_argument("--peers", type=int, default=4, help="that attack the sidecar at once (default: 4)")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="launcherkit-") as folder:
        if args.server == "webhook":
            _webhook_attacks.measure(Path(folder), args.seconds)
        else:
            attack_sidecar(Path(folder), args.seconds, args.peers)


def attack_sidecar(folder: Path, seconds: float, peers: int) -> None:
    """Print a line for each attack."""
    with hook_process("--socket-dir", str(folder), "--host", "none") as hook:
        path = folder / "hook.sock"
        tell("nothing", asyncio.run(define_often(path, seconds)), hook)
        for name, (chunks, reads) in ATTACKS.items():
            with hostile.flood(path, partial(chunks, INFO), peers, reads=reads):
                tell(name, asyncio.run(define_often(path, seconds)), hook)


async def define_often(path: Path, seconds: float) -> list[float]:
    """Seconds of each call."""
    taken = []
    end = time.perf_counter() + seconds
    while (began := time.perf_counter()) < end:
        async with Client(path) as client:
            await client.define()
        taken.append(time.perf_counter() - began)
    return taken


def tell(attack: str, taken: list[float], hook: HookProcess) -> None:
    """One line."""
    p50, p99 = statistics.median(taken), statistics.quantiles(taken, n=100)[98]
    print(
        f"under {attack}: {len(taken)} calls, p50 {1e3 * p50:.1f} ms, p99 {1e3 * p99:.1f} ms, "
        f"at most {hook.resident_peak():.1f} MB resident"
    )


if __name__ == "__main__":
    main()
