"""Tiers: what can't run here is skipped, loudly, or fails where every tier was asked for (``--all-tiers``).

With ``--without TIER`` the latter leaves out a tier, and says how many tests those are.
"""

from __future__ import annotations

import gc
import os
import re
import resource
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import hypothesis
import pytest

from tests import workers
from tests.support import forked
from tests.tiers import BASE, EXAMPLES, TIERS, Tier

ALL_TIERS = "--all-tiers"
ONE_TIER = "--tier"
BASE_ALONE = "--base"
WITHOUT = "--without"
hypothesis.settings.register_profile(
    "tests",
    deadline=None,  # no test asserts how long something took
    suppress_health_check=[hypothesis.HealthCheck.too_slow],  # nor how long its examples took to make
    max_examples=int(os.environ.get(EXAMPLES, "40")),
    # What was found is kept in the checkout, where that can be written to.
    **({} if os.access(Path(__file__).parents[1], os.W_OK) else {"database": None}),
)
hypothesis.settings.load_profile("tests")

_GOLDEN = Path(__file__).with_name("golden")
_LAYOUT = Path(__file__).with_name("layout")
_TIERS = {tier.name for tier in TIERS}
_OF_A_TIER = re.compile(rf"^pytestmark = \[?\s*pytest\.mark\.(?:{'|'.join(_TIERS)})\b", re.MULTILINE)
_FILES = 1024
_DONE = ("passed", "failed", "error", "xfailed", "xpassed")


def pytest_addoption(parser: pytest.Parser, pluginmanager: pytest.PytestPluginManager) -> None:
    pluginmanager.register(workers)
    parser.addoption(ALL_TIERS, action="store_true", help="a tier that can't run here is an error, not a skip")
    parser.addoption(WITHOUT, metavar="TIER", action="append", default=[], help="leave this tier out, and say so")
    parser.addoption(BASE_ALONE, action="store_true", help=f"run {BASE} tests alone, and say what is left out")
    parser.addoption(ONE_TIER, metavar="TIER", help="run this tier alone; that it can't run here is an error")


def pytest_configure(config: pytest.Config) -> None:
    """Fail at once where a tier was asked for that can't run."""
    gc.disable()  # until all tests are collected: of what that makes nothing is garbage
    os.umask(0o022)  # else a stricter one keeps those who are somebody else in a test from its files
    if config.getoption(BASE_ALONE):  # as on the machine of a user of Debian, wherever they run
        resource.setrlimit(resource.RLIMIT_NOFILE, (_FILES, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    only = config.getoption(ONE_TIER)
    if only:
        config.option.markexpr = f"{only} and ({config.option.markexpr})" if config.option.markexpr else only
    for tier in TIERS:
        wanted = config.getoption(ALL_TIERS) and tier.name not in config.getoption(WITHOUT)
        if not (wanted or tier.name == only):
            continue
        if missing := tier.missing():
            raise pytest.UsageError(f"the {tier.name} tier can't run: no {', '.join(missing)}; {tier.how_to_get()}")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out what every process would look into, or even import, for nothing.

    That is golden cases, which are no folders of tests, and with --base what reads the code alone, which `./dev lint`
    runs, and the files that are a tier's as a whole.
    """
    if collection_path.suffix != ".py":
        left_out = collection_path.parent == _GOLDEN or (config.getoption(BASE_ALONE) and collection_path == _LAYOUT)
        return True if left_out else None
    return True if config.getoption(BASE_ALONE) and _OF_A_TIER.search(collection_path.read_text()) else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption(BASE_ALONE):
        left_out = {item for item in items if not _TIERS.isdisjoint(mark.name for mark in item.iter_markers())}
        config.hook.pytest_deselected(items=list(left_out))
        items[:] = [item for item in items if item not in left_out]
        return
    without = config.getoption(WITHOUT)
    for tier in sorted(TIERS, key=lambda each: each.name in without):  # a test of two tiers counts for the last
        reason = _why_skipped(tier, without)
        for item in items:
            if item.get_closest_marker(tier.name):
                item.user_properties.append(("tier", tier.name))
                if reason:
                    item.add_marker(pytest.mark.skip(reason=f"the {tier.name} tier doesn't run, see the tiers above"))


def pytest_collection_finish(session: pytest.Session) -> None:
    if sys.version_info < (3, 14):  # there Hypothesis takes what is frozen for garbage
        gc.freeze()
    gc.set_threshold(20_000, 20, 20)  # Python's own 700, 10, 10 find little garbage here, for a twelfth of the time
    gc.enable()
    if session.config.getoption(workers.WORKERS):
        forked.start()  # one for all of them


def pytest_sessionfinish(session: pytest.Session) -> None:
    if session.config.getoption(workers.WORKERS):
        gc.freeze()  # this process has only the reports of the others, and pytest looks for garbage in the end


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """One line a tier: what ran, or why it did not and how to get it; and what stood in for what this machine lacks."""
    if config.get_verbosity() < -1:
        return
    ran: Counter[str] = Counter()
    skipped: Counter[str] = Counter()
    instead: Counter[str] = Counter()
    for outcome, reports in terminalreporter.stats.items():
        for report in reports:
            if isinstance(report, pytest.TestReport) and outcome in (*_DONE, "skipped"):
                tier = str(dict(report.user_properties).get("tier", BASE))
                (skipped if outcome == "skipped" else ran)[tier] += 1
                instead.update(str(value) for name, value in report.user_properties if name == "instead")
    terminalreporter.section("tiers")
    without = config.getoption(WITHOUT)
    for name, reason in [(BASE, ""), *((tier.name, _why_skipped(tier, without)) for tier in TIERS)]:
        if name != BASE and config.getoption(BASE_ALONE):
            terminalreporter.write_line(f"{name + ':':<24} left out; `./dev test {name}` runs it")
            continue
        line = f"SKIPPED {skipped[name]}, {reason}" if reason else f"ran {ran[name]}" + _and_skipped(skipped[name])
        terminalreporter.write_line(f"{name + ':':<24} {line}", yellow=bool(reason))
    for change, count in sorted(instead.items()):
        terminalreporter.write_line(f"what is here can't do all: {change}, in {count} tests")


def _and_skipped(count: int) -> str:
    return f", skipped {count} (reasons below)" if count else ""


def _why_skipped(tier: Tier, without: Sequence[str]) -> str:
    if tier.name in without:
        return f"left out by {WITHOUT}"
    if missing := tier.missing():
        return f"no {', '.join(missing)} here; get it with {tier.how_to_get()}"
    return ""
