"""Sizes for people."""

from __future__ import annotations

_UNITS = ("bytes", "KiB", "MiB", "GiB", "TiB", "PiB")


def size(number: int) -> str:
    """``8 MiB``, ``17.5 GiB``: a number of bytes in the largest unit that fits, with a decimal unless it is whole."""
    value, unit = float(number), 0
    while value >= 1024 and unit < len(_UNITS) - 1:
        value, unit = value / 1024, unit + 1
    return f"{value:.0f} {_UNITS[unit]}" if value == int(value) else f"{value:.1f} {_UNITS[unit]}"
