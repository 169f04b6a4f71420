"""What hangs, for the log, the metrics and the node's Events (K9)."""

from __future__ import annotations

from collections.abc import Callable

from launcherkit_plugin.telemetry.events import Recorder
from launcherkit_plugin.telemetry.log import Log
from launcherkit_plugin.telemetry.metrics import Metrics


class Waits:
    """A `launcherkit_plugin.host.guarded.Reports`.

    Args:
        log, metrics, events: where waits are reported.
        ended: called when late work has come back: there is something to look at.
    """

    def __init__(self, log: Log, metrics: Metrics, events: Recorder, ended: Callable[[], None]) -> None:
        self._log = log
        self._metrics = metrics
        self._events = events
        self._ended = ended

    def hangs(self, key: str, text: str, hanging: int) -> None:
        """See `Reports.hangs`."""
        self._metrics.hangs(hanging)
        self._log("error", f"{key}: {text}", reason="OperationHangs")
        self._events.event("Warning", "OperationHangs", f"{key}: {text}")

    def came_back(self, key: str, text: str, hanging: int) -> None:
        """See `Reports.came_back`."""
        self._metrics.came_back(hanging)
        self._log("info", f"{key}: {text}", reason="OperationCameBack")
        self._events.event("Normal", "OperationCameBack", f"{key}: {text}")
        self._ended()
