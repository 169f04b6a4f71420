"""Reports to the log, the metrics and the node's Events; a lasting problem once, until it changes.

The log has one line on stderr for each report, as text or JSON. `logging` isn't used: the format is that of the
commands (`launcherkit.process.edge`), so one setting serves both, and there is no global state.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Literal, NamedTuple, Protocol, TypeAlias

from launcherkit.errors import LauncherkitError, on_one_line
from launcherkit.process.edge import LOG_FORMAT, print_message
from launcherkit_plugin.model.device import Device, Reason, Resource
from launcherkit_plugin.model.errors import NoKubelet
from launcherkit_plugin.telemetry.metrics import Metrics

EventType: TypeAlias = Literal["Normal", "Warning"]
NAMED = 5
"""The most devices that are named in one line."""
USUAL: frozenset[Reason] = frozenset({"group-in-use", "other-use", "other-type", "no-room", "cleaning", "kept"})
"""Reasons that aren't faults: another device is in use, or this one was, or a VM may have it again."""


Level: TypeAlias = Literal["info", "warning", "error"]


class Log(Protocol):
    """Logs a message for people, with fields for programs. The message alone must suffice: text has no fields."""

    def __call__(self, level: Level, text: str, **fields: object) -> None: ...


class Lines:
    """A `Log` on stderr, in the format of ``LAUNCHERKIT_LOG_FORMAT``.

    Args:
        env: the environment of the process.
        clock: seconds since the epoch, for the field ``time``. Text has no time, because the container's log adds it.
    """

    def __init__(self, env: Mapping[str, str], clock: Callable[[], float]) -> None:
        self._env = {LOG_FORMAT: env.get(LOG_FORMAT, "")}
        self._clock = clock

    def __call__(self, level: Level, text: str, **fields: object) -> None:
        when = datetime.fromtimestamp(self._clock(), UTC).isoformat(timespec="milliseconds")
        shown = {name: str(value) for name, value in fields.items() if value is not None}
        print_message(level, text, self._env, **{"time": when} | shown)


def silent(level: Level, text: str, **fields: object) -> None:
    """A `Log` that drops everything."""


class Recorder(Protocol):
    """Records Events on the node. Never waits and never raises; Events that can't be sent are dropped."""

    def event(self, type: EventType, reason: str, message: str) -> None:  # noqa: A002  # Kubernetes' name
        """Record an Event on the Node. ``reason`` is one CamelCase word; ``message`` is for people."""


class Reporter:
    """Reports to the log, the metrics and the node's Events. Thread-safe.

    Args:
        log: receives everything.
        metrics: counts what happens.
        events: receives Events; None: there is no cluster.
    """

    def __init__(self, log: Log = silent, metrics: Metrics | None = None, events: Recorder | None = None) -> None:
        self.log = log
        self.metrics = Metrics() if metrics is None else metrics
        self._events = events
        self._wrong: dict[Hashable, tuple[str, int]] = {}
        """Current problems: by subject, the text and how many times in a row it was passed."""

    def anew(self) -> Reporter:
        """A new reporter with the same log, metrics and Events, which has reported nothing yet."""
        return Reporter(self.log, self.metrics, self._events)

    def happened(self, reason: str, text: str, level: Level = "info", **fields: object) -> None:
        """Report something that people should know; ``reason`` is in CamelCase, as in Kubernetes."""
        self.log(level, text, reason=reason, **fields)
        self._event("Normal" if level == "info" else "Warning", reason, text)

    def error(self, error: LauncherkitError, **fields: object) -> None:
        """Log an error that the daemon survives, with code and remedy; of several errors, each."""
        for leaf in error.leaves():
            self.log("error", f"{leaf.code}: {leaf.message}. {on_one_line(leaf.remedy)}", code=leaf.code, **fields)

    def bug(self, bug: Exception, where: str = "", **fields: object) -> None:
        """Log an unexpected exception."""
        self.log("error", f"internal error{where}: {type(bug).__name__}: {bug}", **fields)

    def problem(
        self,
        about: Hashable,
        error: LauncherkitError,
        reason: str | None = None,
        text: str = "",
        *,
        after: int = 1,
        **fields: object,
    ) -> bool:
        """Report a problem, unless the same one was reported before; returns whether it was reported.

        Args:
            about: the subject; the problem lasts until `solved` is called with it.
            error: for the log.
            reason: of the Event; None: no Event.
            text: of the Event, if it isn't the error's message.
            after: report it when it has been the same this many times in a row.
            fields: of the log.
        """
        if not self.is_new(about, error.message, after=after):
            return False
        self.error(error, **fields)
        if reason is not None:
            self._event("Warning", reason, text or error.message)
        return True

    def is_new(self, about: Hashable, text: str, *, after: int = 1) -> bool:
        """Whether a problem must be reported now: see `problem`."""
        before, times = self._wrong.get(about, ("", 0))
        times = times + 1 if text == before else 1
        self._wrong[about] = text, times
        return times == after

    def once(self, about: Hashable, level: Level, text: str, **fields: object) -> None:
        """Log a lasting state, once until it changes or `solved` is called."""
        if self.is_new(about, text):
            self.log(level, text, **fields)

    def not_served(self, about: Hashable, problem: Exception, where: str, **fields: object) -> None:
        """Report, once until it changes, why something can't be served. A missing kubelet is only logged as info."""
        if isinstance(problem, NoKubelet):
            self.once(about, "info", f"{where}: waiting: {problem.message}", code=problem.code)
        elif isinstance(problem, LauncherkitError):
            if self.is_new(about, problem.message):
                self.error(problem, **fields)
        elif self.is_new(about, f"{type(problem).__name__}: {problem}"):
            self.bug(problem, f" at the sockets of {where}", **fields)

    def solved(self, about: Hashable) -> None:
        """Note that the problem of this subject is over."""
        self._wrong.pop(about, None)

    def forget(self) -> None:
        """Forget what was reported, because something has changed: problems that continue are reported again."""
        self._wrong.clear()

    def _event(self, type: EventType, reason: str, text: str) -> None:  # noqa: A002
        if self._events is not None:
            self._events.event(type, reason, text)


class Waits:
    """A `launcherkit_plugin.host.work_queue.Reports`.

    Args:
        reporter: receives the reports.
        changed: called when work has become late, and when late work has ended: a device's health may be another.
    """

    def __init__(self, reporter: Reporter, changed: Callable[[], object]) -> None:
        self._reporter = reporter
        self._changed = changed

    def hangs(self, key: str, text: str, hanging: int) -> None:
        """See `Reports.hangs`."""
        self._reporter.metrics.hangs(hanging)
        self._reporter.happened("OperationHangs", f"{key}: {text}", "error")
        self._changed()

    def came_back(self, key: str, text: str, hanging: int) -> None:
        """See `Reports.came_back`."""
        self._reporter.metrics.came_back(hanging)
        self._reporter.happened("OperationCameBack", f"{key}: {text}")
        self._changed()


class Change(NamedTuple):
    """A line for the log and for the node's Events."""

    type: EventType
    reason: str
    """In CamelCase, as in Kubernetes."""
    text: str


def changes(before: Mapping[str, Resource], after: Mapping[str, Resource]) -> Iterator[Change]:
    """Devices that have become Unhealthy or Healthy, have appeared or are gone: a line for each resource and kind."""
    for name in sorted(before.keys() | after.keys()):
        old = before[name].devices if name in before else {}
        new = after[name].devices if name in after else {}
        yield from _changes_of(name, old, new)


def _changes_of(resource: str, old: Mapping[str, Device], new: Mapping[str, Device]) -> Iterator[Change]:
    changed = [(key, _reason(old, key), _reason(new, key)) for key in sorted(new)]
    unhealthy = [key for key, was, is_ in changed if _is_fault(is_) and is_ != was]
    # A device that was Unhealthy because another was in use becomes Healthy without a report.
    healthy = [key for key, was, is_ in changed if is_ is None and (key not in old or _is_fault(was))]
    if unhealthy:
        texts = [problem.text for key in unhealthy if (problem := new[key].problem) is not None]
        yield Change("Warning", "DeviceUnhealthy", f"{resource}: {_some(texts, '; ')}")
    if healthy:
        yield Change("Normal", "DeviceHealthy", f"{resource}: {_some(healthy, ', ')} can be allocated")
    if gone := sorted(old.keys() - new.keys()):
        yield Change("Normal", "DeviceGone", f"{resource}: no longer listed: {_some(gone, ', ')}")


def _is_fault(reason: Reason | None) -> bool:
    return reason is not None and reason not in USUAL


def _reason(devices: Mapping[str, Device], key: str) -> Reason | None:
    """Why a device is Unhealthy; None if it isn't, or doesn't exist."""
    problem = devices[key].problem if key in devices else None
    return problem.reason if problem is not None else None


def _some(texts: list[str], between: str) -> str:
    more = len(texts) - NAMED
    return between.join(texts[:NAMED]) + (f" and {more} more" if more > 0 else "")
