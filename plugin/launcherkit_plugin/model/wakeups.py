"""Why the daemon's loop is woken, and the queue that collects the wakeups."""

from __future__ import annotations

import asyncio
from enum import Enum, auto


class Wakeup(Enum):
    """What may have changed."""

    HOST = auto()
    """Devices, drivers or nodes."""
    ALLOCATED = auto()
    """A device was allocated."""
    PODS = auto()
    """A pod has started or ended."""
    CONFIG = auto()
    """A configuration file, or KubeVirt's settings in the cluster."""
    TIME = auto()
    """Nothing in particular: the longest time between two turns is over."""


class WakeupQueue:
    """Collects wakeups. To be used in the event loop's thread."""

    def __init__(self, settle: float) -> None:
        """``settle``: how many seconds after the first wakeup `wait` returns, with all that came in between."""
        self._settle = settle
        self._waiting: set[Wakeup] = set()
        self._some = asyncio.Event()

    def notify(self, wakeup: Wakeup) -> None:
        self._waiting.add(wakeup)
        self._some.set()

    async def wait(self, seconds: float) -> frozenset[Wakeup]:
        """Wait for wakeups and return them; an empty set after ``seconds`` without one."""
        try:
            async with asyncio.timeout(seconds):
                await self._some.wait()
        except TimeoutError:
            return frozenset()
        await asyncio.sleep(self._settle)
        self._some.clear()
        gathered, self._waiting = frozenset(self._waiting), set()
        return gathered
