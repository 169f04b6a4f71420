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

_MOST_STEPS = 200_000
_CEL = re.compile(
    r'device\.driver == "(?P<driver>[^"]+)" && device\.attributes\["(?P=driver)"\]\.type in \[(?P<types>[^]]+)\] && '
    r'device\.attributes\["(?P=driver)"\]\.class\.matches\("\^\((?P<classes>[0-9a-f|]+)\)"\)'
)
_CLAIMS = ("ResourceClaim", "ResourceClaimTemplate")


class CardSelector(NamedTuple):
    """What a DeviceClass selects."""

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
    return CardSelector(frozenset(types), tuple(match["classes"].split("|")))


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
    """Tries every device for every request, in their order, and goes back from where it leads nowhere."""

    def __init__(self, claim: WantedDevices, free: Sequence[DraDevice], room: Counter[tuple[str, str]]) -> None:
        self._claim, self._free, self._room = claim, free, room
        self._names = tuple(claim.requests)
        self._chosen: dict[str, int] = {}
        self._steps = 0

    def devices(self) -> dict[str, int] | None:
        """The place of the device for each request."""
        if len(self._chosen) == len(self._names):
            return dict(self._chosen)
        name = self._names[len(self._chosen)]
        first = 1 + max((at for other, at in self._chosen.items() if self._are_alike(name, other)), default=-1)
        for at in range(first, len(self._free)):
            self._count()
            device = self._free[at]
            if at in self._chosen.values() or not self._claim.requests[name].selects(device):
                continue
            needs = _needs(device)
            self._chosen[name] = at
            self._room.subtract(needs)
            rest = None
            if all(self._room[counter] >= 0 for counter in needs) and self._have_in_common(name):
                rest = self.devices()
            self._room.update(needs)
            del self._chosen[name]
            if rest is not None:
                return rest
        return None

    def _count(self) -> None:
        self._steps += 1
        if self._steps > _MOST_STEPS:
            raise CLAIM_NOT_REHEARSED(
                f"{self._claim.name}: {_MOST_STEPS} choices of a device have led to no answer",
                "Ask for fewer devices, or let the scheduler try it.",
                key=self._claim.name,
            )

    def _are_alike(self, one: str, other: str) -> bool:
        """Whether two requests could swap their devices: then one order of these is enough."""
        requests, constraints = self._claim.requests, self._claim.constraints
        return requests[one] == requests[other] and all((one in names) == (other in names) for names, _ in constraints)

    def _have_in_common(self, name: str) -> bool:
        for names, common in self._claim.constraints:
            if name in names:
                values = [self._free[at].attributes.get(common) for other, at in self._chosen.items() if other in names]
                if None in values or any(value != values[0] for value in values):
                    return False
        return True
