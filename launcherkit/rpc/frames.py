"""Counts a peer's frames, weighted by type, before HTTP/2 processes them. Pure.

A frame of nine bytes costs the server a hundred times what it costs the peer, so each connection has a budget (T4).
Answered calls pay for themselves; peers that ping, reset and change settings have to wait.
"""

from __future__ import annotations

FRAMES_A_TURN = 16
"""How many frames of one connection are taken before the others have their turn: four calls."""
START, MAX, A_SECOND = 64.0, 256.0, 1000.0
"""What a connection may spend at the beginning, at once at most, and each second; see `_COSTS`."""
ANSWERED = 8.0
"""What an answered call refunds: about what it cost."""

_PREFACE_BYTES = 24
_HEAD_BYTES = 9
_DATA, _SMALL = 0, 1024
_COSTS = {
    1: 2.0,  # HEADERS: a call, a task
    3: 4.0,  # RST_STREAM: work that has begun is thrown away
    4: 2.0,  # SETTINGS: each is acknowledged
    8: 0.25,  # WINDOW_UPDATE: readers of large answers send many
}


class Frames:
    """Finds the frames in the bytes of one connection, which are fed in order."""

    def __init__(self) -> None:
        self._rest = _PREFACE_BYTES
        self._head = b""

    def take(self, data: bytes, start: int, limit: int = FRAMES_A_TURN) -> tuple[int, float]:
        """The end of at most ``limit`` frames from index ``start`` on, and their cost."""
        at, cost, frames = start + self._rest, 0.0, 0
        while at < len(data) and frames < limit:
            head = self._head + data[at : at + _HEAD_BYTES - len(self._head)]
            at += len(head) - len(self._head)
            if len(head) < _HEAD_BYTES:
                self._head = head
                break
            self._head = b""
            length = int.from_bytes(head[:3], "big")
            cost += _cost(head[3], length)
            frames += 1
            at += length
        self._rest = max(0, at - len(data))
        return min(at, len(data)), cost


def _cost(kind: int, length: int) -> float:
    if kind == _DATA and length >= _SMALL:
        return 0.0  # flow control bounds them
    return _COSTS.get(kind, 1.0)


class Budget:
    """What a connection may spend; it grows with time and with answered calls.

    Args:
        now: monotonic seconds.
    """

    def __init__(self, now: float) -> None:
        self._left = START
        self._at = now

    def spend(self, cost: float, now: float, sharing: int) -> float:
        """Pay; returns the seconds until the debt is paid, 0 without debt.

        Args:
            cost: the frames' cost.
            now: monotonic seconds.
            sharing: how many connections are in debt; they share what one would get.
        """
        rate = A_SECOND / max(1, sharing)
        self._left = min(MAX, self._left + (now - self._at) * rate) - cost
        self._at = now
        return max(0.0, -self._left / rate)

    def answered(self) -> None:
        """Refund an answered call."""
        self._left = min(MAX, self._left + ANSWERED)
