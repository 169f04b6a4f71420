"""Reports to the log and to the node's Events what happened; a lasting problem is reported once, until it changes."""

from __future__ import annotations

from collections.abc import Hashable

from launcherkit.errors import LauncherkitError
from launcherkit_plugin.telemetry.events import EventType, Recorder
from launcherkit_plugin.telemetry.log import Log, log_error, silent


class Reporter:
    """May be called from any thread.

    Args:
        log: takes everything.
        events: takes what the cluster should know of.
    """

    def __init__(self, log: Log = silent, events: Recorder | None = None) -> None:
        self.log = log
        self._events = events
        self._wrong: dict[Hashable, str] = {}

    def done(self, reason: str, text: str, **fields: object) -> None:
        """Something was done, or is well again; ``reason`` as Kubernetes writes them."""
        self.log("info", text, **fields)
        self._event("Normal", reason, text)

    def problem(self, about: Hashable, error: LauncherkitError, reason: str | None = None, text: str = "") -> bool:
        """Something is wrong. True where it was not wrong in the same way before.

        Args:
            about: what; `well` of the same ends it.
            error: goes to the log.
            reason: of the Event; without one there is no Event.
            text: of the Event, where it isn't the error's message.
        """
        if self._wrong.get(about) == error.message:
            return False
        self._wrong[about] = error.message
        log_error(self.log, error)
        if reason is not None:
            self._event("Warning", reason, text or error.message)
        return True

    def well(self, about: Hashable) -> None:
        """Nothing is wrong with it any more."""
        self._wrong.pop(about, None)

    def forget(self) -> None:
        """What was reported is reported again if it goes on: something has changed."""
        self._wrong.clear()

    def _event(self, type: EventType, reason: str, text: str) -> None:  # noqa: A002
        if self._events is not None:
            self._events.event(type, reason, text)
