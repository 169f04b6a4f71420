"""Which replicas of shared cards a container should rather get: by how many users the cards have (K10)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence

from launcherkit_plugin.allocation.preference import chosen_and_free, with_last_resort
from launcherkit_plugin.model.device import without_replica


def spread(
    devices: Collection[str],
    available: Sequence[str],
    must_include: Sequence[str],
    size: int,
    blocked: Sequence[str] = (),
    *,
    packed: bool = False,
) -> list[str]:
    """The ``size`` replicas of ``available`` to take, ``must_include`` first; fewer where there aren't as many.

    One after the other, each of the card of which the fewest are taken, as NVIDIA's device plugin does by default; with
    ``packed`` of which the most are, as it does by that policy. Of several the one of which this request has the
    fewest, or the most, then the lowest.

    Args:
        devices: the IDs of the resource.
        available: the kubelet's free and healthy ones.
        must_include: those of them that it has decided upon.
        size: how many.
        blocked: those that an Allocate would refuse; taken in this order, when nothing else is left.
        packed: fill the cards one after the other.
    """
    chosen, replicas = chosen_and_free(available, must_include, size, blocked)
    free: dict[str, list[str]] = {}
    for key in sorted(replicas, key=_order, reverse=True):
        free.setdefault(without_replica(key), []).append(key)
    taken = Counter(map(without_replica, devices))
    taken.subtract({card: len(left) for card, left in free.items()})
    picked = Counter(map(without_replica, chosen))
    sign = -1 if packed else 1
    while len(chosen) < size and free:
        card = min(free, key=lambda each: (sign * taken[each], sign * picked[each], each))
        chosen.append(free[card].pop())
        taken[card] += 1
        picked[card] += 1
        if not free[card]:
            del free[card]
    return with_last_resort(chosen, size, blocked)


def _order(key: str) -> tuple[str, int, str]:
    """By card, then by number."""
    card, _, number = key.partition("::")
    return card, int(number) if number.isdecimal() else 0, key
