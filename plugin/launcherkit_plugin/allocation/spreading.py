"""Which replicas of shared cards a container should preferably get, by the number of users of each card (K10)."""

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
    """The ``size`` replicas of ``available`` to take, ``must_include`` first; fewer if there aren't as many.

    Each replica is taken from the card with the fewest users, which is the default of NVIDIA's device plugin; with
    ``packed``, from the card with the most, which is that plugin's policy of this name. Among equals it is the card of
    which this request has the fewest (or the most) replicas, then the lowest ID.

    Args:
        devices: the IDs of the resource.
        available: those that the kubelet considers free and healthy.
        must_include: those of them that the kubelet requires.
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
