"""What a peer's bytes cost to take in, before HTTP/2 is made of them: frames, counted by their kind. Pure.

A frame of nine bytes costs the server a hundred times what it costs the peer. So each connection has a budget of frames
(T4). Calls that are answered pay for themselves; who pings, resets and changes settings waits.
"""

from __future__ import annotations

FRAMES_A_TURN = 16
"""So many frames of one connection are taken before the others have their turn: four calls."""
START, MOST, A_SECOND = 64.0, 256.0, 1000.0
"""What a connection may spend when it begins, at most at once, and in the long run; see `_COSTS`."""
ANSWERED = 8.0
"""What an answered call gives back: about what it cost."""

_PREFACE_BYTES = 24
_HEAD_BYTES = 9
_DATA, _SMALL = 0, 1024
_COSTS = {
    1: 2.0,  # HEADERS: a call, a task
    3: 4.0,  # RST_STREAM: what was begun is thrown away
    4: 2.0,  # SETTINGS: each is acknowledged
    8: 0.25,  # WINDOW_UPDATE: who reads a large answer sends many
}


class Frames:
    """Where the frames of one connection begin and end, fed in order."""

    def __init__(self) -> None:
        self._rest = _PREFACE_BYTES
        self._head = b""

    def take(self, data: bytes, start: int, most: int = FRAMES_A_TURN) -> tuple[int, float]:
        """The end of at most so many frames from an index on, and what they cost."""
        at, cost, frames = start, 0.0, 0
        while at < len(data):
            if self._rest:
                step = min(self._rest, len(data) - at)
                self._rest -= step
                at += step
            elif frames == most:
                break
            else:
                part = data[at : at + _HEAD_BYTES - len(self._head)]
                at += len(part)
                self._head += part
                if len(self._head) == _HEAD_BYTES:
                    self._rest = int.from_bytes(self._head[:3], "big")
                    cost += _cost(self._head[3], self._rest)
                    frames += 1
                    self._head = b""
        return at, cost


def _cost(kind: int, length: int) -> float:
    if kind == _DATA and length >= _SMALL:
        return 0.0  # flow control bounds them
    return _COSTS.get(kind, 1.0)


class Budget:
    """What a connection may spend: it grows with time and with answered calls.

    Args:
        now: seconds, monotonic.
    """

    def __init__(self, now: float) -> None:
        self._left = START
        self._at = now

    def spend(self, cost: float, now: float, sharing: int) -> float:
        """Pay; gives the seconds until the debt is paid, 0 where there is none.

        Args:
            cost: of frames.
            now: seconds, monotonic.
            sharing: how many connections are in debt: they share what one would get.
        """
        rate = A_SECOND / max(1, sharing)
        self._left = min(MOST, self._left + (now - self._at) * rate) - cost
        self._at = now
        return max(0.0, -self._left / rate)

    def answered(self) -> None:
        """A call has been answered."""
        self._left = min(MOST, self._left + ANSWERED)
