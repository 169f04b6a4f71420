"""What failed a moment ago is not offered again at once: the next pod would fail there too."""

from __future__ import annotations

from collections.abc import Hashable

FIRST_SECONDS = 10.0
LONGEST_SECONDS = 600.0


class Failures:
    """Failed attempts by what they were at, each kept for a time that doubles while it goes on failing."""

    def __init__(self, first: float = FIRST_SECONDS, longest: float = LONGEST_SECONDS) -> None:
        self._first = first
        self._longest = longest
        self._found: dict[Hashable, tuple[float, float, str]] = {}
        """Until when, after what pause, and why."""

    def add(self, key: Hashable, why: str, now: float) -> None:
        """An attempt failed; times are seconds on a monotonic clock."""
        _, pause, _ = self._found.get(key, (0.0, self._first / 2, ""))
        pause = min(2 * pause, self._longest)
        self._found[key] = (now + pause, pause, why)

    def clear(self, key: Hashable) -> None:
        """An attempt came off."""
        self._found.pop(key, None)

    def why(self, key: Hashable, now: float) -> str | None:
        """Why the last attempt failed, as long as that counts."""
        until, _, why = self._found.get(key, (now, 0.0, ""))
        return why if now < until else None
