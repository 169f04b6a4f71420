"""Which Events are reported, and which have been already: a node that flaps must not fill the cluster's memory.

As Kubernetes' own components do it: the same Event again raises the count of the first; of many that differ in their
message alone one goes on for all; and there is a budget.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import NamedTuple

from launcherkit_plugin.cluster import EventType

_AGAIN_SECONDS = 600.0
"""An Event is the same one for so long after it was last reported."""
_SIMILAR = 10
_BURST = 25
_REFILL_SECONDS = 20.0
_KNOWN = 256
"""How many Events are remembered."""
_MESSAGE_CHARACTERS = 1024
"""What events.k8s.io allows."""

COMBINED = "(combined from similar events): "


class Event(NamedTuple):
    type: EventType
    reason: str
    message: str


class Occurrence(NamedTuple):
    """An Event that is to be reported: a new one where ``times`` is 1, else the one of that number once more."""

    number: int
    event: Event
    times: int
    first: float
    """Seconds since the epoch."""


class Correlator:
    """Takes Events in the order of time."""

    def __init__(self) -> None:
        self._known: OrderedDict[Event, tuple[Occurrence, float]] = OrderedDict()
        self._similar: OrderedDict[tuple[str, str], tuple[set[str], float]] = OrderedDict()
        self._budget = float(_BURST)
        self._at: float | None = None
        self._number = 0
        self.dropped = 0
        """Events that were over the budget."""

    def take(self, event: Event, now: float) -> Occurrence | None:
        """What is to be reported of an Event; None where it is over the budget."""
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
        """It could not be reported, or is not there any more: the next one like it is a new one."""
        for key, (known, _) in list(self._known.items()):
            if known.number == occurrence.number:
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
        """What an Event is known by, and the Event itself, which stands for all like it where there are many."""
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
