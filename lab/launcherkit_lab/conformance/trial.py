"""Tries the expectations of a suite, one after the other."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from typing import Protocol, TypeVar

from launcherkit_lab.conformance.expectation import Expectation, Level, NotTried, Result, Status, Unmet

LOG_LINES = 20


class Prepared(Protocol):
    """What every bench can do."""

    def prepare(self) -> None:
        """Come back to a state in which any expectation can be tried: the driver runs, nobody has a device.

        Raises:
            Unmet: the driver doesn't come to that, and never has.
            NotTried: it doesn't any more.
        """

    def complaints(self) -> Sequence[str]:
        """All that the real counterpart of the driver would have choked on, from the beginning."""

    def position(self) -> int:
        """How much the driver has said."""

    def said_since(self, position: int, lines: int) -> str:
        """The last lines of what it has said since then."""


_Bench = TypeVar("_Bench", bound=Prepared)


class UnknownNumber(Exception):
    """There is no expectation of a number; the text names those that there are."""


def numbered(suite: Sequence[Expectation[_Bench]], numbers: Iterable[str]) -> set[str]:
    """These numbers, as the suite has them.

    Raises:
        UnknownNumber: it hasn't one.
    """
    asked = {number.upper() for number in numbers}
    of_the_suite = [one.number for one in suite]
    if unknown := asked.difference(of_the_suite):
        raise UnknownNumber(f"there is no expectation {', '.join(sorted(unknown))}, only {', '.join(of_the_suite)}")
    return asked


def selected(suite: Sequence[Expectation[_Bench]], only: Iterable[str]) -> list[Expectation[_Bench]]:
    """The expectations of these numbers, in the order of the suite; all of them if there are none.

    Raises:
        UnknownNumber: there is no such one.
    """
    numbers = numbered(suite, only)
    return [one for one in suite if not numbers or one.number in numbers]


def tried(
    suite: Iterable[Expectation[_Bench]],
    bench: _Bench,
    report: Callable[[Result], object] = lambda _: None,
    skip: Container[str] = (),
) -> list[Result]:
    """Try a suite on a bench.

    Args:
        report: gets each result as it comes.
        skip: numbers of those that are not to be tried.
    """
    results = []
    for expectation in suite:
        if expectation.number in skip:
            number, level, title, source, _ = expectation
            result = Result(number, level, title, source, Status.SKIPPED, "it was to be skipped")
        else:
            result = _tried(expectation, bench)
        report(result)
        results.append(result)
    return results


def _tried(expectation: Expectation[_Bench], bench: _Bench) -> Result:
    began, position, before = time.monotonic(), bench.position(), len(bench.complaints())
    try:
        bench.prepare()
        status, seen = Status.PASSED, expectation.check(bench)
    except (Unmet, TimeoutError) as error:
        status, seen = Status.FAILED, str(error)
    except NotTried as error:
        status, seen = Status.NOT_TRIED, str(error)
    except Exception:  # a fault of the lab must not be taken for the driver's, nor end the others
        status, seen = Status.BROKEN, traceback.format_exc()
    if complaints := bench.complaints()[before:]:
        status, seen = Status.FAILED, "\n".join(_lines(seen, complaints, status))
    log = "" if status is Status.PASSED else bench.said_since(position, LOG_LINES)
    number, level, title, source, _ = expectation
    return Result(number, level, title, source, status, seen, log, time.monotonic() - began)


def _lines(seen: str, complaints: Iterable[str], status: Status) -> Iterator[str]:
    if status is not Status.PASSED:
        yield seen
    for complaint in complaints:
        yield f"the kubelet would choke on it: {complaint}"


def conformant(results: Iterable[Result]) -> bool:
    """Whether every must was tried and is met."""
    return all(one.status is Status.PASSED for one in results if one.level is Level.MUST)


def acceptable(results: Iterable[Result]) -> bool:
    """Whether every must is met that wasn't to be skipped."""
    return conformant(one for one in results if one.status is not Status.SKIPPED)
