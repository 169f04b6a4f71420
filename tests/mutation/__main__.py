"""`./dev mutate`: makes lines wrong, one at a time, and says which of them no test notices."""

from __future__ import annotations

import argparse
import queue
import re
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from tests.mutation.mutants import Mutant, chosen, mutants
from tests.mutation.rooms import Room, files_for, folder_for, named, rooms
from tests.mutation.trial import Calls, Copy

ROOT = Path(__file__).parents[2]
ACCEPTED = Path(__file__).with_name("accepted.toml")
ROOM_SECONDS = 30.0
"""Of tests for a mutant, as they took without one. The quickest come first, and most mutants die by one of those."""


class Outcome(NamedTuple):
    """Of one room, or of all."""

    room: str
    tried: int
    accepted: int
    survivors: list[Mutant]

    @property
    def share(self) -> float:
        """Of those that aren't accepted."""
        counted = self.tried - self.accepted
        return len(self.survivors) / counted if counted else 0.0

    def __str__(self) -> str:
        survived = len(self.survivors)
        counts = f"{self.tried - self.accepted - survived:>7} {self.accepted:>9} {survived:>9}"
        return f"{self.room:<36} {self.tried:>6} {counts} {self.share:>6.0%}"


def parser_of_arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="./dev mutate", description=__doc__)
    parser.add_argument(
        "rooms", nargs="*", metavar="PACKAGE", help="vgpu or launcherkit/choose, for example; none: all"
    )
    parser.add_argument("--mutants", type=int, default=25, metavar="N", help="in each room (default: 25); 0: all")
    parser.add_argument("--seed", type=int, default=1, help="another one chooses other mutants (default: 1)")
    parser.add_argument(
        "--since",
        metavar="COMMIT",
        help="only N mutants in all, in the lines that changed since then; of one package by chance if there are none",
    )
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="mutants at a time (default: 1)")
    parser.add_argument(
        "--limit",
        type=float,
        metavar="SECONDS",
        help="begin with no mutant after that time; half of it is for finding out which test calls what",
    )
    parser.add_argument("--report", action="store_true", help="exit with 0 even if a mutant survives")
    return parser


def main() -> int:
    parser = parser_of_arguments()
    arguments = parser.parse_args()
    known = rooms(ROOT)
    asked = [room for name in arguments.rooms for room in named(name, known) or parser.error(f"no room {name}")]
    number = arguments.mutants or sys.maxsize
    if arguments.since:
        lines = changed_lines(arguments.since)
        changed = [
            mutant for room in asked or known for mutant in _all_of(room) if mutant.line in lines.get(mutant.path, ())
        ]
        wanted = chosen(changed, number, arguments.seed)
        print(f"{len(changed)} mutants in the lines that changed since {arguments.since}, {len(wanted)} chosen")
        if not wanted and not asked:
            room, seed = turn_of(_git("rev-parse", "HEAD"), known)
            wanted = chosen(_all_of(room), number, seed)
            print(f"instead {len(wanted)} of {room.name}, whose turn it is by the commit's hash")
    else:
        wanted = [mutant for room in asked or known for mutant in chosen(_all_of(room), number, arguments.seed)]
    touched = {mutant.path for mutant in wanted}
    where = [room for room in known if touched.intersection(room.modules)]
    limit = arguments.limit or float("inf")
    found = report(where, run(wanted, where, arguments.jobs, limit)) if wanted else 0
    return 0 if arguments.report else found


def turn_of(commit: str, known: Sequence[Room]) -> tuple[Room, int]:
    """The room whose turn it is with a commit, by its hash, and a seed."""
    seed = int(commit[:12], 16)
    return known[seed % len(known)], seed


def changed_lines(since: str) -> dict[str, set[int]]:
    """By module: its lines that a commit hasn't."""
    text = _git("diff", "--unified=0", "--no-color", "--no-ext-diff", since, "--", "*.py")
    found: dict[str, set[int]] = {}
    path = ""
    for line in text.splitlines():
        if line.startswith("+++ "):
            path = line.removeprefix("+++ b/")
        elif hunk := re.match(r"@@ -\S+ \+(\d+)(?:,(\d+))? @@", line):
            first, count = int(hunk[1]), int(hunk[2] or 1)
            found.setdefault(path, set()).update(range(first, first + count))
    return found


def accepted() -> dict[tuple[str, str, str, str, int], str]:
    """Mutants that need no test, by their `Mutant.key`, and why: most change nothing that can be seen."""
    entries = tomllib.loads(ACCEPTED.read_text())["mutant"]
    return {
        (entry["path"], entry["function"], entry["before"], entry["after"], entry.get("ordinal", 0)): entry["why"]
        for entry in entries
    }


def run(wanted: Sequence[Mutant], where: Sequence[Room], jobs: int, limit: float) -> dict[Mutant, bool]:
    """Whether each mutant was killed; without those that no time was left for, of ``limit`` seconds."""
    needless = accepted()
    own = {path: folder_for(room) for room in where for path in room.modules}
    began = time.monotonic()
    with (
        tempfile.TemporaryDirectory(prefix="lk-", ignore_cleanup_errors=True) as scratch,
        ThreadPoolExecutor(jobs) as pool,
    ):
        copies: queue.SimpleQueue[Copy] = queue.SimpleQueue()
        every = [Copy(ROOT, Path(scratch, str(number))) for number in range(jobs)]
        files = dict.fromkeys(file for room in where for file in files_for(room, ROOT))
        calls = every[0].record(files, [room.name for room in where], began + limit / 2)
        print(
            f"{len(calls.seconds)} tests of {len(files)} files; they took {sum(calls.seconds.values()):.0f} s",
            flush=True,
        )
        if calls.lost:
            print(f"skipped, or failing without a mutant: {', '.join(sorted(calls.lost))}", flush=True)
        if calls.unread:
            print(f"not all of their tests were found in time: {', '.join(sorted(calls.unread))}", flush=True)
        for copy in every:
            copies.put(copy)

        def is_killed(mutant: Mutant) -> bool | None:
            if time.monotonic() > began + limit or mutant.key in needless:
                return None
            if calls.unread and not calls.of(mutant, ROOM_SECONDS):
                return None
            copy = copies.get()
            try:
                return _is_killed(copy, mutant, calls, own[mutant.path])
            finally:
                copies.put(copy)

        outcomes = {}
        for mutant, killed in zip(wanted, pool.map(is_killed, wanted), strict=True):
            if killed is False:
                print(f"survives: {mutant}", flush=True)
            if killed is not None or mutant.key in needless:
                outcomes[mutant] = killed is not False
        if left := len(wanted) - len(outcomes):
            print(f"{left} mutants were not tried: the time was up", flush=True)
        return outcomes


def _is_killed(copy: Copy, mutant: Mutant, calls: Calls, folder: str) -> bool:
    tests = calls.of(mutant, ROOM_SECONDS)
    return _notice(copy, mutant, calls, tests) or (
        bool(folder) and _notice(copy, mutant, calls, calls.unseen(folder, tests, ROOM_SECONDS))
    )


def _notice(copy: Copy, mutant: Mutant, calls: Calls, tests: Sequence[str]) -> bool:
    took = sum(calls.seconds[test] for test in tests)
    return bool(tests) and copy.kills(mutant, tests, 60 + 5 * took)


def report(where: Sequence[Room], outcomes: Mapping[Mutant, bool]) -> int:
    """Print a line a room, and return 1 where a mutant has survived that nobody has accepted."""
    needless = accepted()
    rows = []
    for room in where:
        own = {mutant: killed for mutant, killed in outcomes.items() if mutant.path in room.modules}
        fine = sum(mutant.key in needless for mutant in own)
        rows.append(Outcome(room.name, len(own), fine, [mutant for mutant, killed in own.items() if not killed]))
    survivors = [mutant for row in rows for mutant in row.survivors]
    print(f"\n{'room':<36} {'tried':>6} {'killed':>7} {'accepted':>9} {'survived':>9} {'share':>6}")
    for row in (*rows, Outcome("all", sum(row.tried for row in rows), sum(row.accepted for row in rows), survivors)):
        print(row)
    if survivors:
        print("\nno test noticed:")
        for mutant in survivors:
            print(f"  {mutant}")
        print(f"Write a test, or say in {ACCEPTED.relative_to(ROOT)} why none is needed.")
    return 1 if survivors else 0


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout


def _all_of(room: Room) -> list[Mutant]:
    return [mutant for path in room.modules for mutant in mutants(path, (ROOT / path).read_text())]


if __name__ == "__main__":
    sys.exit(main())
