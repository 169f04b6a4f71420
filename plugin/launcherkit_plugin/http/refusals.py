"""What a server refuses, in the log: a line a minute, whoever sends how much."""

from __future__ import annotations

from collections.abc import Callable

from launcherkit_plugin.telemetry.reporter import Log

_SECONDS = 60.0


class Refusals:
    """Counts refusals between two lines.

    Args:
        log: gets the lines.
        clock: seconds, monotonic.
    """

    def __init__(self, log: Log, clock: Callable[[], float]) -> None:
        self._log, self._clock = log, clock
        self._next, self._untold = -_SECONDS, 0

    def add(self, why: str, client: str) -> None:
        """Log a refusal and how many there were since the last line, or only count it."""
        now = self._clock()
        if now < self._next:
            self._untold += 1
            return
        more = f"; {self._untold} others since the last such line" if self._untold else ""
        self._log("warning", f"refused: {why}{more}", client=client)
        self._next, self._untold = now + _SECONDS, 0
