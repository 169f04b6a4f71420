"""The exec hook as a process, against ``python -I -c 'import lxml.etree'``; and its memory.

Ratios are medians of interleaved pairs. The targets: at most 1.40 for 8 devices, at most 1.15 from 8 to 64, and at
most 20 MB.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from tests.support.samples import sample

COUNTS = (1, 8, 64)
FLOOR = (sys.executable, "-I", "-c", "import lxml.etree")


class Run(NamedTuple):
    """Seconds from start to end, and the resident peak in MB."""

    seconds: float
    peak: float


def run(command: Sequence[str], env: Mapping[str, str]) -> Run:
    """Start a process and wait for it."""
    start = time.perf_counter()
    process = subprocess.Popen(command, env=dict(env), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - start
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{' '.join(command)[:80]}: exit code {process.returncode}")
    return Run(seconds, usage.ru_maxrss / 1000)


def hook_command(count: int, functions: int, host: str) -> tuple[list[str], dict[str, str]]:
    """The command as the sidecar-shim calls it, and its environment."""
    inputs = sample(count, functions)
    script = str(Path(sys.executable).with_name("onDefineDomain"))
    return [script, "--vmi", inputs.vmi_json, "--domain", inputs.domain_xml], {**inputs.env, "LAUNCHERKIT_HOST": host}


def host_tree(directory: Path, count: int, functions: int) -> str:
    """A directory with ``sys/`` and ``dev/`` for the sample's cards."""
    from tests.support.hosttree import HostTree

    tree = HostTree(directory)
    for address, function in sample(count, functions).facts.functions.items():
        tree.function(
            str(address),
            device=function.device,
            class_code=function.class_code,
            driver="vfio-pci",
            group=function.iommu_group,
        )
    return str(directory)


def measure(functions: int, pairs: int, directory: Path | None) -> None:
    """Print one table: devices of so many functions, on a tree in ``directory`` or with no host facts."""
    hosts = {
        count: "none" if directory is None else host_tree(directory / str(count), count, functions) for count in COUNTS
    }
    commands = {count: hook_command(count, functions, hosts[count]) for count in COUNTS}
    floors: list[Run] = []
    runs: dict[int, list[Run]] = {count: [] for count in COUNTS}
    for _ in range(pairs):
        floors.append(run(FLOOR, {}))
        for count, (command, env) in commands.items():
            runs[count].append(run(command, env))
    where = "no host facts" if directory is None else "facts from a sysfs tree"
    print(
        f"devices of {functions} function(s), {where}; floor "
        f"{1000 * statistics.median(r.seconds for r in floors):.1f} ms"
    )
    for count in COUNTS:
        ratio = statistics.median(r.seconds / floor.seconds for r, floor in zip(runs[count], floors, strict=True))
        print(f"  {count:3} devices: {ratio:.2f} of the floor, peak {max(r.peak for r in runs[count]):.1f} MB")
    growth = statistics.median(many.seconds / few.seconds for many, few in zip(runs[64], runs[8], strict=True))
    print(f"  from 8 to 64 devices: {growth:.2f}")


def main() -> None:
    """Measure with and without host facts, for cards of one and of two functions."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=31, help="at least 21 (default: 31)")
    pairs = parser.parse_args().pairs
    for functions in (1, 2):
        measure(functions, pairs, None)
        with tempfile.TemporaryDirectory() as directory:
            measure(functions, pairs, Path(directory))


if __name__ == "__main__":
    main()
