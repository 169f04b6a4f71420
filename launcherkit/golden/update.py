"""Records the current results of golden cases as the expected ones."""

from __future__ import annotations

import os
from dataclasses import dataclass

from launcherkit.atomic import write_atomically
from launcherkit.errors import UnwritableFile
from launcherkit.golden.canonical import xml_difference
from launcherkit.golden.case import name_of
from launcherkit.golden.run import (
    EXPECTED_ERROR,
    EXPECTED_PLAN,
    EXPECTED_XML,
    CaseResult,
    Difference,
    Outcome,
    description_of,
    differences,
    plan_text,
    read_if_there,
    run_case,
)


@dataclass(frozen=True, slots=True)
class Update:
    """How a case was updated."""

    result: CaseResult
    """What is still wrong with it."""
    written: tuple[str, ...]
    """Names of files."""
    removed: tuple[str, ...]


def update_case(directory: str | os.PathLike[str], *, plan: bool = False) -> Update:
    """Record a case's current result as the expected one.

    A file that already expects the same is left as it is.

    Args:
        directory: the case's.
        plan: write ``expected.plan.json`` even if there is none; an existing one is always updated.

    Raises:
        UnreadableFile, UnwritableFile: a file of the case can't be read or written.
    """
    path = os.path.abspath(os.fspath(directory))
    outcome = run_case(path)
    refusal = _refusal(path, outcome)
    if refusal is not None:
        return Update(CaseResult(name_of(path), description_of(outcome), (refusal,)), (), ())
    wanted = _wanted(path, outcome, plan)
    written, removed = [], []
    for name, data in wanted.items():
        if data is None and os.path.lexists(os.path.join(path, name)):
            _remove(os.path.join(path, name))
            removed.append(name)
        elif data is not None and not _same(name, read_if_there(path, name), data):
            write_atomically(os.path.join(path, name), data)
            written.append(name)
    result = CaseResult(name_of(path), description_of(outcome), differences(path, outcome))
    return Update(result, tuple(written), tuple(removed))


def _refusal(directory: str, outcome: Outcome) -> Difference | None:
    """Why an outcome can't be expected: a bug, or a wrong case.yaml in a case that doesn't expect an error."""
    if outcome.bug:
        return Difference(outcome.error or "")
    if outcome.case is None and read_if_there(directory, EXPECTED_ERROR) is None:
        return Difference("not updated: the case itself is wrong", outcome.error or "")
    return None


def _wanted(directory: str, outcome: Outcome, plan: bool) -> dict[str, bytes | None]:
    """The content of each file with an expected result; None for files that must not exist."""
    wants_plan = plan or os.path.exists(os.path.join(directory, EXPECTED_PLAN))
    return {
        EXPECTED_XML: outcome.document,
        EXPECTED_ERROR: None if outcome.error is None else outcome.error.encode("utf-8", "surrogateescape") + b"\n",
        EXPECTED_PLAN: plan_text(outcome.plan) if wants_plan and outcome.plan is not None else None,
    }


def _same(name: str, before: bytes | None, after: bytes) -> bool:
    if before is None or name != EXPECTED_XML:
        return before == after
    try:
        return xml_difference(before, after, name) is None
    except ValueError:
        return False


def _remove(path: str) -> None:
    try:
        os.unlink(path)
    except OSError as problem:
        raise UnwritableFile(f"{path}: {problem.strerror}", "Remove it by hand.", file=path) from problem
