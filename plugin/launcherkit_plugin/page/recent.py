"""What has happened on the node lately, for its page: a `Recorder` in front of the one that tells the cluster."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from launcherkit_plugin.page.view import NodeChange
from launcherkit_plugin.telemetry.reporter import EventType, Recorder

_MOST = 30
_CHARACTERS = 1024


class RecentChanges:
    """Remembers the last few changes, and passes all of them on.

    Args:
        further: who else is told.
        clock: seconds since the epoch.
    """

    def __init__(self, further: Recorder, clock: Callable[[], float]) -> None:
        self._further = further
        self._clock = clock
        self._kept: deque[NodeChange] = deque(maxlen=_MOST)
        self.told: Callable[[], object] = lambda: None
        """Called after each; from any thread."""

    def event(self, type: EventType, reason: str, message: str) -> None:  # noqa: A002  # Kubernetes' name
        """See `Recorder.event`."""
        self._further.event(type, reason, message)
        self._kept.appendleft(NodeChange(self._clock(), type, reason, message[:_CHARACTERS]))
        self.told()

    def newest_first(self) -> tuple[NodeChange, ...]:
        """Those that are remembered."""
        return tuple(self._kept)
