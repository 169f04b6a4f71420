"""A copy of the checkout in which one line at a time is wrong, and what the tests say to that."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from tests.mutation.mutants import Mutant
from tests.mutation.recorder import CALLS, FOLDERS
from tests.mutation.selection import TESTS

_PYTEST = ["-p", "tests.mutation.selection", "-p", "no:cacheprovider", "-q", "--base", "--hypothesis-seed=0"]
_RECORD = f"""import os
if {CALLS!r} in os.environ:
    from tests.mutation.recorder import started
    started()
"""
"""What a Python in the copy does when it starts."""
_RECORD_SECONDS = 600.0
"""For a folder of tests. What has no result by then notices no mutants."""
_SETUP = 10_000.0
"""Sorts tests last that may see a function by what was set up for another test."""


class CannotRecord(Exception):
    """The tests don't even run without a mutant."""


class Calls(NamedTuple):
    """Which tests call which function."""

    seconds: Mapping[str, float]
    """Of each test that passes without a mutant."""
    lost: frozenset[str]
    """Tests that don't pass in the copy, or were skipped; what they would notice is not known."""
    tests: Mapping[tuple[str, int], Mapping[str, bool]]
    """By file and first line of a function; whether the function was called for the test itself."""
    anywhere: frozenset[tuple[str, int]] = frozenset()
    """Functions that were called while modules of tests were imported: what they returned may be used by any test."""
    unread: frozenset[str] = frozenset()
    """Folders of tests that there was no time for, or not enough."""

    def of(self, mutant: Mutant, at_most: float) -> list[str]:
        """The tests that can notice a mutant, quickest first, until they take ``at_most`` seconds together."""
        own = (mutant.path, mutant.first)
        called_in_a_test = mutant.first and own not in self.anywhere
        functions = [own] if called_in_a_test else [key for key in self.tests if key[0] == mutant.path]
        direct: dict[str, bool] = {}
        for function in functions:
            for test, called in self.tests.get(function, {}).items():
                direct[test] = direct.get(test, False) or called
        return self._quickest(direct, at_most)

    def unseen(self, folder: str, tried: Collection[str], at_most: float) -> list[str]:
        """Tests in a folder that may notice a mutant although no call was seen.

        A Python may have been started without its environment, and what a cached function has called for one test it
        doesn't call for the next.
        """
        others = (test for test in self.seconds if test.startswith(f"{folder}/") and test not in tried)
        return self._quickest(dict.fromkeys(others, True), at_most)

    def _quickest(self, direct: Mapping[str, bool], at_most: float) -> list[str]:
        order = sorted(
            (test for test in direct if test in self.seconds),
            key=lambda test: self.seconds[test] + (0 if direct[test] else _SETUP),
        )
        total = 0.0
        found: list[str] = []
        for test in order:
            total += self.seconds[test]
            if found and total > at_most:
                break
            found.append(test)
        return found


class Copy:
    """A copy of the checkout's files, with its own compiled modules; the environment is the checkout's."""

    def __init__(self, root: Path, folder: Path) -> None:
        self.folder = folder
        self._runs = 0
        listed = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            cwd=root,
            capture_output=True,
            check=True,
        )
        for name in filter(None, listed.stdout.decode().split("\0")):
            if (root / name).exists() or (root / name).is_symlink():
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(root / name, folder / name, follow_symlinks=False)
        (folder / "sitecustomize.py").write_text(_RECORD)

    def record(self, files: Iterable[str], folders: Sequence[str], ends: float = float("inf")) -> Calls:
        """Run the tests of some files as they are, folder by folder, until ``ends`` on the monotonic clock.

        What was compiled for that stays for the runs with mutants, whatever the environment says.
        """
        output = self.folder / ".calls"
        output.write_text("")
        inside = os.pathsep.join(f"{self.folder / folder}/" for folder in folders)
        env = {CALLS: str(output), FOLDERS: inside, "PYTHONDONTWRITEBYTECODE": ""}
        together: dict[str, list[str]] = {}
        for file in files:
            together.setdefault(os.path.dirname(file), []).append(file)
        unread = set()
        for folder, inside_it in together.items():  # one that hangs takes no others with it
            left = ends - time.monotonic()
            code = self._pytest(inside_it, min(_RECORD_SECONDS, left), **env) if left > 0 else None
            if code is None:
                unread.add(folder)
            elif code not in (0, 1, 5):  # 5: all are of other tiers
                raise CannotRecord(f"pytest ended with {code} in {folder}, where nothing was changed:\n{self.said()}")
        return _read(output, self.folder)._replace(unread=frozenset(unread))

    def kills(self, mutant: Mutant, tests: Sequence[str], seconds: float) -> bool:
        """Whether a test fails, or all of them take more than ``seconds``, with the mutant in place."""
        chosen = self.folder / ".chosen"
        chosen.write_text("\n".join(tests))
        files = list(dict.fromkeys(test.partition("::")[0] for test in tests))
        with self._changed(mutant):
            code = self._pytest(["-x", *files], seconds, PYTHONDONTWRITEBYTECODE="1", **{TESTS: str(chosen)})
        return code != 0

    def said(self) -> str:
        """The end of what pytest wrote last."""
        return "\n".join((self.folder / ".said").read_text(errors="replace").splitlines()[-40:])

    @contextlib.contextmanager
    def _changed(self, mutant: Mutant) -> Iterator[None]:
        """With another modification time, so that what was compiled of the module counts again afterwards."""
        path = self.folder / mutant.path
        before, stat = path.read_bytes(), path.stat()
        path.write_text(mutant.source)
        os.utime(path, (stat.st_atime, stat.st_mtime + 10_000))
        try:
            yield
        finally:
            path.write_bytes(before)
            os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))

    def _pytest(self, arguments: Sequence[str], seconds: float, **more: str) -> int | None:
        """The exit code of pytest; None if it took too long."""
        shutil.rmtree(self.folder / ".hypothesis", ignore_errors=True)  # what failed with another mutant
        # Short, and so is the next: a socket's path has 107 bytes at most. A new one each time: a test that ended in
        # the middle may have left something mounted there.
        shutil.rmtree(self.folder / f"t{self._runs}", ignore_errors=True)
        self._runs += 1
        temporary = self.folder / f"t{self._runs}"
        temporary.mkdir()
        paths = os.pathsep.join([str(self.folder), str(self.folder / "plugin")])
        env = os.environ | {"PYTHONPATH": paths, "TMPDIR": str(temporary)} | more
        with (self.folder / ".said").open("wb") as said:
            process = subprocess.Popen(
                [sys.executable, "-m", "pytest", *_PYTEST, f"--basetemp={temporary / 'b'}", *arguments],
                cwd=self.folder,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                start_new_session=True,
            )
            try:
                return process.wait(seconds)
            except subprocess.TimeoutExpired:
                return None
            finally:
                with contextlib.suppress(ProcessLookupError):  # what tests have left behind ends as well
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def _read(output: Path, folder: Path) -> Calls:
    seconds: dict[str, float] = {}
    called: dict[tuple[str, int], dict[str, bool]] = {}
    files: dict[tuple[str, int], set[str]] = {}
    anywhere = set()
    for line in output.read_text().splitlines():
        match json.loads(line):
            case [str(test), float(took)]:
                seconds[test] = took
            case [str(test), bool(setup), str(path), int(first)]:
                key = (str(Path(path).relative_to(folder)), first)
                if test:
                    called.setdefault(key, {})[test] = True
                else:
                    anywhere.add(key)
                if setup:
                    files.setdefault(key, set()).add(test.partition("::")[0])
    for key, names in files.items():
        for test in seconds:
            if test.partition("::")[0] in names:
                called[key].setdefault(test, False)
    passed = {test: took for test, took in seconds.items() if took != float("inf")}
    return Calls(passed, frozenset(seconds.keys() - passed.keys()), called, frozenset(anywhere))
