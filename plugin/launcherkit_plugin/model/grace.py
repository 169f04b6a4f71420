"""How long devices have been unused: they are removed or given back after a grace time."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping


def idle_since(
    before: Mapping[str, float], existing: Iterable[str], held: Collection[str], now: float
) -> dict[str, float]:
    """Since when each device has been unused. Call it only when usage is known.

    Args:
        before: the previous result; empty after a start, so every grace time begins anew.
        existing: the devices that exist.
        held: those in use.
        now: seconds on a monotonic clock.
    """
    return {device: before.get(device, now) for device in existing if device not in held}


def due(idle: Mapping[str, float], grace: float, now: float, at_once: Collection[str] = ()) -> list[str]:
    """The devices whose grace time, in seconds, is over, the longest unused first; those in ``at_once`` have none."""
    over = [device for device, since in idle.items() if now - since >= grace or device in at_once]
    return sorted(over, key=lambda device: (idle[device], device))
