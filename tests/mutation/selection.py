"""A plugin of pytest, in the runs that `./dev mutate` starts: it runs chosen tests, and tells the recorder of each.

The tests that the file ``MUTATION_TESTS`` names run in its order. Where calls are recorded, so is the time that each
test took: a test and its seconds, a line of the same file. A test that failed or was skipped took infinitely long.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.mutation.recorder import CALLS, CURRENT, FOLDERS, Recorder, started

TESTS = "MUTATION_TESTS"


class Recorded:
    """Tells the recorder which test runs."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._seconds: dict[str, float] = {}

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self._recorder.begin(item.nodeid)
        yield

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_setup(self) -> Iterator[None]:
        self._recorder.set_up(True)
        yield
        self._recorder.set_up(False)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        lost = float("inf") if report.failed or report.skipped else 0.0
        seconds = self._seconds.pop(report.nodeid, 0.0) + report.duration + lost
        if report.when == "teardown":
            self._recorder.write([report.nodeid, seconds])
        else:
            self._seconds[report.nodeid] = seconds


class Chosen:
    """Runs the given tests, in their order."""

    def __init__(self, names: list[str]) -> None:
        self._places = {name: place for place, name in enumerate(names)}

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        chosen = [item for item in items if item.nodeid in self._places]
        items[:] = sorted(chosen, key=lambda item: self._places[item.nodeid])


def _tell_processes() -> None:
    """Processes whose environment the test has written itself are told what others inherit."""
    plain: Any = subprocess.Popen.__init__

    def told(self: subprocess.Popen[Any], *args: Any, env: Mapping[str, str] | None = None, **more: Any) -> None:
        known = {name: os.environ[name] for name in (CALLS, FOLDERS, CURRENT) if name in os.environ}
        plain(self, *args, env=None if env is None else {**env, **known}, **more)

    subprocess.Popen.__init__ = told  # type: ignore[assignment, method-assign]


def pytest_configure(config: pytest.Config) -> None:
    if tests := os.environ.get(TESTS):
        config.pluginmanager.register(Chosen(Path(tests).read_text().splitlines()))
    if CALLS in os.environ:
        _tell_processes()
        config.pluginmanager.register(Recorded(started()))
