"""Reports what happened to the log, the metrics and the node's Events; a lasting problem once, until it changes.

The log is one line on stderr for each thing that happened, as text or JSON. Not by `logging`: the format is that of the
commands (`launcherkit.process.edge`), so one setting serves both, and nothing is shared by the whole process.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Literal, Protocol, TypeAlias

from launcherkit.errors import LauncherkitError, on_one_line
from launcherkit.model.value import NamedTuple
from launcherkit.process.edge import LOG_FORMAT, tell
from launcherkit_plugin.model.device import Device, Reason, Resource
from launcherkit_plugin.model.errors import NoKubelet
from launcherkit_plugin.telemetry.metrics import Metrics

EventType: TypeAlias = Literal["Normal", "Warning"]
NAMED = 5
"""So many devices are named in one line."""
USUAL: frozenset[Reason] = frozenset({"mate-in-use", "other-use", "other-type", "no-room"})
"""Reasons that are nobody's fault: something else is in use."""


Level: TypeAlias = Literal["info", "warning", "error"]


class Log(Protocol):
    """Takes a message for people, and fields for programs. The message says all that matters; text has no fields."""

    def __call__(self, level: Level, text: str, **fields: object) -> None: ...


class Lines:
    """A `Log` on stderr, in the format of ``LAUNCHERKIT_LOG_FORMAT``.

    Args:
        env: the environment of the process.
        clock: seconds since the epoch, for the field ``time``; text has no time, the container's log adds one.
    """

    def __init__(self, env: Mapping[str, str], clock: Callable[[], float]) -> None:
        self._env = {LOG_FORMAT: env.get(LOG_FORMAT, "")}
        self._clock = clock

    def __call__(self, level: Level, text: str, **fields: object) -> None:
        when = datetime.fromtimestamp(self._clock(), UTC).isoformat(timespec="milliseconds")
        shown = {name: str(value) for name, value in fields.items() if value is not None}
        tell(level, text, self._env, **{"time": when} | shown)


def silent(level: Level, text: str, **fields: object) -> None:
    """The `Log` that says nothing."""


class Recorder(Protocol):
    """Reports to the cluster what happened on the node. Never waits, raises nothing; what can't be sent is dropped."""

    def event(self, type: EventType, reason: str, message: str) -> None:  # noqa: A002  # Kubernetes' name
        """Record an Event on the Node. ``reason`` is one CamelCase word; ``message`` says it to people."""


class Reporter:
    """The log, the metrics and the node's Events in one; may be called from any thread.

    Args:
        log: takes everything.
        metrics: counts what happens.
        events: takes what the cluster should know; None where there is no cluster.
    """

    def __init__(self, log: Log = silent, metrics: Metrics | None = None, events: Recorder | None = None) -> None:
        self.log = log
        self.metrics = Metrics() if metrics is None else metrics
        self._events = events
        self._wrong: dict[Hashable, tuple[str, int]] = {}
        """What is wrong now, by what it is about, and how many times in a row."""

    def anew(self) -> Reporter:
        """A reporter to the same log, metrics and Events that has reported nothing yet."""
        return Reporter(self.log, self.metrics, self._events)

    def happened(self, reason: str, text: str, level: Level = "info", **fields: object) -> None:
        """Something that people should know of; ``reason`` as Kubernetes writes them, in CamelCase."""
        self.log(level, text, reason=reason, **fields)
        self._event("Normal" if level == "info" else "Warning", reason, text)

    def error(self, error: LauncherkitError, **fields: object) -> None:
        """An error that the daemon lives with, or each of those that it stands for: message, remedy and code."""
        for leaf in error.leaves():
            self.log("error", f"{leaf.code}: {leaf.message}. {on_one_line(leaf.remedy)}", code=leaf.code, **fields)

    def bug(self, bug: Exception, where: str = "", **fields: object) -> None:
        """An exception that nobody expected."""
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
        """Something is wrong. True where that is reported now: it was not wrong in the same way before.

        Args:
            about: what; `well` of the same ends it.
            error: goes to the log.
            reason: of the Event; without one there is no Event.
            text: of the Event, where it isn't the error's message.
            after: it is reported when it has been the same so many times in a row.
            fields: of the log.
        """
        if not self.is_new(about, error.message, after=after):
            return False
        self.error(error, **fields)
        if reason is not None:
            self._event("Warning", reason, text or error.message)
        return True

    def is_new(self, about: Hashable, text: str, *, after: int = 1) -> bool:
        """Whether it is time to report that something is wrong: see `problem`."""
        before, times = self._wrong.get(about, ("", 0))
        times = times + 1 if text == before else 1
        self._wrong[about] = text, times
        return times == after

    def once(self, about: Hashable, level: Level, text: str, **fields: object) -> None:
        """Log what lasts: once as long as it is the same; `well` ends it."""
        if self.is_new(about, text):
            self.log(level, text, **fields)

    def trouble(self, about: Hashable, problem: Exception, where: str, **fields: object) -> None:
        """What keeps something from being served, once as long as it is the same. A kubelet is waited for."""
        if isinstance(problem, NoKubelet):
            self.once(about, "info", f"{where}: waiting: {problem.message}", code=problem.code)
        elif isinstance(problem, LauncherkitError):
            if self.is_new(about, problem.message):
                self.error(problem, **fields)
        elif self.is_new(about, f"{type(problem).__name__}: {problem}"):
            self.bug(problem, f" at the sockets of {where}", **fields)

    def well(self, about: Hashable) -> None:
        """Nothing is wrong with it any more."""
        self._wrong.pop(about, None)

    def forget(self) -> None:
        """What was reported is reported again if it goes on: something has changed."""
        self._wrong.clear()

    def _event(self, type: EventType, reason: str, text: str) -> None:  # noqa: A002
        if self._events is not None:
            self._events.event(type, reason, text)


class Waits:
    """A `launcherkit_plugin.host.guarded.Reports`.

    Args:
        reporter: where waits are reported.
        ended: called when late work has come back: there is something to look at.
    """

    def __init__(self, reporter: Reporter, ended: Callable[[], object]) -> None:
        self._reporter = reporter
        self._ended = ended

    def hangs(self, key: str, text: str, hanging: int) -> None:
        """See `Reports.hangs`."""
        self._reporter.metrics.hangs(hanging)
        self._reporter.happened("OperationHangs", f"{key}: {text}", "error")

    def came_back(self, key: str, text: str, hanging: int) -> None:
        """See `Reports.came_back`."""
        self._reporter.metrics.came_back(hanging)
        self._reporter.happened("OperationCameBack", f"{key}: {text}")
        self._ended()


class Change(NamedTuple):
    """A line for the log and for the node's Events."""

    type: EventType
    reason: str
    """In CamelCase, as Kubernetes writes them."""
    text: str


def changes(before: Mapping[str, Resource], after: Mapping[str, Resource]) -> Iterator[Change]:
    """Devices that have become Unhealthy or Healthy, appeared or gone, a line for each kind of change of a resource."""
    for name in sorted(before.keys() | after.keys()):
        old = before[name].devices if name in before else {}
        new = after[name].devices if name in after else {}
        gone = sorted(old.keys() - new.keys())
        changed = [(key, _reason(old, key), _reason(new, key)) for key in sorted(new)]
        ill = [key for key, was, is_ in changed if is_ is not None and is_ not in USUAL and is_ != was]
        # What was Unhealthy because something else was in use comes back unreported.
        well = [key for key, was, is_ in changed if is_ is None and (key not in old or was) and was not in USUAL]
        if ill:
            texts = [problem.text for key in ill if (problem := new[key].problem) is not None]
            yield Change("Warning", "DeviceUnhealthy", f"{name}: {_some(texts, '; ')}")
        if well:
            yield Change("Normal", "DeviceHealthy", f"{name}: {_some(well, ', ')} can be had")
        if gone:
            yield Change("Normal", "DeviceGone", f"{name}: {_some(gone, ', ')} is no longer listed")


def _reason(devices: Mapping[str, Device], key: str) -> Reason | None:
    """Why a device was Unhealthy; None where it was not, or was not there."""
    problem = devices[key].problem if key in devices else None
    return problem.reason if problem is not None else None


def _some(texts: list[str], between: str) -> str:
    more = len(texts) - NAMED
    return between.join(texts[:NAMED]) + (f" and {more} more" if more > 0 else "")
