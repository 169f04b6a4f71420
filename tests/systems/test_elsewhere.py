"""One command of ``./dev``, with several Pythons: what runs, and what the last lines say."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests.systems import pythons
from tests.systems.elsewhere import ALL, OTHERS, Outcome, Runs, exit_code
from tests.systems.pythons import PYTHONS
from tests.systems.roots import CannotMake
from tests.tiers import ENVIRONMENT

OWN = f"{sys.version_info[0]}.{sys.version_info[1]}"
OTHER = next(version for version in PYTHONS if version != OWN)


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Runs:
    """A checkout whose `./dev` says what it was called with; of other Pythons there is one that is a stand-in."""
    (tmp_path / "dev").write_text(
        f"import os, sys\nopen({str(tmp_path / 'log')!r}, 'a')"
        f".write(' '.join([os.environ.get({ENVIRONMENT!r}, ''), *sys.argv[1:]]) + '\\n')\nsys.exit(3)\n"
    )
    program = tmp_path / f"python{OTHER}"
    program.write_text(f'#!/bin/sh\n[ "$1" = -c ] && exec echo {OTHER}\nexec {sys.executable} "$@"\n')
    program.chmod(0o755)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)  # no root of another system can be made
    return Runs(tmp_path, ["test", "slow", "--", "-x"], {"PATH": str(tmp_path)})


def test_every_python_runs_the_same_in_an_environment_of_its_own(runs: Runs) -> None:
    outcomes = {outcome.place: outcome for outcome in runs.with_pythons(ALL)}
    assert list(outcomes) == [f"Python {version}" for version in PYTHONS]
    found = {version: outcomes[f"Python {version}"].code for version in PYTHONS}
    assert {version for version, code in found.items() if code == 3} == {OWN, OTHER}
    assert {version for version, code in found.items() if code is None} == {*PYTHONS} - {OWN, OTHER}
    lines = (runs.checkout / "log").read_text().splitlines()
    assert sorted(lines) == [".venv test slow -- -x", f".venv-{OTHER} test slow -- -x"]


def test_the_other_pythons_are_all_but_this_one(runs: Runs) -> None:
    outcomes = {outcome.place: outcome.code for outcome in runs.with_pythons(OTHERS)}
    assert outcomes == {f"Python {version}": 3 if version == OTHER else None for version in PYTHONS if version != OWN}
    assert (runs.checkout / "log").read_text() == f".venv-{OTHER} test slow -- -x\n"


@pytest.mark.parametrize(
    ("codes", "code"),
    [([0, None], 0), ([0, 3, None], 3), ([0, -9], 9), ([None, None], 69), ([], 69)],
    ids=["one absent", "a failure", "killed by a signal", "none there", "nothing asked for"],
)
def test_the_exit_code_is_the_worst_and_a_run_of_nothing_is_a_failure(codes: list[int | None], code: int) -> None:
    assert exit_code([Outcome("Python 3.12", "why", each) for each in codes]) == code


def test_a_python_that_was_asked_for_by_name_must_be_there(runs: Runs) -> None:
    missing = next(version for version in PYTHONS if version not in (OWN, OTHER))
    with pytest.raises(CannotMake):
        list(runs.with_pythons(missing))


def test_the_distributions_own_python_comes_before_another_of_its_version(
    runs: Runs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    distribution = tmp_path / "distribution"
    distribution.mkdir()
    own = distribution / f"python{OWN}"
    own.write_text(f'#!/bin/sh\n[ "$1" = -c ] && exec echo {OWN}\nexec {sys.executable} "$@"\n')
    own.chmod(0o755)
    monkeypatch.setattr(pythons, "DISTRIBUTION", str(distribution))
    there = runs._replace(env={"PATH": f"{tmp_path}:{distribution}"})
    assert [outcome.what for outcome in there.with_pythons(OWN)] == [str(own)]
    assert (tmp_path / "log").read_text() == f".venv-{OWN} test slow -- -x\n"


@pytest.mark.parametrize(
    ("outcome", "line"),
    [
        (Outcome("sid", "Python 3.14.10", 0, 40.4), "sid          passed, 40 s: Python 3.14.10"),
        (Outcome("sid", "Python 3.14.10", 1, 40.4), "sid          FAILED, exit code 1, 40 s: Python 3.14.10"),
        (Outcome("Python 3.12", "no such thing", None), "Python 3.12  SKIPPED, no such thing"),
    ],
)
def test_the_last_lines_say_what_ran_and_what_did_not_and_why(outcome: Outcome, line: str) -> None:
    assert str(outcome) == line
