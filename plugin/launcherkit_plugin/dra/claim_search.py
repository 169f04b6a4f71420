"""Whether the devices of one node can satisfy a claim that `launcherkit-plugin claim` has printed: all are tried.

No scheduler is imitated: which of several devices it takes is its own affair. CEL is understood in the form that is
printed, and in no other.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from launcherkit.errors import CLAIM_NOT_REHEARSED, LauncherkitError
from launcherkit_plugin.dra.inventory import DraDevice
from launcherkit_plugin.dra.labels import attribute
from launcherkit_plugin.model.device import without_replica

_MOST_STEPS = 20_000
_CEL = re.compile(
    r'device\.driver == "(?P<driver>[^"]+)" && device\.attributes\["(?P=driver)"\]\.type in \[(?P<types>[^]]+)\] && '
    r'device\.attributes\["(?P=driver)"\]\.class\.matches\("\^\((?P<classes>[0-9a-f|]+)\)"\)'
)
_CLAIMS = ("ResourceClaim", "ResourceClaimTemplate")


class CardSelector(NamedTuple):
    """What a DeviceClass selects."""

    driver: str
    types: frozenset[str]
    """Values of the attribute ``type``."""
    classes: tuple[str, ...]
    """The first digits of PCI class codes."""

    def selects(self, device: DraDevice) -> bool:
        """Whether the scheduler could allocate a device: it is of these, and has no taint."""
        kind, code = (device.attributes.get(name, {}) for name in ("type", "class"))
        is_one = any(kind == attribute(name) for name in self.types)
        return is_one and str(code.get("string", "")).startswith(self.classes) and not device.taints


class WantedDevices(NamedTuple):
    """A claim."""

    name: str
    requests: Mapping[str, CardSelector]
    """By the name of the request, which is for one device."""
    constraints: Sequence[tuple[frozenset[str], str]]
    """Requests whose devices must have the same value of an attribute."""


def read_claim(documents: Sequence[Any], file: str) -> WantedDevices:
    """Read what `launcherkit-plugin claim` prints.

    Args:
        documents: the parsed manifests, or a List of them.
        file: for messages.

    Raises:
        CLAIM_NOT_REHEARSED: they aren't of that form; names the place.
    """
    if len(documents) == 1 and isinstance(documents[0], dict) and isinstance(documents[0].get("items"), list):
        documents = documents[0]["items"]
    try:
        classes = {
            document["metadata"]["name"]: _selector(document["spec"], file)
            for document in documents
            if document["kind"] == "DeviceClass"
        }
        (manifest,) = (document for document in documents if document["kind"] in _CLAIMS)
        spec = manifest["spec"] if manifest["kind"] == _CLAIMS[0] else manifest["spec"]["spec"]
        devices = spec["devices"]
        requests = {
            request["name"]: classes[_only(request, "exactly", "name", file)] for request in devices["requests"]
        }
        constraints = [
            (frozenset(constraint["requests"]), constraint["matchAttribute"])
            for constraint in devices.get("constraints", [])
        ]
        if set(devices) - {"requests", "constraints"} or not all(
            set(names) <= set(requests) for names, _ in constraints
        ):
            raise _unknown(file, "spec.devices")
        return WantedDevices(manifest["metadata"]["name"], requests, constraints)
    except (KeyError, TypeError, ValueError, AttributeError) as problem:
        raise _unknown(file, str(problem)) from problem


def _only(request: Mapping[str, Any], key: str, name: str, file: str) -> str:
    """The DeviceClass of a request that says nothing else."""
    if set(request) != {key, name} or set(request[key]) != {"deviceClassName"}:
        raise _unknown(file, f"request {request[name]}")
    return str(request[key]["deviceClassName"])


def _selector(spec: Mapping[str, Any], file: str) -> CardSelector:
    (selector,) = spec["selectors"]
    match = _CEL.fullmatch(selector["cel"]["expression"])
    if match is None or set(spec) != {"selectors"}:
        raise _unknown(file, f"the CEL {selector['cel']['expression']}")
    types = [text.strip().strip('"') for text in match["types"].split(",")]
    return CardSelector(match["driver"], frozenset(types), tuple(match["classes"].split("|")))


def _unknown(file: str, place: str) -> LauncherkitError:
    return CLAIM_NOT_REHEARSED(
        f"{file}: only what `launcherkit-plugin claim` prints is understood here: {place}",
        "Print the claim with its DeviceClasses by `launcherkit-plugin claim`, or let the scheduler try it.",
        key=file,
    )


def answers(claim: WantedDevices, devices: Sequence[DraDevice], held: Collection[str] = ()) -> dict[str, str] | None:
    """The name of a device for each request; None if there is no way to satisfy all of them.

    Args:
        claim: the claim.
        devices: the node's.
        held: the IDs of those that somebody has, or has a share of.

    Raises:
        CLAIM_NOT_REHEARSED: there are too many ways to try.
    """
    held = frozenset(map(without_replica, held))
    room = Counter({(use.set, use.counter): use.total for device in devices for use in device.counters})
    for device in devices:
        if device.id in held:
            room.subtract(_needs(device))
    free = [device for device in devices if device.id not in held]
    places = _Search(claim, free, room).devices()
    return None if places is None else {name: free[at].name for name, at in places.items()}


def _needs(device: DraDevice) -> Counter[tuple[str, str]]:
    """By counter set and counter."""
    return Counter({(use.set, use.counter): use.amount for use in device.counters})


class _Search:
    """Tries devices for one request after the other, and goes back from where it leads nowhere.

    The next request is the one for which the fewest devices are left.
    """

    def __init__(self, claim: WantedDevices, free: Sequence[DraDevice], room: Counter[tuple[str, str]]) -> None:
        self._claim, self._free, self._room = claim, free, room
        self._selected = {
            selector: [at for at, device in enumerate(free) if selector.selects(device)]
            for selector in {*claim.requests.values()}
        }
        self._needs = [_needs(device) for device in free]
        self._chosen: dict[str, int] = {}
        self._steps = 0

    def devices(self) -> dict[str, int] | None:
        """The place of the device for each request."""
        left = {name: self._places(name) for name in self._claim.requests if name not in self._chosen}
        if not left:
            return dict(self._chosen)
        name = min(left, key=lambda name: len(left[name]))
        first = 1 + max((at for other, at in self._chosen.items() if self._could_swap(name, other)), default=-1)
        for at in left[name]:
            if at < first:
                continue
            self._count()
            needs = self._needs[at]
            self._chosen[name] = at
            self._room.subtract(needs)
            rest = self.devices()
            self._room.update(needs)
            del self._chosen[name]
            if rest is not None:
                return rest
        return None

    def _places(self, name: str) -> tuple[int, ...]:
        """Of the devices that a request could have, beside those that are chosen."""
        taken = {*self._chosen.values()}
        common = [
            (attribute, [self._value(at, attribute) for other, at in self._chosen.items() if other in names])
            for names, attribute in self._claim.constraints
            if name in names
        ]
        return tuple(
            at
            for at in self._selected[self._claim.requests[name]]
            if at not in taken
            and all(self._room[counter] >= need for counter, need in self._needs[at].items())
            and all(self._matches(self._value(at, attribute), values) for attribute, values in common)
        )

    def _value(self, at: int, attribute: str) -> Mapping[str, Any] | None:
        return self._free[at].attributes.get(attribute)

    @staticmethod
    def _matches(value: Mapping[str, Any] | None, values: Sequence[Mapping[str, Any] | None]) -> bool:
        """Whether a device has the value that others have; one without the attribute never matches."""
        return value is not None and all(value == other for other in values)

    def _count(self) -> None:
        self._steps += 1
        if self._steps > _MOST_STEPS:
            raise CLAIM_NOT_REHEARSED(
                f"{self._claim.name}: {_MOST_STEPS} choices of a device have led to no answer",
                "Ask for fewer devices, or let the scheduler try it.",
                key=self._claim.name,
            )

    def _could_swap(self, name: str, other: str) -> bool:
        """Whether two requests, with those that each must match, could swap their devices: one order is enough.

        That is so where ``other`` was the first of those around it to get a device, and of those around ``name`` none
        has one yet: what ``name`` would get was tried for ``other`` then.
        """
        ours, theirs = self._around(name, other), self._around(other, name)
        swapped = dict(zip((*ours, *theirs), (*theirs, *ours), strict=False))
        requests, constraints = self._claim.requests, self._claim.constraints
        return (
            len(ours) == len(theirs)
            and len(swapped) == 2 * len(ours)
            and self._chosen.keys().isdisjoint(ours)
            and next(each for each in self._chosen if each in theirs) == other
            and all(requests[one] == requests[its] for one, its in swapped.items())
            and Counter((frozenset(swapped.get(each, each) for each in names), common) for names, common in constraints)
            == Counter(constraints)
        )

    def _around(self, name: str, other: str) -> list[str]:
        """A request and those that must match it, though not ``other``."""
        matched = {name}.union(*(names for names, _ in self._claim.constraints if name in names and other not in names))
        return [each for each in self._claim.requests if each in matched]
