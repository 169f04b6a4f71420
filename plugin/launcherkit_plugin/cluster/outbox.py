"""What the daemon has to say to the cluster's process, until that process takes it.

Events for a process that never comes must not fill the memory, and what is wanted of the API server must not get lost
when one comes late. So of Events the oldest are dropped; of a driver's slices, a claim's status and the node's record
the last one counts; and what was asked is asked again of the next process, as long as somebody waits for the answer.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from launcherkit_plugin.cluster.protocol import line_of

Specs: TypeAlias = Sequence[Mapping[str, Any]]
"""The ``spec`` of each ResourceSlice of a pool, without ``driver``, ``nodeName`` and ``pool``."""

_EVENTS = 256
_STATUSES = 1024


class Outbox:
    """Lines in the order in which they matter: what is asked, slices, claims' status, the node's record, Events."""

    def __init__(self) -> None:
        self._events: deque[bytes] = deque(maxlen=_EVENTS)
        self._slices: dict[str, Specs] = {}
        self._due: dict[str, None] = {}
        """Drivers whose slices the other side doesn't know yet."""
        self._record: object = None
        self._record_due = False
        self._statuses: dict[str, object] = {}
        self._asked: dict[int, bytes] = {}
        self._to_ask: dict[int, None] = {}

    def again(self) -> None:
        """Another process has come, which knows nothing."""
        self._due = dict.fromkeys(self._slices)
        self._to_ask = dict.fromkeys(self._asked)
        self._record_due = self._record is not None

    def event(self, body: object) -> None:
        self._events.append(line_of("event", body))

    def slices(self, driver: str, specs: Specs) -> None:
        """All slices that a driver wants; nothing is sent where they are the same as before."""
        if driver not in self._slices or self._slices[driver] != specs:
            self._slices[driver] = specs
            self._due[driver] = None

    def record(self, body: object) -> None:
        """The node's record; nothing is sent where it is the same as before."""
        if self._record != body:
            self._record, self._record_due = body, True

    def status(self, uid: str, body: object) -> None:
        """The status of a claim's devices; the last one counts."""
        self._statuses.pop(uid, None)
        self._statuses[uid] = body
        while len(self._statuses) > _STATUSES:
            self._statuses.pop(next(iter(self._statuses)))

    def ask(self, number: int, name: str, body: Mapping[str, object]) -> None:
        """What somebody waits for, by a number of its own."""
        self._asked[number] = line_of(name, {"id": number, **body})
        self._to_ask[number] = None

    def answered(self, number: int) -> None:
        """Nobody waits for this answer any more."""
        self._asked.pop(number, None)
        self._to_ask.pop(number, None)

    def next(self) -> bytes | None:
        """The next line; None where all has been said."""
        for number in self._to_ask:
            del self._to_ask[number]
            return self._asked[number]
        for driver in self._due:
            del self._due[driver]
            return line_of("slices", {"driver": driver, "slices": list(self._slices[driver])})
        for uid in self._statuses:
            return line_of("claim-status", self._statuses.pop(uid))
        if self._record_due:
            self._record_due = False
            return line_of("node-record", self._record)
        return self._events.popleft() if self._events else None
