"""The tests in several processes, forked from the one that has collected them: ``pytest --workers 4``.

A process of pytest-xdist imports and collects all tests again, which takes 3 s of a processor for each; a fork has
them. So there may be more processes than processors, for tests that wait. The first process collects, counts and
prints, and runs no test.
"""

from __future__ import annotations

import atexit
import mmap
import multiprocessing
import os
import signal
import struct
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkProcess
from typing import Any, NamedTuple

import pytest

from launcherkit.process.parent import end_with

WORKERS = "--workers"
_SLICE = struct.Struct("ii")
Slice = tuple[int, int]
"""The index of its first test, and that after its last."""
_BETWEEN_TESTS = -1
Event = tuple[str, dict[str, Any]]
"""A hook of pytest's and its arguments."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(WORKERS, metavar="N", type=int, default=0, help="run the tests in N processes; 0: in this one")


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool | None:
    """Run the tests in forked processes if that was asked for, and they are to be run."""
    option = session.config.option
    if option.workers < 1 or option.usepdb or option.collectonly or session.testsfailed:
        return None
    left: Sequence[int] = range(len(session.items))
    while left and not must_end(session):  # again only with what a process had taken that died
        left = Round(session, left).run()
    if session.shouldfail:
        raise session.Failed(session.shouldfail)
    if session.shouldstop:
        raise session.Interrupted(session.shouldstop)
    return True


def must_end(session: pytest.Session) -> bool:
    return bool(session.shouldfail or session.shouldstop)


def slices(count: int, workers: int) -> Iterator[Slice]:
    """Where the slices of so many tests begin and end, one of which a worker takes at a time.

    Each is a quarter of a worker's share of what is left then. The first ones are long, so that most modules, with
    their fixtures and caches, are one worker's; the last ones short, so that all workers end together.
    """
    begin = 0
    while begin < count:
        end = begin + max(1, (count - begin) // (4 * workers))
        yield begin, end
        begin = end


class Queue:
    """Slices that several processes take, each of which one process gets.

    It is a pipe, which the kernel locks while a process reads from it. Of a regular file whose place is shared by
    processes that isn't true everywhere: two of them got the same slice of a memfd.

    Args:
        slices: as many as a pipe holds, 8,192 by default.
    """

    def __init__(self, slices: Iterable[Slice]) -> None:
        self._read, write = os.pipe()
        os.set_blocking(write, False)  # too many are an error; else nobody would ever read
        with open(write, "wb", buffering=0) as pipe:
            data = b"".join(_SLICE.pack(*one) for one in slices)
            if pipe.write(data) != len(data):
                raise ValueError("more slices than a pipe holds")

    def take(self) -> Slice | None:
        """Take one; None when there is none left."""
        taken = os.read(self._read, _SLICE.size)
        return _SLICE.unpack(taken) if taken else None

    def close(self) -> None:
        os.close(self._read)


class Worker(NamedTuple):
    number: int
    process: ForkProcess
    events: Connection


class Round:
    """Workers that run tests of a session, until there are no more or each worker has died."""

    def __init__(self, session: pytest.Session, indexes: Sequence[int]) -> None:
        self._session = session
        self._config = session.config
        self._indexes = indexes
        self._left = dict.fromkeys(indexes)
        self._workers = min(self._config.option.workers, len(indexes))
        # What the processes share: whether to end, then the test that each runs.
        self._shared = memoryview(mmap.mmap(-1, 4 * (1 + self._workers))).cast("i")
        self._queue = Queue(slices(len(indexes), self._workers))

    def run(self) -> list[int]:
        """Run the tests; returns those that were not run, because a worker died or the session was to end."""
        self._config._tmp_path_factory.getbasetemp()  # type: ignore[attr-defined]  # theirs too, and removed here
        if reporter := self._config.pluginmanager.get_plugin("terminalreporter"):
            reporter.showfspath = False  # for tests of many files at once
        running: dict[int, Worker] = {}
        try:
            for number in range(1, 1 + self._workers):
                worker = self._start(number)
                running[os.pidfd_open(worker.process.pid or 0)] = worker
            while running:
                ready = wait([*running, *(worker.events for worker in running.values())])
                for end, worker in list(running.items()):
                    self._hear(worker.events)
                    if end in ready:
                        os.close(end)
                        del running[end]
                        self._end(worker)
        finally:
            self._shared[0] = True
            for end, worker in running.items():
                worker.process.join()
                os.close(end)
            self._queue.close()
        return list(self._left)

    def _start(self, number: int) -> Worker:
        context = multiprocessing.get_context("fork")
        ours, its = context.Pipe(duplex=False)
        process = context.Process(target=self._work, args=(os.getpid(), number, its))
        with its:
            process.start()
        return Worker(number, process, ours)

    def _hear(self, events: Connection) -> None:
        """Tell this process's plugins what one of the others has told."""
        with suppress(EOFError):
            while events.poll():
                index, told = events.recv()
                del self._left[index]
                for hook, arguments in told:
                    if data := arguments.pop("data", None):
                        report = self._config.hook.pytest_report_from_serializable(config=self._config, data=data)
                        arguments["report"] = report
                    called = getattr(self._config.hook, hook)
                    called.call_historic(kwargs=arguments) if called.is_historic() else called(**arguments)
        self._shared[0] |= must_end(self._session)

    def _end(self, worker: Worker) -> None:
        worker.process.join()
        code = worker.process.exitcode or 0
        why = f"the process that ran it ended: {signal.Signals(-code).name if code < 0 else f'exit code {code}'}"
        index = self._shared[worker.number]
        if index != _BETWEEN_TESTS:
            item = self._session.items[index]
            report = pytest.TestReport(
                item.nodeid, item.location, dict.fromkeys(item.keywords, 1), "failed", why, "call"
            )
            self._config.hook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
            self._config.hook.pytest_runtest_logreport(report=report)
            self._config.hook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
            del self._left[index]
        elif code:
            raise RuntimeError(f"between two tests {why}")

    # What the other processes do.

    def _work(self, first: int, number: int, events: Connection) -> None:
        """Run tests until there are no more, or this is to end; not without the first process, which may be killed."""
        end_with(first)
        atexit._clear()  # what the first process is to do in the end
        plugins = self._config.pluginmanager
        plugins.unregister(name="terminalreporter")
        if capture := plugins.get_plugin("capturemanager"):  # so far all write to the same file
            capture.stop_global_capturing()
            capture.start_global_capturing()
            capture.suspend_global_capture()
        told = Told(self._config)
        plugins.register(told)
        told.take()  # pytest tells a new plugin of earlier warnings
        items = self._session.items
        taken = self._take()
        self._shared[number] = _BETWEEN_TESTS
        index = next(taken, None)
        with suppress(KeyboardInterrupt):
            while index is not None and not self._shared[0] and not must_end(self._session):
                following = next(taken, None)
                nextitem = None if following is None else items[following]
                self._shared[number] = index
                self._config.hook.pytest_runtest_protocol(item=items[index], nextitem=nextitem)
                events.send((index, told.take()))
                self._shared[number] = _BETWEEN_TESTS
                index = following
        self._session._setupstate.teardown_exact(None)  # where it ends early
        atexit._run_exitfuncs()

    def _take(self) -> Iterator[int]:
        while taken := self._queue.take():
            yield from self._indexes[slice(*taken)]


class Told:
    """What pytest tells the plugins of a worker, for those of the first process."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._events: list[Event] = []

    def take(self) -> list[Event]:
        """What was told since the last time."""
        events, self._events = self._events, []
        return events

    def pytest_runtest_logstart(self, nodeid: str, location: object) -> None:
        self._events.append(("pytest_runtest_logstart", {"nodeid": nodeid, "location": location}))

    def pytest_runtest_logfinish(self, nodeid: str, location: object) -> None:
        self._events.append(("pytest_runtest_logfinish", {"nodeid": nodeid, "location": location}))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        data = self._config.hook.pytest_report_to_serializable(config=self._config, report=report)
        self._events.append(("pytest_runtest_logreport", {"data": data}))

    def pytest_warning_recorded(
        self, warning_message: warnings.WarningMessage, when: str, nodeid: str, location: object
    ) -> None:
        warning_message.source = None  # what it is about can't be sent
        arguments = {"warning_message": warning_message, "when": when, "nodeid": nodeid, "location": location}
        self._events.append(("pytest_warning_recorded", arguments))
