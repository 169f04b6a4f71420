"""Posts Events on the node."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Protocol

from launcherkit_plugin.cluster.api import ApiProblem, Json
from launcherkit_plugin.cluster.correlator import Correlator, Event, Occurrence
from launcherkit_plugin.cluster.objects import EVENTS_PATH, event_object
from launcherkit_plugin.telemetry.log import Log

_NOT_FOUND = 404
_NAME_CHARACTERS = 253


class EventServer(Protocol):
    """As much of `Api` as is needed."""

    def post(self, path: str, body: Json) -> Json: ...

    def patch(self, path: str, body: Json) -> Json: ...


class Teller:
    """Posts Events to the API server, each once and then by its count; one that can't be posted is logged and lost.

    Args:
        server: where.
        node: the node's name.
        run: tells this process's Events from those of the one before.
        clock: seconds since the epoch.
    """

    def __init__(self, server: EventServer, node: str, run: str, clock: Callable[[], float], log: Log) -> None:
        self._server = server
        self._node = node
        self._run = run
        self._clock = clock
        self._log = log
        self._correlator = Correlator()

    def tell(self, event: Event) -> None:
        """Post it, or raise the count of one that is posted."""
        dropped = self._correlator.dropped
        occurrence = self._correlator.take(event, self._clock())
        if occurrence is None:
            if dropped == 0:
                self._log("warning", "more Events than the cluster should have to keep: some are left out")
            return
        try:
            self._post(occurrence)
        except ApiProblem as problem:
            self._correlator.forget(occurrence)
            self._log("warning", f"an Event can't be told: {problem}", reason=event.reason)

    def _post(self, occurrence: Occurrence) -> None:
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
