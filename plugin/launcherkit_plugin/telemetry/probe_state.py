"""Whether the daemon is alive and ready, for probes."""

from __future__ import annotations

from collections.abc import Callable


class ProbeState:
    """The health of the daemon: set by its loop, and read by the pages for probes.

    Args:
        clock: seconds on a monotonic clock.
        patience: how many seconds a turn of the loop may take: several times its longest pause.
    """

    def __init__(self, clock: Callable[[], float], patience: float) -> None:
        self._clock = clock
        self._patience = patience
        self._last = clock()
        self._waiting = "the host has not been scanned yet"

    def turned(self) -> None:
        """Note that the loop has completed a turn, so the daemon is alive."""
        self._last = self._clock()

    def waiting(self, for_what: str) -> None:
        """Set why it isn't ready; empty if it is: all advertised resources are registered with the kubelet."""
        self._waiting = for_what

    def why_restart(self) -> str:
        """Why it should be restarted; empty if it shouldn't."""
        quiet = self._clock() - self._last
        return f"the daemon's loop has not turned for {quiet:.0f} s" if quiet > self._patience else ""

    def why_not_ready(self) -> str:
        """Why it is not ready; empty if it is."""
        return self._waiting
