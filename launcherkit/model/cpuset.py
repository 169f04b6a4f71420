"""Sets of numbers as the kernel and libvirt write them: ``0-3,8``, and libvirt's ``0-7,^3``."""

from __future__ import annotations

_HIGHEST = 16383
"""libvirt's highest CPU number; the kernel's is below it."""


def parse_cpuset(text: str) -> frozenset[int]:
    """The numbers of a list; ``^n`` removes a number that comes earlier in the list.

    Raises:
        ValueError: a part is neither a number nor a range, or beyond 16383.
    """
    numbers: set[int] = set()
    for part in filter(None, (part.strip() for part in text.split(","))):
        if part.startswith("^"):
            numbers.discard(_number(part[1:]))
            continue
        first, dash, last = part.partition("-")
        numbers.update(range(_number(first), _number(last if dash else first) + 1))
    return frozenset(numbers)


def _number(text: str) -> int:
    digits = text.strip()
    if not (digits.isascii() and digits.isdigit()) or len(digits) > len(str(_HIGHEST)) or int(digits) > _HIGHEST:
        raise ValueError(f"{digits[:20]!r} is not a number from 0 to {_HIGHEST}")
    return int(digits)


def format_cpuset(numbers: frozenset[int]) -> str:
    """Numbers as the kernel lists them: ``0-3,8``."""
    parts: list[list[int]] = []
    for number in sorted(numbers):
        if parts and parts[-1][-1] == number - 1:
            parts[-1][1:] = [number]
        else:
            parts.append([number])
    return ",".join("-".join(map(str, part)) for part in parts)
