"""Whether the daemon lives and is ready, as its probes ask."""

from __future__ import annotations

from collections.abc import Callable


class Health:
    """Told by the daemon, asked by the server's threads; each answer is one reading of one field.

    Args:
        clock: seconds on a monotonic clock.
        patience: for how many seconds the daemon may be quiet; more than a few of its longest pauses.
    """

    def __init__(self, clock: Callable[[], float], patience: float) -> None:
        self._clock = clock
        self._patience = patience
        self._last = clock()
        self._waiting = "nothing has been looked at yet"

    def turned(self) -> None:
        """The daemon has come round: it lives."""
        self._last = self._clock()

    def waiting(self, for_what: str) -> None:
        """It is not ready, and why; with an empty text it is: all that is advertised is registered with the kubelet."""
        self._waiting = for_what

    def illness(self) -> str:
        """Why it should be started anew; empty if it should not."""
        quiet = self._clock() - self._last
        return f"the daemon has not come round for {quiet:.0f} s" if quiet > self._patience else ""

    def unreadiness(self) -> str:
        """Why it is not ready; empty if it is."""
        return self._waiting
