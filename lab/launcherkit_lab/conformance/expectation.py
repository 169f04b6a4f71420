"""Expectations, and what became of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import Enum
from typing import Generic, NamedTuple, TypeVar

Bench = TypeVar("Bench")
"""What a suite's expectations are tried on."""


class Level(Enum):
    """How much hangs on an expectation."""

    MUST = "must"
    """A driver that doesn't meet it loses devices, mixes them up, or leaves a pod without."""
    SHOULD = "should"
    """One that doesn't is worse, but works."""


class Status(Enum):
    """What became of an expectation."""

    PASSED = "passed"
    FAILED = "failed"
    NOT_TRIED = "not tried"
    """The machine, the options or the driver's state leave nothing to try it on."""
    SKIPPED = "skipped"
    """Whoever runs the suite leaves it out: it is not met, and doesn't count against the driver."""
    BROKEN = "broken"
    """The lab itself has failed."""


class Unmet(Exception):
    """The expectation isn't met; the text says what was seen instead."""


class NotTried(Exception):
    """It can't be tried here; the text says why."""


class Expectation(NamedTuple, Generic[Bench]):
    """Something that a driver is expected to do."""

    number: str
    """``DP7``: letters for the suite, and a number, which stays once it is given."""
    level: Level
    title: str
    source: str
    """Where it is written, or what follows from it."""
    check: Callable[[Bench], str]
    """Tries it; gives what was seen.

    Raises:
        Unmet, TimeoutError: it isn't met.
        NotTried: it can't be tried.
    """


def judged(problems: Iterable[str], passed: str) -> str:
    """What was seen if there are no problems.

    Raises:
        Unmet: there are some.
    """
    if lines := list(problems):
        raise Unmet("\n".join(lines))
    return passed


class Result(NamedTuple):
    """What became of an expectation."""

    number: str
    level: Level
    title: str
    source: str
    status: Status
    seen: str
    log: str = ""
    """The end of what the driver has said meanwhile, if it isn't met."""
    seconds: float = 0.0
