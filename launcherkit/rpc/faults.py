"""Reports faults of the event loop itself: each once, however often it recurs (T4)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

AGAIN_SECONDS = 60.0
"""A fault that has not recurred for so long counts as new."""


class Faults:
    """A handler for `asyncio.loop.set_exception_handler`.

    If no file descriptor is left, asyncio tries to accept a hundred times each second, and reports each failure.

    Args:
        tell: called with the text of a line.
    """

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell = tell
        self._last: dict[str, float] = {}

    def __call__(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Report a fault unless it has been reported."""
        problem = context.get("exception")
        text = str(context["message"])
        if isinstance(problem, OSError) and "accept" in text:
            text = f"connections can't be accepted: {problem.strerror}; tried again every second"
        now = loop.time()
        if now - self._last.get(text, now - AGAIN_SECONDS - 1) > AGAIN_SECONDS:
            self._tell(text)
        self._last[text] = now
        for old in [each for each, at in self._last.items() if now - at > AGAIN_SECONDS]:
            del self._last[old]
