"""What the daemon is woken for, and the queue that gathers the wakeups."""

from __future__ import annotations

import asyncio
from enum import Enum, auto


class Wakeup(Enum):
    """What has changed, or may have."""

    HOST = auto()
    """Devices, drivers or nodes."""
    GIVEN = auto()
    """An Allocate has given something away."""
    PODS = auto()
    """A pod has come or gone."""
    CONFIG = auto()
    """A file of the configuration, or KubeVirt's in the cluster."""
    TIME = auto()
    """Nothing was heard for long enough."""


class WakeupQueue:
    """May be given wakeups at any time, in the loop's thread."""

    def __init__(self, settle: float) -> None:
        """``settle``: seconds from the first wakeup to the end of `wait`, which returns all that came in between."""
        self._settle = settle
        self._waiting: set[Wakeup] = set()
        self._some = asyncio.Event()

    def give(self, wakeup: Wakeup) -> None:
        self._waiting.add(wakeup)
        self._some.set()

    async def wait(self, seconds: float) -> frozenset[Wakeup]:
        """The wakeups that have come; none after so many seconds without one."""
        try:
            async with asyncio.timeout(seconds):
                await self._some.wait()
        except TimeoutError:
            return frozenset()
        await asyncio.sleep(self._settle)
        self._some.clear()
        gathered, self._waiting = frozenset(self._waiting), set()
        return gathered
