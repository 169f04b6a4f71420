"""When to try again what has failed: after a pause that doubles with each failure."""

from __future__ import annotations

from collections.abc import Collection, Hashable
from typing import NamedTuple


class _Failure(NamedTuple):
    until: float
    pause: float
    why: str
    state: object


class Backoff:
    """Failed attempts by key. Several threads may use it, as long as no two use the same key.

    Args:
        first: the first pause, in seconds.
        longest: the longest.
    """

    def __init__(self, first: float, longest: float) -> None:
        self._first = first
        self._longest = longest
        self._failed: dict[Hashable, _Failure] = {}

    def failed(self, key: Hashable, now: float, reason: str = "", state: object = None) -> float:
        """Note that an attempt failed; returns the pause, in seconds.

        Args:
            key: what was attempted.
            now: seconds on a monotonic clock.
            reason: returned by `why` as long as the pause lasts.
            state: what the attempt depends on; once it has changed, the next attempt needs no pause.
        """
        before = self._failed.get(key)
        again = before is not None and before.state == state
        pause = min(2 * before.pause, self._longest) if before is not None and again else self._first
        self._failed[key] = _Failure(now + pause, pause, reason, state)
        return pause

    def succeeded(self, key: Hashable) -> None:
        """Note that an attempt succeeded."""
        self._failed.pop(key, None)

    def too_early(self, key: Hashable, now: float, state: object = None) -> bool:
        """Whether it is too early for another attempt."""
        failure = self._failed.get(key)
        return failure is not None and failure.state == state and now < failure.until

    def why(self, key: Hashable, now: float) -> str | None:
        """Why the last attempt failed, as long as the pause lasts."""
        failure = self._failed.get(key)
        return failure.why if failure is not None and now < failure.until else None

    def forget_others(self, keys: Collection[Hashable]) -> None:
        """Forget all but these."""
        self._failed = {key: failure for key, failure in self._failed.items() if key in keys}
