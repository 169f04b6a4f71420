"""How long ``launcherkit topology`` takes on a large host, against ``launcherkit snapshot`` on the same one.

A tree of two-function cards is built in a temporary directory. Both are run as processes, one after the other,
their output thrown away. The target, for the text: at most 1.5 times the snapshot's time.

    python -m benchmarks.host_tree [--pairs 7] [--functions 4096]
"""

from __future__ import annotations

import argparse
import resource
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.sysfs_scan import build

_FORMS = {"text": (), "JSON": ("--json",), "SVG": ("--svg",), "HTML": ("--html",)}


_SNAPSHOT = """import sys
from launcherkit.host.source import open_host
from launcherkit.host.snapshot import dump
sys.stdout.write(dump(open_host(sys.argv[1]).scan()))"""
"""What the command does on its own machine. It reads a root elsewhere with care for links that lead out of it, which
takes longer and would flatter us."""


def seconds(*arguments: str) -> float:
    """The CPU time that Python takes from start to end, which a busy machine changes least."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, *arguments], stdout=subprocess.DEVNULL, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    """Build, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=7, help="pairs a figure (default: 7)")
    parser.add_argument("--functions", type=int, default=4096, help="of the host (default: 4096)")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="launcherkit-bench-") as directory:
        build(Path(directory), args.functions)
        for form, flags in _FORMS.items():
            taken = [
                (
                    seconds("-c", _SNAPSHOT, directory),
                    seconds("-m", "launcherkit", "topology", "--host", directory, *flags),
                )
                for _ in range(args.pairs)
            ]
            ratio = statistics.median(ours / theirs for theirs, ours in taken)
            ours = statistics.median(ours for _, ours in taken)
            print(f"{args.functions} functions as {form:5} {ratio:6.3f}x of the snapshot {ours * 1e3:8.0f} ms of CPU")


if __name__ == "__main__":
    main()
