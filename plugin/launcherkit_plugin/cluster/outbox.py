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
    """Lines in the order in which they matter: what is asked, slices and the node's record, claims' status, Events."""

    def __init__(self) -> None:
        self._events: deque[bytes] = deque(maxlen=_EVENTS)
        self._wanted: dict[tuple[str, str], object] = {}
        """What the other side is to know, by the message and a key."""
        self._due: dict[tuple[str, str], None] = {}
        """Of these what it doesn't know yet."""
        self._statuses: dict[str, object] = {}
        self._asked: dict[int, bytes] = {}
        self._to_ask: dict[int, None] = {}

    def again(self) -> None:
        """Another process has come, which knows nothing."""
        self._due = dict.fromkeys(self._wanted)
        self._to_ask = dict.fromkeys(self._asked)

    def event(self, body: object) -> None:
        self._events.append(line_of("event", body))

    def slices(self, driver: str, specs: Specs) -> None:
        """All slices that a driver wants; nothing is sent where they are the same as before."""
        self._want("slices", driver, {"driver": driver, "slices": specs})

    def record(self, body: object) -> None:
        """The node's record; nothing is sent where it is the same as before."""
        self._want("node-record", "", body)

    def _want(self, name: str, key: str, body: object) -> None:
        if self._wanted.get((name, key)) != body:
            self._wanted[name, key] = body
            self._due[name, key] = None

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
        for name, key in self._due:
            del self._due[name, key]
            return line_of(name, self._wanted[name, key])
        for uid in self._statuses:
            return line_of("claim-status", self._statuses.pop(uid))
        return self._events.popleft() if self._events else None
