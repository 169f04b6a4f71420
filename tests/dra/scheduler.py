"""The scheduler's allocation of devices: counters, taints and what other claims have. CEL is a function here."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from tests.dra.api import Api, Refused, key_of, results_of

Device = Mapping[str, Any]


class Unschedulable(Exception):
    """No node has what the claim asks for; the pod stays pending."""


class DeviceClass(NamedTuple):
    """A class: which devices, and its configuration."""

    driver: str
    select: Callable[[Device], bool] = lambda _: True
    config: Sequence[Mapping[str, Any]] = ()
    """``{"opaque": {"driver": ..., "parameters": {...}}}``."""


class _Found(NamedTuple):
    driver: str
    pool: str
    device: Device

    @property
    def key(self) -> tuple[str, str, str]:
        return self.driver, self.pool, self.device["name"]


def requested(name: str, device_class: str, count: int = 1, **more: Any) -> dict[str, Any]:
    """A request of a claim."""
    exactly = {"deviceClassName": device_class, "allocationMode": "ExactCount", "count": count, **more}
    return {"name": name, "exactly": exactly}


class Scheduler:
    """Allocates for pods, and takes back when none is left that a claim is reserved for.

    Args:
        chance: puts the devices in another order each time; without it the order is that of the slices.
    """

    def __init__(self, api: Api, classes: Mapping[str, DeviceClass], chance: random.Random | None = None) -> None:
        self.api = api
        self._classes = classes
        self._chance = chance
        self._every: list[_Found] = []

    def reserve(self, name: str, pod: str) -> dict[str, Any]:
        """Allocate to a claim what it asks for, unless it has it, and reserve it for a pod, given by its name.

        Raises:
            Unschedulable: it can't be had now.
        """
        claim = self.api.claim("default", name)
        status = claim["status"]
        if not status.get("allocation"):
            status["allocation"] = self._allocate(claim)
        reserved = status.setdefault("reservedFor", [])
        if all(one["name"] != pod for one in reserved):
            reserved.append({"resource": "pods", "name": pod, "uid": f"uid-{pod}"})
        self.api.set_status(name, status)
        return self.api.claim("default", name)

    def release(self, name: str, pod: str) -> None:
        """A pod has gone: with the last one the allocation does."""
        try:
            status = self.api.claim("default", name)["status"]
        except Refused:
            return
        status["reservedFor"] = [one for one in status.get("reservedFor", []) if one["name"] != pod]
        self.api.set_status(name, status if status["reservedFor"] else {})

    def _allocate(self, claim: Mapping[str, Any]) -> dict[str, Any]:
        pools = list(self._pools())
        devices = [
            _Found(spec["driver"], spec["pool"]["name"], one)
            for pool in pools
            for spec in pool
            for one in spec.get("devices", ())
        ]
        if self._chance is not None:
            self._chance.shuffle(devices)
        left: Counter[tuple[str, str, str]] = Counter()
        for pool in pools:
            for spec in pool:
                for one in spec.get("sharedCounters", ()):
                    for name, value in one["counters"].items():
                        left[spec["pool"]["name"], one["name"], name] = int(value["value"])
        taken = {
            key_of(result)
            for other in self.api.claims()
            for result in results_of(other)
            if not result.get("adminAccess")
        }
        for found in devices:
            if found.key in taken:
                left.subtract(_needs(found))
        rest = [found for found in devices if found.key not in taken]
        self._every = devices
        for alternative in _alternatives(claim["spec"]["devices"]["requests"]):
            chosen = self._choose(alternative, rest, left, claim["spec"]["devices"].get("constraints", ()))
            if chosen is not None:
                return self._allocation(claim, alternative, chosen)
        raise Unschedulable(f"cannot allocate all claims: {claim['metadata']['name']}")

    def _pools(self) -> Iterator[list[dict[str, Any]]]:
        """The slices of each pool that is complete, of its newest generation."""
        by_pool: dict[tuple[str, str], list[dict[str, Any]]] = {}
        for spec in self.api.slices():
            by_pool.setdefault((spec["driver"], spec["pool"]["name"]), []).append(spec)
        for specs in by_pool.values():
            newest = max(spec["pool"]["generation"] for spec in specs)
            found = [spec for spec in specs if spec["pool"]["generation"] == newest]
            if len(found) == found[0]["pool"]["resourceSliceCount"]:
                yield found

    def _choose(
        self,
        slots: Sequence[_Slot],
        devices: Sequence[_Found],
        left: Counter[tuple[str, str, str]],
        constraints: Sequence[Mapping[str, Any]],
        before: Mapping[int, Any] = {},
        looked_at: frozenset[tuple[str, str, str]] = frozenset(),
    ) -> list[_Found] | None:
        """``before``: the value that the devices chosen so far have in common, by the number of the constraint."""
        if not slots:
            return []
        slot, *others = slots
        if slot.admin:  # who looks at a device takes nothing of it
            for found in self._every:
                if self._suits(slot, found) and found.key not in looked_at:
                    chosen = self._choose(others, devices, left, constraints, before, looked_at | {found.key})
                    if chosen is not None:
                        return [found, *chosen]
            return None
        for found in devices:
            if not self._suits(slot, found) or any(left[key] < amount for key, amount in _needs(found).items()):
                continue
            values = _in_common(slot, found, constraints, before)
            if values is None:
                continue
            rest = [other for other in devices if other is not found]
            chosen = self._choose(others, rest, left - _needs(found), constraints, values, looked_at)
            if chosen is not None:
                return [found, *chosen]
        return None

    def _suits(self, slot: _Slot, found: _Found) -> bool:
        device_class = self._classes[slot.device_class]
        tolerated = {one.get("key") for one in slot.tolerations}
        taints = [
            one for one in found.device.get("taints", ()) if one["effect"] != "None" and one["key"] not in tolerated
        ]
        return found.driver == device_class.driver and not taints and device_class.select(found.device)

    def _allocation(self, claim: Mapping[str, Any], slots: Sequence[_Slot], chosen: Sequence[_Found]) -> dict[str, Any]:
        results = [
            {"request": slot.request, "driver": found.driver, "pool": found.pool, "device": found.device["name"]}
            | ({"adminAccess": True} if slot.admin else {})
            for slot, found in zip(slots, chosen, strict=True)
        ]
        config = [
            {"source": "FromClass", "requests": [slot.request], **one}
            for slot in dict.fromkeys(slots)
            for one in self._classes[slot.device_class].config
        ]
        config += [{"source": "FromClaim", **one} for one in claim["spec"]["devices"].get("config", ())]
        return {"devices": {"results": results, "config": config}}


class _Slot(NamedTuple):
    """One device that is wanted."""

    request: str
    """``req``, or ``req/sub``."""
    device_class: str
    tolerations: tuple[Any, ...] = ()
    admin: bool = False

    def __hash__(self) -> int:
        return hash((self.request, self.device_class))


def _alternatives(requests: Sequence[Mapping[str, Any]]) -> Iterator[list[_Slot]]:
    """What would answer the requests, the preferred ones first."""
    if not requests:
        yield []
        return
    request, *others = requests
    wants = [(request["name"], request["exactly"])] if "exactly" in request else []
    wants += [(f"{request['name']}/{sub['name']}", sub) for sub in request.get("firstAvailable", ())]
    for name, exactly in wants:
        slot = _Slot(
            name, exactly["deviceClassName"], tuple(exactly.get("tolerations", ())), exactly.get("adminAccess", False)
        )
        for rest in _alternatives(others):
            yield [slot] * exactly.get("count", 1) + rest


def _in_common(
    slot: _Slot, found: _Found, constraints: Sequence[Mapping[str, Any]], before: Mapping[int, Any]
) -> dict[int, Any] | None:
    """What the devices have in common with one more; None if it breaks a constraint, or lacks the attribute."""
    values = dict(before)
    for number, constraint in enumerate(constraints):
        of = constraint.get("requests", ())
        if of and slot.request not in of and slot.request.partition("/")[0] not in of:
            continue
        domain, _, name = constraint["matchAttribute"].partition("/")
        attributes = found.device.get("attributes", {})
        value = attributes.get(f"{domain}/{name}", attributes.get(name) if domain == found.driver else None)
        if value is None or values.setdefault(number, value) != value:
            return None
    return values


def _needs(found: _Found) -> Counter[tuple[str, str, str]]:
    return Counter(
        {
            (found.pool, one["counterSet"], name): int(value["value"])
            for one in found.device.get("consumesCounters", ())
            for name, value in one["counters"].items()
        }
    )
