"""Posts Events on the node, with the same limits as Kubernetes' own components, since a flapping device must not flood
the cluster: a repeated Event increments the count of the first; many Events that differ only in their message are
combined into one; and the rate is limited.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from datetime import UTC, datetime
from typing import NamedTuple

from launcherkit_plugin.cluster.api import Api, ApiProblem, Json
from launcherkit_plugin.telemetry.reporter import EventType, Reporter

_NOT_FOUND = 404
_NAME_CHARACTERS = 253
COMPONENT = "launcherkit-plugin"
EVENTS_PATH = "/api/v1/namespaces/default/events"
"""Events of objects without a namespace are in the namespace ``default``."""


_AGAIN_SECONDS = 600.0
"""A repeated Event increments the count of the earlier one if that was last reported at most this long ago."""
_SIMILAR = 10
_BURST = 25
_REFILL_SECONDS = 20.0
_KNOWN = 256
"""How many Events are remembered."""
_MESSAGE_CHARACTERS = 1024
"""The longest message that events.k8s.io allows."""

COMBINED = "(combined from similar events): "


class Event(NamedTuple):
    type: EventType
    reason: str
    message: str


class Occurrence(NamedTuple):
    """An Event to report: a new one if ``times`` is 1, else a repetition of the one with this number."""

    number: int
    event: Event
    times: int
    first: float
    """Seconds since the epoch."""


class Correlator:
    """Decides which Events are new, repeated or dropped. Events must be passed in chronological order."""

    def __init__(self) -> None:
        self._known: OrderedDict[Event, tuple[Occurrence, float]] = OrderedDict()
        self._similar: OrderedDict[tuple[str, str], tuple[set[str], float]] = OrderedDict()
        self._budget = float(_BURST)
        self._at: float | None = None
        self._number = 0
        self.dropped = 0
        """How many Events exceeded the rate limit."""

    def observe(self, event: Event, now: float) -> Occurrence | None:
        """What to report for an Event; None if it exceeds the rate limit."""
        if not self._paid(now):
            self.dropped += 1
            return None
        event = event._replace(message=event.message[:_MESSAGE_CHARACTERS])
        key, event = self._combined(event, now)
        occurrence, last = self._known.pop(key, (None, now))
        if occurrence is None or now - last > _AGAIN_SECONDS:
            self._number += 1
            occurrence = Occurrence(self._number, event, 0, now)
        occurrence = occurrence._replace(event=event, times=occurrence.times + 1)
        self._known[key] = occurrence, now
        while len(self._known) > _KNOWN:
            self._known.popitem(last=False)
        return occurrence

    def forget(self, occurrence: Occurrence) -> None:
        """Forget an Event that could not be reported: the next one like it is new."""
        for key, (published, _) in list(self._known.items()):
            if published.number == occurrence.number:
                del self._known[key]

    def _paid(self, now: float) -> bool:
        passed = 0.0 if self._at is None else max(0.0, now - self._at)
        self._at = now
        self._budget = min(float(_BURST), self._budget + passed / _REFILL_SECONDS)
        if self._budget < 1:
            return False
        self._budget -= 1
        return True

    def _combined(self, event: Event, now: float) -> tuple[Event, Event]:
        """The key of an Event, and the Event itself; if there are many similar ones, the combined one."""
        group = event.type, event.reason
        messages, last = self._similar.pop(group, (set(), now))
        if now - last > _AGAIN_SECONDS:
            messages = set()
        many = event.message not in messages and len(messages) >= _SIMILAR
        if not many:
            messages.add(event.message)
        self._similar[group] = messages, now
        while len(self._similar) > _KNOWN:
            self._similar.popitem(last=False)
        if not many:
            return event, event
        message = (COMBINED + event.message)[:_MESSAGE_CHARACTERS]
        return event._replace(message=COMBINED), event._replace(message=message)


class EventPoster:
    """Posts Events to the API server, and increments the count of repeated ones. One that can't be posted is lost; this
    is logged.

    Args:
        server: the API server.
        node: the node's name.
        run: distinguishes the Events of this process from those of earlier ones.
        clock: seconds since the epoch.
        reporter: receives failures.
    """

    def __init__(self, server: Api, node: str, run: str, clock: Callable[[], float], reporter: Reporter) -> None:
        self._server = server
        self._node = node
        self._run = run
        self._clock = clock
        self._reporter = reporter
        self._correlator = Correlator()

    def post(self, event: Event) -> None:
        """Post an Event, or increment the count of the one that was posted already."""
        occurrence = self._correlator.observe(event, self._clock())
        if occurrence is None:
            self._reporter.once("dropped", "warning", "too many Events: some are not posted")
            return
        self._reporter.solved("dropped")
        try:
            self._send(occurrence)
        except ApiProblem as problem:
            self._correlator.forget(occurrence)
            self._reporter.log("warning", f"an Event can't be posted: {problem}", reason=event.reason)

    def _send(self, occurrence: Occurrence) -> None:
        name = f"{self._node[: _NAME_CHARACTERS - len(self._run) - 12]}.{self._run}.{occurrence.number}"
        when = _spelled(self._clock())
        event = occurrence.event
        if occurrence.times > 1:
            change = {"count": occurrence.times, "lastTimestamp": when, "message": event.message}
            try:
                self._server.patch(f"{EVENTS_PATH}/{name}", change)
                return
            except ApiProblem as problem:
                if problem.status != _NOT_FOUND:  # the server keeps Events for an hour
                    raise
        body = event_object(self._node, name, event.type, event.reason, event.message, when)
        self._server.post(EVENTS_PATH, body | {"count": occurrence.times, "firstTimestamp": _spelled(occurrence.first)})


def _spelled(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def event_object(node: str, name: str, event_type: str, reason: str, message: str, when: str) -> Json:
    """An Event on a node. ``uid`` must be the node's name, since ``kubectl describe node`` looks for that."""
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": name, "namespace": "default"},
        "involvedObject": {"apiVersion": "v1", "kind": "Node", "name": node, "uid": node},
        "type": event_type,
        "reason": reason,
        "message": message,
        "count": 1,
        "firstTimestamp": when,
        "lastTimestamp": when,
        "source": {"component": COMPONENT, "host": node},
        "reportingComponent": COMPONENT,
        "reportingInstance": node,
    }
