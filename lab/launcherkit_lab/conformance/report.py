"""What became of a suite: as text, as JSON, and as JUnit's XML."""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

from launcherkit_lab.conformance.expectation import Level, Result, Status
from launcherkit_lab.conformance.trial import acceptable, conformant

_NOT_XML = re.compile(r"[^\t\n\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


class Tried(NamedTuple):
    """A suite that was tried."""

    suite: str
    driver: Sequence[str]
    """Its command."""
    again: Sequence[str]
    """The command that tried it, without the expectations that it named."""
    log: Path
    results: Sequence[Result]

    def repeat(self, number: str) -> str:
        """The command that tries an expectation alone."""
        return shlex.join([*self.again[:2], "--only", number, *self.again[2:]])


def as_text(tried: Tried) -> str:
    """For people: a line for each expectation, and more where it isn't met."""
    return "".join(f"{line}\n" for line in _lines(tried))


def _lines(tried: Tried) -> Iterator[str]:
    for one in tried.results:
        status = one.status.value if one.status is Status.PASSED else one.status.value.upper()
        yield f"{one.number:5} {one.level.value:7} {status:10} {one.title}"
        more = {"seen": one.seen, "source": one.source, "log": one.log, "repeat": tried.repeat(one.number)}
        for name in {Status.PASSED: (), Status.NOT_TRIED: ("seen",), Status.SKIPPED: ()}.get(one.status, more):
            for index, line in enumerate(more[name].splitlines()):
                yield f"      {'' if index else name:7} {line}".rstrip()
    yield ""
    for level in Level:
        yield f"{level.value}: {', '.join(_counts(tried.results, level)) or 'none was asked for'}"
    yield f"{_verdict(tried.results)}; all that it has said: {tried.log}"


def _verdict(results: Sequence[Result]) -> str:
    if not acceptable(results):
        return "NOT conformant"
    skipped = [one.number for one in results if one.level is Level.MUST and one.status is Status.SKIPPED]
    return f"conformant but for what was skipped: {', '.join(skipped)}" if skipped else "conformant"


def _counts(results: Sequence[Result], level: Level) -> Iterator[str]:
    for status in Status:
        if count := sum(one.level is level and one.status is status for one in results):
            yield f"{count} {status.value}"


def as_json(tried: Tried) -> str:
    """For programs."""
    document = {
        "suite": tried.suite,
        "driver": list(tried.driver),
        "conformant": conformant(tried.results),
        "log": str(tried.log),
        "expectations": [
            {
                "number": one.number,
                "level": one.level.value,
                "title": one.title,
                "source": one.source,
                "status": one.status.value,
                "seen": one.seen,
                "seconds": round(one.seconds, 2),
                **({} if one.status is Status.PASSED else {"log": one.log, "repeat": tried.repeat(one.number)}),
            }
            for one in tried.results
        ],
    }
    return json.dumps(document, indent=2) + "\n"


def as_junit(tried: Tried) -> str:
    """For CI: what isn't met is a failure if it is a must; a should is skipped, and says so, as is what was skipped."""
    suite = ElementTree.Element("testsuite", name=tried.suite, tests=str(len(tried.results)))
    for one in tried.results:
        name = f"{one.number} {one.title}"
        case = ElementTree.SubElement(suite, "testcase", classname=tried.suite, name=name, time=f"{one.seconds:.2f}")
        if one.status is Status.PASSED:
            continue
        fails = one.level is Level.MUST and one.status is not Status.SKIPPED
        message = _NOT_XML.sub("?", f"{one.level.value}, {one.status.value}: {one.seen}")
        problem = ElementTree.SubElement(case, "failure" if fails else "skipped", message=message)
        problem.text = _NOT_XML.sub("?", f"{one.source}\n{tried.repeat(one.number)}\n{one.log}\n")
    for kind in ("failure", "skipped"):
        suite.set({"failure": "failures"}.get(kind, kind), str(len(suite.findall(f"testcase/{kind}"))))
    ElementTree.indent(suite)
    return ElementTree.tostring(suite, encoding="unicode", xml_declaration=True) + "\n"


def write(path: Path, text: str) -> None:
    """Replace a file; nobody sees half of it."""
    half = path.with_name(f".{path.name}.{os.getpid()}")
    half.write_text(text)
    half.replace(path)
