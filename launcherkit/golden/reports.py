"""Reports on golden cases for programs: JSON, and JUnit's XML, which CI systems show as a table of tests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from xml.sax.saxutils import escape, quoteattr

from launcherkit.golden.run import CaseResult


def json_report(results: Sequence[CaseResult]) -> dict[str, Any]:
    """``{"cases": [{"name", "description", "ok", "differences": [{"what", "diff"}]}], "failed": N}``."""
    cases = [
        {
            "name": result.name,
            "description": result.description,
            "ok": result.ok,
            "differences": [{"what": each.what, "diff": each.diff} for each in result.differences],
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
    failures = "".join(
        f"<failure message={_attribute(each.what)}>{escape(_printable(each.diff))}</failure>"
        for each in result.differences
    )
    return f"{case}>{failures}</testcase>"


def _attribute(text: str) -> str:
    return quoteattr(_printable(text))


def _printable(text: str) -> str:
    """Text without the control characters that XML can't contain."""
    return "".join(c if c in "\t\n" or (c >= " " and c not in "\ufffe\uffff") else "\ufffd" for c in text)


def _failed(results: Sequence[CaseResult]) -> int:
    return sum(not result.ok for result in results)
