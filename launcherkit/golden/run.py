"""Runs a golden case through ``launcherkit translate``, and reports where the result is not as expected."""

from __future__ import annotations

import json
import os
import shlex
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from xml.sax.saxutils import escape, quoteattr

from launcherkit.diff import unified_diff
from launcherkit.errors import LauncherkitError
from launcherkit.golden.canonical import xml_difference
from launcherkit.golden.case import DOMAIN_FILE, Case, name_of, read_case
from launcherkit.golden.invoke import Scratch, translate_case
from launcherkit.request.fields import read_file

EXPECTED_XML = "expected.xml"
EXPECTED_ERROR = "expected.error"
EXPECTED_PLAN = "expected.plan.json"
_BUG = "internal error, a bug in launcherkit"
# The command syncs what it writes; on a disk that takes most of the time of a case.
_IN_MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK | os.X_OK) else None  # noqa: S108  # for a directory of our own


@dataclass(frozen=True, slots=True)
class Outcome:
    """The current result of a case: a document and a plan, or errors."""

    case: Case | None
    """None if ``case.yaml`` is wrong."""
    document: bytes | None
    plan: dict[str, Any] | None
    error: str | None
    """A line ``LK204: message`` for each error; paths are relative to the case."""
    again: str | None
    """What went wrong when the document was translated again (X2); None if nothing did."""
    bug: bool = False
    """An exception other than `LauncherkitError` was raised, which no case can expect."""


@dataclass(frozen=True, slots=True)
class Difference:
    """One way in which a case is not as expected.

    Attributes:
        summary: A sentence, one line.
        diff: Details, of any number of lines.
    """

    summary: str
    diff: str = ""


@dataclass(frozen=True, slots=True)
class CaseResult:
    """The result of checking a case.

    Attributes:
        name: The case's directory.
        description: Its sentence; empty if ``case.yaml`` is wrong.
        differences: All of them.
    """

    name: str
    description: str
    differences: tuple[Difference, ...]

    @property
    def ok(self) -> bool:
        """Whether it is as expected."""
        return not self.differences

    def __str__(self) -> str:
        """All differences in words, for a test's message."""
        lines = [f"{self.name}: {one.summary}\n{one.diff}".rstrip() for one in self.differences]
        return "\n".join(lines) or f"{self.name}: ok"


def check_case(directory: str | os.PathLike[str]) -> CaseResult:
    """Run one case and compare.

    Args:
        directory: the case's; nothing is written to it.

    Raises:
        UnreadableFile: a file with an expected result can't be read.
    """
    path = os.path.abspath(os.fspath(directory))
    outcome = run_case(path)
    return CaseResult(name_of(path), description_of(outcome), differences(path, outcome))


def description_of(outcome: Outcome) -> str:
    """The case's description; empty if ``case.yaml`` is wrong."""
    return "" if outcome.case is None else outcome.case.yaml.description


def run_case(directory: str) -> Outcome:
    """Translate a case, and then its result once more.

    Neither this machine's variables nor its sysfs are used, unless the case names them.
    """
    case: Case | None = None
    with tempfile.TemporaryDirectory(prefix="launcherkit-golden-", dir=_IN_MEMORY) as temporary:
        scratch = Scratch(temporary)
        try:
            case = read_case(directory)
            document, plan = translate_case(case, scratch)
            try:
                second, _ = translate_case(case, scratch, domain=document)
                again = _repeated(document, second)
            except LauncherkitError as error:
                again = "translating it once more fails: " + _error_text(error, directory, scratch)
        except LauncherkitError as error:
            return Outcome(case, None, None, _error_text(error, directory, scratch), None)
        except Exception as bug:  # one case must not hide the results of the others
            return Outcome(case, None, None, f"{_BUG}: {type(bug).__name__}: {bug}", None, bug=True)
    return Outcome(case, document, plan, None, again)


def _repeated(first: bytes, second: bytes) -> str | None:
    if first == second:
        return None
    return f"translating it once more changes it (X2)\n{_diff(first, second, 'translated once', 'translated twice')}"


def _diff(before: bytes, after: bytes, name: str, renamed: str = "actual") -> str:
    return unified_diff(before, after, name, renamed).decode("utf-8", "surrogateescape")


def _error_text(error: LauncherkitError, directory: str, scratch: Scratch) -> str:
    lines = (f"{leaf.code}: {' '.join(leaf.message.split())}" for leaf in error.leaves())
    text = "\n".join(lines)
    for path in (*scratch.directories, directory):
        text = text.replace(path + "/", "")
    return text


def differences(directory: str, outcome: Outcome) -> tuple[Difference, ...]:
    """The differences between an outcome and the expected results in the case's directory.

    Raises:
        UnreadableFile: a file with an expected result can't be read.
    """
    expected_xml = read_if_there(directory, EXPECTED_XML)
    expected_error = read_if_there(directory, EXPECTED_ERROR)
    result: list[Difference] = []
    if outcome.bug:
        return (Difference(outcome.error or ""),)
    if expected_xml is not None and expected_error is not None:
        text = f"{EXPECTED_XML} and {EXPECTED_ERROR} are both there; remove one, or run {_update(directory)}"
        return (Difference(text),)
    if expected_xml is None and expected_error is None:
        text = f"it has neither {EXPECTED_XML} nor {EXPECTED_ERROR}; look at what it gives and run {_update(directory)}"
        result.append(Difference(text, _given(directory, outcome)))
    elif outcome.document is None:
        result += _of_error(outcome.error or "", expected_error)
    else:
        result += _of_document(outcome.document, expected_xml, expected_error)
    result += _of_plan(outcome, read_if_there(directory, EXPECTED_PLAN))
    if outcome.again is not None:
        text, _, diff = outcome.again.partition("\n")
        result.append(Difference(text, diff))
    return tuple(result)


def _given(directory: str, outcome: Outcome) -> str:
    if outcome.document is None:
        return outcome.error or ""
    before = read_if_there(directory, DOMAIN_FILE) or b""
    return _diff(before, outcome.document, DOMAIN_FILE)


def _of_error(error: str, expected: bytes | None) -> list[Difference]:
    if expected is None:
        return [Difference("it fails, where a document is expected", error)]
    before, after = expected.rstrip() + b"\n", error.encode("utf-8", "surrogateescape") + b"\n"
    return [] if before == after else [Difference("it fails in another way", _diff(before, after, EXPECTED_ERROR))]


def _of_document(document: bytes, expected_xml: bytes | None, expected_error: bytes | None) -> list[Difference]:
    if expected_xml is None:
        text = (expected_error or b"").decode(errors="replace")
        return [Difference("it gives a document, where an error is expected", text)]
    try:
        diff = xml_difference(expected_xml, document, EXPECTED_XML)
    except ValueError as problem:
        return [Difference(f"{EXPECTED_XML} is not XML: {problem}")]
    return [] if diff is None else [Difference("it gives another document", diff)]


def _of_plan(outcome: Outcome, expected: bytes | None) -> list[Difference]:
    if expected is None:
        return []
    if outcome.plan is None:
        return [Difference(f"{EXPECTED_PLAN} is there, but a case that fails has no plan")]
    try:
        if json.loads(expected) == outcome.plan:
            return []
    except ValueError:
        pass  # the diff shows it
    return [Difference("it gives another plan", _diff(expected, plan_text(outcome.plan), EXPECTED_PLAN))]


def plan_text(plan: dict[str, Any]) -> bytes:
    """A plan as the text of a file."""
    return (json.dumps(plan, indent=2) + "\n").encode()


def read_if_there(directory: str, name: str) -> bytes | None:
    """The content of a file of the case; None if there is no such file.

    Raises:
        UnreadableFile: the file exists and can't be read.
    """
    path = os.path.join(directory, name)
    return read_file(path) if os.path.lexists(path) else None


def _update(directory: str) -> str:
    parent, name = os.path.split(directory)
    shown = min(parent, os.path.relpath(parent), key=len)
    return f"`launcherkit golden update {shlex.quote(shown)} --case {shlex.quote(name)}`"


# Reports for programs: JSON, and JUnit's XML, which CI systems show as a table of tests.


def json_report(results: Sequence[CaseResult]) -> dict[str, Any]:
    """``{"cases": [{"name", "description", "ok", "differences": [{"what", "diff"}]}], "failed": N}``."""
    cases = [
        {
            "name": result.name,
            "description": result.description,
            "ok": result.ok,
            "differences": [{"what": each.summary, "diff": each.diff} for each in result.differences],
        }
        for result in results
    ]
    return {"cases": cases, "failed": _failed(results)}


def junit_report(results: Sequence[CaseResult]) -> bytes:
    """A ``testsuites`` document with one suite, ``launcherkit golden``, and one test for each case."""
    count = f'tests="{len(results)}" failures="{_failed(results)}" errors="0" skipped="0"'
    lines = [
        '<?xml version="1.0" encoding="utf-8"?>',
        f"<testsuites {count}>",
        f'<testsuite name="launcherkit golden" {count}>',
        *map(_test, results),
        "</testsuite>",
        "</testsuites>",
        "",
    ]
    return "\n".join(lines).encode("utf-8", "replace")


def _test(result: CaseResult) -> str:
    case = f'<testcase classname="golden" name={_attribute(result.name)}'
    if result.ok:
        return f"{case}/>"
    failures = "".join(map(_failure, result.differences))
    return f"{case}>{failures}</testcase>"


def _failure(difference: Difference) -> str:
    return f"<failure message={_attribute(difference.summary)}>{escape(_printable(difference.diff))}</failure>"


def _attribute(text: str) -> str:
    return quoteattr(_printable(text))


def _printable(text: str) -> str:
    """Text without the control characters that XML can't contain."""
    return "".join(c if c in "\t\n" or (c >= " " and c not in "\ufffe\uffff") else "\ufffd" for c in text)


def _failed(results: Sequence[CaseResult]) -> int:
    return sum(not result.ok for result in results)
