"""``pytest --workers``: what forked processes run is told as if this one had run it."""

from __future__ import annotations

import os
import re
import select
import signal
import subprocess
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from tests.support.imports import ROOT
from tests.support.nested import run_pytest
from tests.support.waiting import PATIENCE
from tests.workers import Queue, pytest_runtestloop, slices

MANY = """
import os, warnings
import pytest

FIRST = os.getpid()

@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("made")

@pytest.mark.parametrize("number", range(40))
def test_passes(number, folder):
    (folder / str(number)).touch(exist_ok=False)

def test_fails():
    print("what the test printed")
    assert 1 + 1 == 3

def test_is_skipped():
    pytest.skip("not today")

def test_warns():
    warnings.warn("mind this")

def test_ends_its_process():
    os.kill(os.getpid(), 9)

@pytest.mark.parametrize("number", range(40))
def test_passes_elsewhere(number):
    assert os.getpid() != FIRST
"""
ONE_FAILS = """
import os, time
from pathlib import Path
import pytest

HERE = Path(__file__).parent

def wait_until_it_is_known(name):
    while not (HERE / f"known-{name}").exists():
        time.sleep(0.001)

@pytest.fixture(scope="module")
def resource():
    (HERE / f"begun-{os.getpid()}").touch()
    yield
    (HERE / f"ended-{os.getpid()}").touch()

def test_fails(resource):
    wait_until_it_is_known("test_passes[5]")
    assert False

@pytest.mark.parametrize("number", range(40))
def test_passes(number, resource):
    if number > 5:
        wait_until_it_is_known("test_fails")
        wait_until_it_is_known(f"test_passes[{number - 1}]")
"""
TELLS_WHAT_IS_KNOWN = """
import os
from pathlib import Path

FIRST = os.getpid()

def pytest_runtest_logreport(report):
    if os.getpid() == FIRST and report.when == "teardown":
        Path(__file__).with_name("known-" + report.nodeid.partition("::")[2]).touch()
"""

FIRST_IS_KILLED = """
import os, signal
import pytest

FIRST = os.getpid()

@pytest.mark.parametrize("number", range(2))
def test_goes_on(number):
    os.kill(FIRST, signal.SIGKILL)
    signal.pause()
"""


def run(folder: Path, source: str, *options: str) -> subprocess.CompletedProcess[str]:
    (folder / "test_it.py").write_text(source)
    own = ["-p", "tests.workers", "-p", "no:cacheprovider", "-c", "/dev/null", "-rA", "--import-mode=importlib"]
    own += [f"--rootdir={folder}", f"--basetemp={folder / 'temporary'}"]
    own += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]  # the plugin has been imported already
    return run_pytest([*own, *options, str(folder)], cwd=ROOT)


def test_each_test_is_run_once_though_a_process_dies_and_is_told_once(tmp_path: Path) -> None:
    done = run(tmp_path, MANY, "--workers=2")
    assert done.returncode == pytest.ExitCode.TESTS_FAILED, done.stdout + done.stderr
    assert "2 failed, 81 passed, 1 skipped, 1 warning" in done.stdout.splitlines()[-1]
    passed = re.findall(r"^PASSED .+?::(.+)", done.stdout, re.MULTILINE)
    both = [f"test_{name}[{number}]" for name in ("passes", "passes_elsewhere") for number in range(40)]
    assert sorted(passed) == sorted([*both, "test_warns"])
    assert re.findall(r"^FAILED .+?::(\w+)", done.stdout, re.MULTILINE) == ["test_fails", "test_ends_its_process"]
    progress = "".join(re.findall(r"^([.Fs]+)(?: +\[.*)?$", done.stdout, re.MULTILINE))
    assert sorted(progress) == sorted("." * 81 + "FFs")
    for said in (
        "what the test printed",
        "assert (1 + 1) == 3",
        "not today",
        "mind this",
        "\nthe process that ran it ended: SIGKILL\n",
    ):
        assert said in done.stdout, said
    made = [path for path in (tmp_path / "temporary").glob("made*") if not path.is_symlink()]
    assert len(made) <= 2  # a module's fixture, for each process


def test_when_a_test_has_failed_that_is_to_be_the_last_all_processes_end_and_clear_up(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(TELLS_WHAT_IS_KNOWN)
    done = run(tmp_path, ONE_FAILS, "--workers=2", "-x")
    assert done.returncode == pytest.ExitCode.TESTS_FAILED, done.stdout + done.stderr
    assert "stopping after 1 failures" in done.stdout
    # The others wait until it is known that it has failed, and each until it is known how the one before it ended.
    assert len(re.findall("^PASSED", done.stdout, re.MULTILINE)) < 10
    begun, ended = ({path.name.partition("-")[2] for path in tmp_path.glob(f"{what}-*")} for what in ("begun", "ended"))
    assert begun == ended
    assert len(begun) == 2


def test_no_process_goes_on_when_the_first_is_killed(tmp_path: Path) -> None:
    ended, held_open = os.pipe()  # by each process that is forked
    try:
        done = run(tmp_path, FIRST_IS_KILLED, "--workers=2")
    finally:
        os.close(held_open)
    with open(ended, "rb") as until:
        assert done.returncode == -signal.SIGKILL, done.stdout + done.stderr
        ready = select.poll()  # select() takes no descriptor over 1023
        ready.register(until)
        assert ready.poll(PATIENCE * 1000), "a process goes on"
        assert until.read() == b""


@pytest.mark.parametrize(
    "changed", [{"workers": 0}, {"usepdb": True}, {"collectonly": True}, {"testsfailed": 1}], ids=str
)
def test_pytest_itself_runs_the_tests_where_there_is_a_debugger_or_nothing_to_run(changed: dict[str, object]) -> None:
    option = {"workers": 2, "usepdb": False, "collectonly": False, "testsfailed": 0}

    def loop(**values: object) -> bool | None:
        session = SimpleNamespace(items=[], shouldfail=False, shouldstop=False, testsfailed=values["testsfailed"])
        session.config = SimpleNamespace(option=SimpleNamespace(**values))
        return pytest_runtestloop(cast("pytest.Session", session))

    assert loop(**option) is True
    assert loop(**option | changed) is None


@pytest.mark.parametrize(("count", "workers"), [(0, 3), (1, 3), (20, 1), (6283, 4)])
def test_slices_cover_all_tests_and_become_shorter(count: int, workers: int) -> None:
    found = list(slices(count, workers))
    assert [number for begin, end in found for number in range(begin, end)] == list(range(count))
    assert all(one[1] - one[0] >= other[1] - other[0] > 0 for one, other in pairwise(found))


def test_no_slice_is_taken_twice_however_many_processes_take_at_once() -> None:
    count, processes = 8000, 8
    queue = Queue((number, number + 1) for number in range(count))
    begun, begin = os.pipe()
    pids, results = [], []
    for _ in range(processes):
        read, write = os.pipe()
        results.append(read)
        pids.append(os.fork())
        if pids[-1] == 0:
            try:
                os.close(begin)
                os.read(begun, 1)  # all begin together
                taken = b"".join(b"%d\n" % one[0] for one in iter(queue.take, None))
                with open(write, "wb") as pipe:
                    pipe.write(taken)
            finally:
                os._exit(0)
        os.close(write)
    os.close(begin)
    os.close(begun)
    queue.close()
    said = []
    for read in results:
        with open(read, "rb") as pipe:
            said += [int(line) for line in pipe]
    for pid in pids:
        os.waitpid(pid, 0)
    assert sorted(said) == list(range(count))


def test_more_slices_than_fit_are_refused_and_nobody_waits() -> None:
    with pytest.raises(ValueError, match="more slices"):
        Queue((number, number + 1) for number in range(100_000))
