"""Which vGPUs a container should rather get: those of cards that are in use already (G1).

The first vGPU of a card may fix the type of all of it. So long as one card does, the others stay free for other types.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from launcherkit_plugin.model.device import Device


def pack(devices: Mapping[str, Device], available: Sequence[str], must_include: Sequence[str], size: int) -> list[str]:
    """The ``size`` devices to take, ``must_include`` first, from as few cards as can be.

    First come cards of which something is taken, then those with vGPUs that are made, then those with the least left,
    then the lowest. Of a card first what is made, then in the order of its slots.

    Args:
        devices: of the resource, in the order of their slots; all are vGPUs.
        available: the kubelet's free and healthy devices.
        must_include: those of them that it has decided upon.
        size: how many.
    """
    chosen = list(dict.fromkeys(must_include))[:size]
    order = {name: number for number, name in enumerate(devices)}
    have = frozenset(chosen)
    free = [name for name in dict.fromkeys(available) if name in devices and name not in have]
    taken = set(devices).difference(available).union(chosen)
    left: dict[str, list[str]] = {}
    for name in free:
        left.setdefault(devices[name].card, []).append(name)
    used = {devices[name].card for name in taken if name in devices and (devices[name].healthy or devices[name].made)}
    begun = {devices[name].card for name in free if devices[name].made}
    wanted = {devices[name].card for name in chosen if name in devices}
    cards = sorted(
        left, key=lambda card: (card not in wanted, card not in used, card not in begun, len(left[card]), card)
    )
    found = [
        name for card in cards for name in sorted(left[card], key=lambda name: (not devices[name].made, order[name]))
    ]
    unknown = [name for name in dict.fromkeys(available) if name not in devices and name not in have]
    return [*chosen, *found, *unknown][:size]
