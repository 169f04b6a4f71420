"""pytest in the machine: reports go out as they are made, one line each, and are pytest's own again on the host."""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

import pytest

from launcherkit_lab.driver.build import CannotBuild, build
from launcherkit_lab.machine import Machine
from launcherkit_lab.packages import CannotFetch, cache_folder, fetch
from tests.kernel.tree.vmlinux import vmlinux
from tests.support.imports import ROOT
from tests.tiers import KERNEL, KILLS

_REPORTS = "reports"
_SECONDS = max(900, 60 * int(os.environ.get(KILLS, "20")))
"""The longest time without a report before the machine is taken for dead."""


def leave_report(config: pytest.Config, report: pytest.TestReport, folder: Path) -> None:
    """Write a report where the host reads it."""
    data = config.hook.pytest_report_to_serializable(config=config, report=report)
    with open(folder / _REPORTS, "a") as file:
        file.write(json.dumps(data) + "\n")


def was_asked_for(config: pytest.Config) -> bool:
    """Whether the tier has to run: where the machine can't be made then, that is a failure and no skip."""
    return bool(config.getoption("--all-tiers") or config.getoption("--tier"))


def cannot_be_made(config: pytest.Config, error: Exception) -> NoReturn:
    """Skip a test for want of the machine, or fail it where the tier was asked for."""
    end = pytest.fail if was_asked_for(config) else pytest.skip
    end(f"the machine with an IOMMU can't be made here: {error}")


class Inside:
    """One machine for the tests of one session. Where it can't be made they are skipped, or fail if asked for."""

    def __init__(self, config: pytest.Config, items: Sequence[pytest.Item]) -> None:
        self._config = config
        self._found: defaultdict[str, list[pytest.TestReport]] = defaultdict(list)
        self._complete: set[str] = set()
        self._read = 0
        self._progress = time.monotonic()
        self._why_not = ""
        self._asked_for = was_asked_for(config)
        self._told = False
        self.folder = Path(tempfile.mkdtemp(prefix="lk-machine-"))
        command = [
            *(sys.executable, "-m", "pytest", "--quiet", f"--rootdir={ROOT}", "-p", "no:cacheprovider"),
            *("-o", f"faulthandler_timeout={_SECONDS - 60}"),  # where it hangs is on the console then
            f"--tb={config.option.tbstyle}",
            f"--color={'yes' if config.get_terminal_writer().hasmarkup else 'no'}",
            *(["--tier", KERNEL.name] if self._asked_for else []),
            f"@{self.folder / 'tests'}",
        ]
        (self.folder / "tests").write_text("".join(item.nodeid + "\n" for item in items))
        cache = cache_folder(os.environ)
        try:
            with suppress(CannotBuild):  # who needs the driver tells
                kernel = fetch(cache)
                vmlinux(kernel, cache)
                build(kernel.headers, cache)  # in the machine it takes ten times as long
            handed_on = {name: os.environ[name] for name in (KILLS,) if name in os.environ}
            self._running = Machine(cache, ROOT).start(command, self.folder, env=handed_on)
        except (CannotFetch, OSError) as error:
            self._why_not = f"the machine with an IOMMU can't be made here: {error}"

    def reports(self, item: pytest.Item) -> list[pytest.TestReport]:
        """The reports of one test, once it has run; one that says why where it has not."""
        if self._why_not and self._asked_for:
            return [_report(item, "failed", self._why_not)]
        if self._why_not:
            return [_report(item, "skipped", (str(item.path), 0, f"Skipped: {self._why_not}"))]
        while item.nodeid not in self._complete:
            ended = not self._running.is_up()
            self._take()
            if item.nodeid in self._complete:
                break
            if ended or time.monotonic() > self._progress + _SECONDS:
                return [*self._found[item.nodeid], _report(item, "failed", self._what_happened())]
            time.sleep(0.1)
        return self._found[item.nodeid]

    def end(self) -> str:
        """End the machine. What it left stays where a test has failed; then this says where."""
        if not self._why_not:
            self._running.stop()
            if self._has_failed():
                return f"what the machine left, its console too, is in {self.folder}"
        shutil.rmtree(self.folder, ignore_errors=True)
        return ""

    def _take(self) -> None:
        """Read the reports that are new."""
        try:
            with open(self.folder / _REPORTS, "rb") as file:
                file.seek(self._read)
                new = file.read()
        except FileNotFoundError:
            return
        whole = new[: new.rfind(b"\n") + 1]
        self._read += len(whole)
        for line in whole.splitlines():
            data = json.loads(line)
            if data["outcome"] == "skipped" and isinstance(data["longrepr"], list):
                data["longrepr"] = tuple(data["longrepr"])  # JSON has none, and pytest takes nothing else
            report = self._config.hook.pytest_report_from_serializable(config=self._config, data=data)
            self._found[report.nodeid].append(report)
            self._progress = time.monotonic()
            if report.when == "teardown":
                self._complete.add(report.nodeid)

    def _has_failed(self) -> bool:
        return self._told or any(report.failed for reports in self._found.values() for report in reports)

    def _what_happened(self) -> str:
        """Why there is no report, with the end of the console the first time."""
        if self._told:
            return "the machine had ended before: see the first test without a report"
        self._told = True
        late = f"told nothing for {_SECONDS} s" if self._running.is_up() else "ended"
        return f"the machine {late}, with no report of this test:\n{self._running.stop().end()}"


def _report(item: pytest.Item, outcome: str, longrepr: object) -> pytest.TestReport:
    """A report of the host's own."""
    return pytest.TestReport(
        nodeid=item.nodeid,
        location=item.location,
        keywords=dict.fromkeys(item.keywords, 1),
        outcome=outcome,  # type: ignore[arg-type]
        longrepr=longrepr,  # type: ignore[arg-type]
        when="call",
        user_properties=item.user_properties,
    )
