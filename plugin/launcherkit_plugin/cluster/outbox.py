"""The daemon's queue of messages to the cluster container.

Events for a container that never connects must not fill the memory, and desired state must not get lost if it connects
late. So the oldest Events are dropped; of a driver's slices, a claim's status and the node's record only the last one
is kept; and unanswered questions are sent again to the next container that connects.
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
    """Messages by priority: questions, slices and the node's record, statuses of claims, Events."""

    def __init__(self) -> None:
        self._events: deque[bytes] = deque(maxlen=_EVENTS)
        self._wanted: dict[tuple[str, str], object] = {}
        """Desired state, by message and key."""
        self._due: dict[tuple[str, str], None] = {}
        """The desired state that hasn't been sent yet."""
        self._statuses: dict[str, object] = {}
        self._asked: dict[int, bytes] = {}
        self._to_ask: dict[int, None] = {}

    def again(self) -> None:
        """Send everything again: another container has connected, which knows nothing yet."""
        self._due = dict.fromkeys(self._wanted)
        self._to_ask = dict.fromkeys(self._asked)

    def event(self, body: object) -> None:
        self._events.append(line_of("event", body))

    def slices(self, driver: str, specs: Specs) -> None:
        """Queue all slices of a driver, unless they are the same as before."""
        self._want("slices", driver, {"driver": driver, "slices": specs})

    def record(self, body: object) -> None:
        """Queue the node's record, unless it is the same as before."""
        self._want("node-record", "", body)

    def _want(self, name: str, key: str, body: object) -> None:
        if self._wanted.get((name, key)) != body:
            self._wanted[name, key] = body
            self._due[name, key] = None

    def status(self, uid: str, body: object) -> None:
        """Queue the status of a claim's devices; it replaces an earlier one."""
        self._statuses.pop(uid, None)
        self._statuses[uid] = body
        while len(self._statuses) > _STATUSES:
            self._statuses.pop(next(iter(self._statuses)))

    def ask(self, number: int, name: str, body: Mapping[str, object]) -> None:
        """Queue a question; its number must be unique."""
        self._asked[number] = line_of(name, {"id": number, **body})
        self._to_ask[number] = None

    def answered(self, number: int) -> None:
        """Forget a question: nobody waits for the answer any more."""
        self._asked.pop(number, None)
        self._to_ask.pop(number, None)

    def next(self) -> bytes | None:
        """The next line to send; None if there is none."""
        for number in self._to_ask:
            del self._to_ask[number]
            return self._asked[number]
        for name, key in self._due:
            del self._due[name, key]
            return line_of(name, self._wanted[name, key])
        for uid in self._statuses:
            return line_of("claim-status", self._statuses.pop(uid))
        return self._events.popleft() if self._events else None
