"""Answers what a daemon asks, in a few threads: what waits for a slow server keeps nothing else waiting."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from launcherkit_plugin.cluster.api import ApiProblem, Json
from launcherkit_plugin.telemetry.reporter import Reporter


class Questions:
    """Of one kind.

    Args:
        threads: how many are answered at once.
        answered: is given the value of the message that answers.
        reporter: is told of bugs.
    """

    def __init__(self, threads: int, answered: Callable[[Json], None], reporter: Reporter) -> None:
        self._threads = ThreadPoolExecutor(threads)
        self._answered = answered
        self._reporter = reporter

    def take(self, number: int, what: str, find: Callable[[], Json]) -> None:
        """Begin to answer one.

        Args:
            number: by which the daemon knows the answer.
            what: is asked about, for a bug's report.
            find: gives what the answer has; what it raises as an `ApiProblem` is the answer.
        """
        self._threads.submit(self._answer, number, what, find)

    def _answer(self, number: int, what: str, find: Callable[[], Json]) -> None:
        try:
            self._answered({"id": number, **find()})
        except ApiProblem as problem:
            self._answered({"id": number, "error": str(problem)})
        except Exception as bug:
            self._reporter.bug(bug, f" while {what} was asked for")
