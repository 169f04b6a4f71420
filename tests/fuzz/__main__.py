"""`./dev fuzz`: runs the fuzzers, one after the other, and tells what they found."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.fuzz.targets import NAMES, seeds, target

ROOT = Path(__file__).parents[2]
FOUND = ROOT / ".fuzz"
"""What fuzzers have found: inputs that were new to them, and those that failed. Not in git."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="./dev fuzz", description=__doc__)
    parser.add_argument("name", nargs="?", choices=NAMES, help="this fuzzer alone")
    parser.add_argument("--seconds", type=int, default=60, help="for each of them (default: 60; 3600 is an hour)")
    parser.add_argument("--report", action="store_true", help="exit with 0 whatever new inputs show")
    parser.add_argument(
        "--input", type=Path, metavar="FILE", help="run NAME on one input instead, to see a failure again"
    )
    arguments = parser.parse_args()
    if arguments.input:
        if not arguments.name:
            parser.error("--input needs the name of the fuzzer")
        target(arguments.name)(arguments.input.read_bytes())
        print(f"{arguments.name}: nothing wrong with {arguments.input}")
        return 0
    names = [arguments.name] if arguments.name else list(NAMES)
    failed = [name for name in names if not fuzz(name, arguments.seconds)]
    print(f"fuzzers: {', '.join(name + (' FAILED' if name in failed else '') for name in names)}")
    return 1 if failed and not arguments.report else 0


def fuzz(name: str, seconds: int) -> bool:
    """Run one fuzzer; whether it found nothing."""
    kept, failures = FOUND / name / "inputs", FOUND / name / "failures"
    for folder in kept, failures:
        folder.mkdir(parents=True, exist_ok=True)
    before = set(failures.iterdir())
    print(f"== {name}, {seconds} s", flush=True)
    limits = [f"-max_total_time={seconds}", "-timeout=20", "-rss_limit_mb=2048", "-max_len=16384"]
    output = ["-print_final_stats=1", "-verbosity=0", f"-artifact_prefix={failures}/"]
    command = [sys.executable, "-m", "tests.fuzz.drive", name, *limits, *output, str(kept), str(seeds(name))]
    with tempfile.TemporaryDirectory() as scratch:  # libFuzzer ends its process at once, and tidies nothing up
        env = os.environ | {"TMPDIR": scratch}
        done = subprocess.run(command, cwd=ROOT, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    log = done.stdout.decode(errors="replace").splitlines()
    code = done.returncode
    print("\n".join(log[-60:] if code else [line for line in log if line.startswith("stat::")]))
    for path in sorted(set(failures.iterdir()) - before):
        print(f"{name} failed on {path}; again: ./dev fuzz {name} --input {path}")
    return code == 0


if __name__ == "__main__":
    sys.exit(main())
