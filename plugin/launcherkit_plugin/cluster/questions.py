"""Answers questions of the daemon in a few threads, so that a slow API server delays nothing else."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from launcherkit_plugin.cluster.api import ApiProblem, Json
from launcherkit_plugin.telemetry.reporter import Reporter


class Questions:
    """Questions of one kind.

    Args:
        threads: how many are answered at once.
        answered: receives the value of each answering message.
        reporter: receives bugs.
    """

    def __init__(self, threads: int, answered: Callable[[Json], None], reporter: Reporter) -> None:
        self._threads = ThreadPoolExecutor(threads)
        self._answered = answered
        self._reporter = reporter

    def take(self, number: int, what: str, find: Callable[[], Json]) -> None:
        """Begin to answer a question.

        Args:
            number: of the question, which the answer repeats.
            what: the subject of the question, for the report of a bug.
            find: returns the answer. If it raises an `ApiProblem`, that is the answer.
        """
        self._threads.submit(self._answer, number, what, find)

    def _answer(self, number: int, what: str, find: Callable[[], Json]) -> None:
        try:
            self._answered({"id": number, **find()})
        except ApiProblem as problem:
            self._answered({"id": number, "error": str(problem)})
        except Exception as bug:
            self._reporter.bug(bug, f" while {what} was asked for")
