"""Since when nobody has what is there: it goes when its grace time is over."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping


def idle_since(
    before: Mapping[str, float], there: Iterable[str], held: Collection[str], now: float
) -> dict[str, float]:
    """Since when each of the devices that are there has been seen with nobody; to be called where usage is known.

    Args:
        before: what this gave the last time; empty after a start, and then every grace time begins anew.
        there: the devices that could go.
        held: those that somebody has.
        now: seconds on a monotonic clock.
    """
    return {device: before.get(device, now) for device in there if device not in held}


def due(idle: Mapping[str, float], grace: float, now: float, at_once: Collection[str] = ()) -> list[str]:
    """The devices whose grace time is over, the longest idle first; those in ``at_once`` have none."""
    over = [device for device, since in idle.items() if now - since >= grace or device in at_once]
    return sorted(over, key=lambda device: (idle[device], device))
