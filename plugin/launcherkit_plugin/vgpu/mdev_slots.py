"""Which mdevs are ours: UUIDs follow from where mdevs belong, so there is nothing to remember and to lose (G2).

A UUID is the same on every node: what a slot is called depends on the card's place and the type alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Literal, NamedTuple, TypeAlias
from uuid import NAMESPACE_DNS, uuid5

Purpose: TypeAlias = Literal["pods", "layout"]
"""What one was made for: a pod that had been given its slot, and then it goes when the pod has gone (G3); or a layout
(G5), and then it stays until the layout changes."""

PURPOSES: tuple[Purpose, ...] = ("pods", "layout")

MOST = 512
"""No more slots are looked at, or advertised, for a type on a parent."""

_NAMESPACE = uuid5(NAMESPACE_DNS, "vgpu.launcherkit.io")


class Slot(NamedTuple):
    """A place for one mdev of a type on a parent."""

    parent: str
    type_id: str
    number: int
    purpose: Purpose = "pods"

    @property
    def uuid(self) -> str:
        """Of the mdev that is made there."""
        return _uuid_of(self)


@lru_cache(maxsize=8192)
def _uuid_of(slot: Slot) -> str:
    return _derived(slot)


def _derived(slot: Slot) -> str:
    return str(uuid5(_NAMESPACE, f"{slot.purpose}/{slot.parent}/{slot.type_id}/{slot.number}"))


@lru_cache(maxsize=1024)
def slot_of(uuid: str, parent: str, type_id: str) -> Slot | None:
    """The slot of a type on a parent that an mdev is of; None for one that isn't ours."""
    if uuid[14:15] != "5":  # the version; what others make is mostly random, version 4
        return None
    slots = (Slot(parent, type_id, number, purpose) for number in range(MOST) for purpose in PURPOSES)
    return next((slot for slot in slots if _derived(slot) == uuid), None)


def find_slot(uuid: str, places: Iterable[tuple[str, str]]) -> Slot | None:
    """The slot that a UUID names, among those of several (parent, type ID)."""
    return next((slot for place in places if (slot := slot_of(uuid, *place)) is not None), None)
