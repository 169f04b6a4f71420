"""Devices that were allocated but aren't in PodResources yet, which takes seconds; and the devices of ResourceClaims,
of which the kubelet's device manager knows nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import NamedTuple

from launcherkit_plugin.model.device import Holder, Usage

PATIENCE_SECONDS = 60.0
"""How long an allocated device counts as held while no pod has appeared with it. If the kubelet rejects the pod in the
end, it never appears."""

FRESH_SECONDS = 5.0
"""The kubelet asks for the resources of one container one after the other. What was allocated this recently may be for
the container that it asks for now."""


class _Reserved(NamedTuple):
    """The allocation of one device."""

    at: float
    """Seconds on a monotonic clock."""
    holder: Holder
    """A pod without a name yet. All devices of one call have the same holder."""


class Reservations:
    """Reservations, by resource and device ID."""

    def __init__(self) -> None:
        self._calls = 0
        self._reserved: dict[tuple[str, str], _Reserved] = {}
        """Kept until a pod appears with the device, and as long as the allocation is fresh."""
        self._waiting: set[tuple[str, str]] = set()
        """Those with which no pod has appeared yet."""
        self._asked: dict[Holder, Mapping[str, Iterable[str]]] = {}
        """What unanswered calls ask for, by resource."""
        self._claimed: dict[str, Mapping[str, Mapping[str, Holder]]] = {}
        self._claims_unknown: set[str] = set()

    def claimed(self, by: str, held: Mapping[str, Mapping[str, Holder]], *, complete: bool = True) -> bool:
        """Set which devices prepared ResourceClaims have; returns whether a device may have become free.

        Args:
            by: the driver that prepared them.
            held: the holders, by resource and device ID.
            complete: False if there are more claims, whose devices can't be determined.
        """
        before, self._claimed[by] = self._claimed.get(by, {}), held
        freed = (complete and by in self._claims_unknown) or any(
            devices.keys() - held.get(resource, {}).keys() for resource, devices in before.items()
        )
        if complete:
            self._claims_unknown.discard(by)
        else:
            self._claims_unknown.add(by)
        return freed

    @contextmanager
    def holding(self, devices: Mapping[str, Iterable[str]], holder: Holder | None = None) -> Iterator[Holder]:
        """Hold devices while a call is being answered: nobody else gets them, and nothing takes them away.

        Args:
            devices: device IDs by resource.
            holder: who will have them; None: a pod that has no name yet.
        """
        holder = holder or self._caller()
        self._asked[holder] = devices
        try:
            yield holder
        finally:
            del self._asked[holder]

    def _caller(self) -> Holder:
        """A pod without a name yet, distinct from those of all other calls."""
        self._calls += 1
        return Holder("", f"of call {self._calls}")

    def reserve(self, resource: str, ids: Iterable[str], now: float, holder: Holder | None = None) -> None:
        """Note that devices were allocated in one call at ``now``, in seconds of a monotonic clock.

        The kubelet allocates only free devices. So if an earlier call got one of them, the container of that call has
        ended, and all of its devices are free.
        """
        keys = [(resource, device) for device in ids]
        ended = {self._reserved[key].holder for key in keys if key in self._reserved}
        for key in [key for key, reserved in self._reserved.items() if reserved.holder in ended]:
            del self._reserved[key]
            self._waiting.discard(key)
        self._reserved |= dict.fromkeys(keys, _Reserved(now, holder or self._caller()))
        self._waiting.update(keys)

    def merged(self, usage: Usage, now: float, read_at: float) -> Usage:
        """Usage, with what was allocated and isn't in it yet, and with the devices of claims.

        Reservations are not forgotten while usage is unknown, since the pod may exist, nor if they are newer than
        ``read_at``, when reading usage began, since a holder in usage is then an earlier one. If the devices of claims
        aren't known, neither is usage.
        """
        if self._claims_unknown:
            usage = usage._replace(source="none")
        if not self._reserved and not self._asked and not any(self._claimed.values()):
            return usage
        if usage.known:
            self._forget(usage, now, read_at)
        held = {resource: dict(devices) for resource, devices in usage.held.items()}
        for of_driver in self._claimed.values():
            for resource, claimed in of_driver.items():
                held.setdefault(resource, {}).update(claimed)
        for resource, device in self._waiting:
            held.setdefault(resource, {})[device] = self._reserved[resource, device].holder
        for holder, asked in self._asked.items():
            for resource, ids in asked.items():
                held.setdefault(resource, {}).update(dict.fromkeys(ids, holder))
        return usage._replace(held=held)

    def _forget(self, usage: Usage, now: float, read_at: float) -> None:
        for key, reserved in list(self._reserved.items()):
            if reserved.at >= read_at:
                continue
            if usage.holder(*key) is not None or now - reserved.at > PATIENCE_SECONDS:
                self._waiting.discard(key)
            if key not in self._waiting and self.fresh_since(*key, now) is None:
                del self._reserved[key]

    def fresh_since(self, resource: str, device: str, now: float) -> float | None:
        """When a device was allocated, if that was less than `FRESH_SECONDS` ago."""
        reserved = self._reserved.get((resource, device))
        return reserved.at if reserved is not None and now - reserved.at <= FRESH_SECONDS else None
