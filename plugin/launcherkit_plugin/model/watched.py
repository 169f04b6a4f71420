"""A value that is streamed: whoever watches it is woken when it changes, and when it is closed."""

from __future__ import annotations

import asyncio
from typing import Generic, TypeVar

T = TypeVar("T")


class Watched(Generic[T]):
    """The value ``now``, and whether streams of it last. To be used in the loop's thread alone."""

    def __init__(self, now: T) -> None:
        self.now = now
        self.is_open = False
        self._changed = asyncio.Event()

    def set(self, value: T) -> None:
        """Change it; an equal value changes nothing."""
        if value != self.now:
            self.now = value
            self._wake()

    def open(self) -> None:
        """From now on streams last."""
        self.is_open = True

    def close(self) -> None:
        """End all streams."""
        self.is_open = False
        self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def change(self, since: T, seconds: float | None = None) -> None:
        """Wait until it is another value than ``since``, or closed, or for so many seconds."""
        if self.now is not since or not self.is_open:
            return
        waiting = asyncio.create_task(self._changed.wait())
        try:
            await asyncio.wait({waiting}, timeout=seconds)
        finally:
            waiting.cancel()
