"""A value that is streamed: its watchers are woken when it changes and when it is closed."""

from __future__ import annotations

import asyncio
from typing import Generic, TypeVar

T = TypeVar("T")


class StreamedValue(Generic[T]):
    """The current value, ``now``, and whether streams of it are open. To be used in the event loop's thread."""

    def __init__(self, now: T) -> None:
        self.now = now
        self.is_open = False
        self._changed = asyncio.Event()

    def set(self, value: T) -> None:
        """Set the value. Watchers are woken if it differs."""
        if value != self.now:
            self.now = value
            self._wake()

    def open(self) -> None:
        """From now on streams stay open."""
        self.is_open = True

    def close(self) -> None:
        """End all streams."""
        self.is_open = False
        self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def change(self, since: T, seconds: float | None = None) -> None:
        """Wait until the value isn't ``since`` any more, or it is closed, or ``seconds`` have passed."""
        if self.now is not since or not self.is_open:
            return
        waiting = asyncio.create_task(self._changed.wait())
        try:
            await asyncio.wait({waiting}, timeout=seconds)
        finally:
            waiting.cancel()
