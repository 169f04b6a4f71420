"""What was allocated and isn't seen with a pod yet, as seconds pass between Allocate and PodResources; and what claims
have, which the kubelet's device manager knows nothing of.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

from launcherkit.model.value import NamedTuple
from launcherkit_plugin.model.device import Holder, Usage

PATIENCE_SECONDS = 60.0
"""For how long a device that was given away counts as held while no pod is seen to have it. A pod that the kubelet
rejects in the end never appears."""

FRESH_SECONDS = 5.0
"""The kubelet asks for the resources of one container one after the other; what was given away this recently may have
been for the container that it asks for now."""


class _Given(NamedTuple):
    """One device, given away."""

    at: float
    holder: Holder
    """A pod without a name; what was given in one call has one holder."""


class Reservations:
    """Reservations, by resource and device ID."""

    def __init__(self) -> None:
        self._calls = 0
        self._given: dict[tuple[str, str], _Given] = {}
        """Kept while a pod is waited for, and while they are fresh."""
        self._waiting: set[tuple[str, str]] = set()
        """Those that no pod has been seen with."""
        self._asked: dict[Holder, Mapping[str, Iterable[str]]] = {}
        """What calls that aren't answered yet ask for, by resource."""
        self._claimed: dict[str, Mapping[str, Mapping[str, Holder]]] = {}
        self._claims_unknown: set[str] = set()

    def claimed(self, by: str, held: Mapping[str, Mapping[str, Holder]], *, known: bool = True) -> None:
        """What prepared ResourceClaims have from now on.

        Args:
            by: the driver that has prepared them.
            held: all that is known of, by resource and device ID.
            known: False where there is more, of which nobody can tell what it is.
        """
        self._claimed[by] = held
        (self._claims_unknown.discard if known else self._claims_unknown.add)(by)

    @contextmanager
    def asked(self, wanted: Mapping[str, Iterable[str]], holder: Holder | None = None) -> Iterator[Holder]:
        """While a call is being answered what it asks for is held: nobody else gets it, and nothing takes it away.

        Args:
            wanted: device IDs by resource.
            holder: who will have them; without one a pod that has no name yet.
        """
        holder = holder or self._caller()
        self._asked[holder] = wanted
        try:
            yield holder
        finally:
            del self._asked[holder]

    def _caller(self) -> Holder:
        """A pod that has no name yet, other than that of any other call."""
        self._calls += 1
        return Holder("", f"of call {self._calls}")

    def reserve(self, resource: str, ids: Iterable[str], now: float, holder: Holder | None = None) -> None:
        """Devices were given away in one call at ``now``, in seconds of a monotonic clock.

        The kubelet gives away what is free: where an earlier call had one of them, its container is gone, and all that
        it had is free.
        """
        keys = [(resource, device) for device in ids]
        ended = {self._given[key].holder for key in keys if key in self._given}
        for key in [key for key, given in self._given.items() if given.holder in ended]:
            del self._given[key]
            self._waiting.discard(key)
        self._given |= dict.fromkeys(keys, _Given(now, holder or self._caller()))
        self._waiting.update(keys)

    def merged(self, usage: Usage, now: float, read_at: float) -> Usage:
        """Usage with what was given away and hasn't been seen yet.

        Where usage isn't known nothing is forgotten: the pod may be there. Neither is what was given away after
        ``read_at``, when the reading of usage began: a holder that it names is an earlier one. Where it isn't known
        what claims have, usage isn't either.
        """
        if self._claims_unknown:
            usage = usage._replace(source="none")
        if not self._given and not self._asked and not any(self._claimed.values()):
            return usage
        if usage.known:
            self._forget(usage, now, read_at)
        held = {resource: dict(devices) for resource, devices in usage.held.items()}
        for of_driver in self._claimed.values():
            for resource, claimed in of_driver.items():
                held.setdefault(resource, {}).update(claimed)
        for resource, device in self._waiting:
            held.setdefault(resource, {})[device] = self._given[resource, device].holder
        for holder, wanted in self._asked.items():
            for resource, ids in wanted.items():
                held.setdefault(resource, {}).update(dict.fromkeys(ids, holder))
        return usage._replace(held=held)

    def _forget(self, usage: Usage, now: float, read_at: float) -> None:
        for key, given in list(self._given.items()):
            if given.at >= read_at:
                continue
            if usage.holder(*key) is not None or now - given.at > PATIENCE_SECONDS:
                self._waiting.discard(key)
            if key not in self._waiting and self.fresh_since(*key, now) is None:
                del self._given[key]

    def fresh_since(self, resource: str, device: str, now: float) -> float | None:
        """When a device was given away, if that was a moment ago."""
        given = self._given.get((resource, device))
        return given.at if given is not None and now - given.at <= FRESH_SECONDS else None
