"""Keeps a driver's ResourceSlices on this node as the daemon wants them (D12).

One thread watches them and another writes. The existing slices are listed again for each round of writing, so a late
watch event causes one more listing and never a second write. Slices also vanish by themselves: a starting kubelet
deletes those of its node, and those of a driver whose connection it has lost for 30 s. While no daemon is connected
nothing is written: it is unknown which devices exist.

Readers of a pool use its highest generation, and only once they have all of its slices. So any change increments the
generation of every slice; a slice that is merely missing is created again as it was (D12). Additions and conversions by
the server are no change: the time when a taint was added, or a quantity 1024Mi that it writes as 1Gi. Nor is a field
that it drops because the feature gate is off.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, NoReturn

from launcherkit.errors import counted, shown
from launcherkit.model.quantity import amount_of
from launcherkit.request.fields import string, text
from launcherkit_plugin.cluster.api import Api, ApiProblem, Json, follow, items_of, only, part, read, whole
from launcherkit_plugin.cluster.outbox import Specs
from launcherkit_plugin.cluster.shared_devices import SHARED, sample_of, without_shared
from launcherkit_plugin.model.backoff import Backoff
from launcherkit_plugin.telemetry.reporter import Reporter

_AMOUNTS = {"capacity", "counters"}
"""Fields that map names to quantities: ``{"value": "80Gi"}``."""
_GATED = {
    *("sharedCounters", "consumesCounters", "taints"),
    *("bindsToNode", "bindingConditions", "bindingFailureConditions"),
    SHARED,
}
"""Fields that a server may drop; before Kubernetes 1.36 it does unless their feature gates are on."""


class SlicePool(NamedTuple):
    """The pool of a driver on a node; its name is the node's."""

    driver: str
    node: str


class SliceChange(NamedTuple):
    kind: Literal["create", "replace", "delete"]
    body: Json


class SliceChanges(NamedTuple):
    """The changes to make, in this order."""

    changes: tuple[SliceChange, ...]
    generation: int
    foreign: bool
    """Whether existing slices differ from what they should be; False if some are merely missing."""


def slice_changes(
    pool: SlicePool, specs: Sequence[Mapping[str, Any]], existing: Iterable[Json], without: Collection[str] = ()
) -> SliceChanges:
    """Compare the slices that there should be with the existing ones.

    Args:
        pool: of the slices.
        specs: the ``spec`` of each slice that there should be, without ``driver``, ``nodeName`` and ``pool``.
        existing: the ResourceSlices of the driver on the node.
        without: fields that the server drops; see `dropped`.

    Raises:
        ApiProblem: the server sent something other than ResourceSlices.
    """
    items = sorted(existing, key=_name)
    kept = _kept(items, len(specs))
    leftover = [item for item in items if all(item is not each for each in kept.values())]
    generation = max(map(_generation, items), default=1)
    desired = [_complete(pool, spec, generation, len(specs)) for spec in specs]
    differ = _differ(kept, desired, without)
    if differ:
        generation += 1
        desired = [_complete(pool, spec, generation, len(specs)) for spec in specs]
    begun = _taints(items)
    changes = [
        SliceChange("create", _made(pool, index, spec))
        if index not in kept
        else SliceChange("replace", {**kept[index], "spec": _since(spec, begun)})
        for index, spec in enumerate(desired)
        if index not in kept or differ
    ]
    changes += [SliceChange("delete", item) for item in leftover]
    return SliceChanges(tuple(changes), generation, differ or bool(leftover))


def _kept(items: Iterable[Json], count: int) -> dict[int, Json]:
    """The first slice with each index of a pool of so many slices."""
    kept: dict[int, Json] = {}
    for item in items:
        index = _index(item)
        if 0 <= index < count:
            kept.setdefault(index, item)
    return kept


def _differ(kept: Mapping[int, Json], desired: Sequence[Json], without: Collection[str]) -> bool:
    skipped = {"timeAdded", *without}
    return any(_plain(part(item, "spec"), skipped) != _plain(desired[index], skipped) for index, item in kept.items())


def _complete(pool: SlicePool, spec: Mapping[str, Any], generation: int, count: int) -> Json:
    of_pool = {"name": pool.node, "generation": generation, "resourceSliceCount": count}
    return {**spec, "driver": pool.driver, "nodeName": pool.node, "pool": of_pool}


def _made(pool: SlicePool, index: int, spec: Json) -> Json:
    """A new slice. Its name begins with its index in the pool."""
    metadata = {"generateName": f"{index:x}-{pool.driver}-{pool.node}-"}
    return {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": metadata, "spec": spec}


def _name(item: Json) -> str:
    return read(item, "metadata").optional("name", string, "text") or ""


def _index(item: Json) -> int:
    """The index of a slice in its pool, -1 if it has none. Its name begins with it: the server may truncate the end."""
    head = re.match(r"([0-9a-f]{1,8})-", _name(item))
    return int(head[1], 16) if head else -1


def _generation(item: Json) -> int:
    generation = read(item, "spec", "pool").pop("generation")
    return generation if isinstance(generation, int) else 1


def dropped(written: Json, stored: Json) -> set[str]:
    """The fields of a slice that the server didn't keep.

    Args:
        written: the slice.
        stored: the server's answer.
    """
    return _GATED & _fields(written) - _fields(stored)


def _fields(item: Json) -> set[str]:
    spec = part(item, "spec")
    return {key for each in (spec, *(spec.get("devices") or ())) for key, value in each.items() if value}


def _plain(value: Any, skipped: Collection[str], field: str = "") -> Any:
    """A value in a form that can be compared: without the server's additions, and with quantities as numbers."""
    if isinstance(value, Mapping):
        plain = {key: _plain(item, skipped, key) for key, item in value.items() if key not in skipped}
        if field in _AMOUNTS:
            plain = {name: _amount(amount) for name, amount in plain.items()}
        return {key: item for key, item in plain.items() if item is not None and item not in ({}, [])}
    return [_plain(item, skipped) for item in value] if isinstance(value, list | tuple) else value


def _amount(entry: Mapping[str, Any]) -> Mapping[str, Any]:
    """The entry with its quantity as a number; unchanged if it isn't a quantity."""
    number = amount_of(entry.get("value"))
    return entry if number is None else {**entry, "value": number}


def _taints(items: Iterable[Json]) -> dict[tuple[object, ...], str]:
    """When the existing taints were added."""
    return {
        _taint(device, taint): taint["timeAdded"]
        for item in items
        for device in part(item, "spec").get("devices") or ()
        for taint in device.get("taints") or ()
        if "timeAdded" in taint
    }


def _taint(device: Mapping[str, Any], taint: Mapping[str, Any]) -> tuple[object, ...]:
    return device["name"], taint["key"], taint.get("value"), taint["effect"]


def _since(spec: Json, begun: Mapping[tuple[object, ...], str]) -> Json:
    """The spec with the times when its continuing taints were added."""
    if not begun or not spec.get("devices"):
        return spec

    def dated(device: Mapping[str, Any]) -> Mapping[str, Any]:
        if not device.get("taints"):
            return device
        taints = [
            {**taint, "timeAdded": begun[_taint(device, taint)]} if _taint(device, taint) in begun else taint
            for taint in device["taints"]
        ]
        return {**device, "taints": taints}

    return {**spec, "devices": [dated(device) for device in spec["devices"]]}


SLICES_PATH = "/apis/resource.k8s.io/v1/resourceslices"
NODES_PATH = "/api/v1/nodes"
LONGEST_PAUSE = 30.0
"""While the server is away. A cluster without a node's slices places no pod there."""
_ROUND_SECONDS = 0.25
"""Slices that vanish are there again within a second, if the server answers: with the pause of a watch, if there is
one, this is the longest wait."""
_FIRST_PAUSE = 1.0
_MOVED_ON = {404, 409}
"""Another writer was faster: a slice has changed, or is gone, since it was listed."""


def wanted_slices(value: object) -> tuple[str, list[Json]]:
    """The driver and the specs in a message ``slices``.

    Raises:
        ValueError: the message is invalid.
    """
    match value:
        case {"driver": str(driver), "slices": list(specs)} if driver and all(isinstance(each, dict) for each in specs):
            return driver, specs
    raise ValueError(f"slices: {shown(value)} has no driver, or no list of objects")


def owner_of(server: Api, node: str) -> Json:
    """The owner reference of the Node, which owns its slices. Read each time: the Node may have been created again.

    Raises:
        ApiProblem: the server doesn't answer, or there is no such Node.
    """
    listed = items_of(server.list(NODES_PATH, only("metadata.uid"), fieldSelector=f"metadata.name={node}"))
    if not listed:
        raise ApiProblem(0, f"there is no Node {node}")
    uid = read(listed[0], "metadata").needed("uid", text, "text")
    return {"apiVersion": "v1", "kind": "Node", "name": node, "uid": uid, "controller": True}


class SlicePublisher:
    """Publishes the slices of one driver.

    Args:
        server: the API server.
        node: the node's name.
        driver: the driver's name.
        reporter: receives what was written, and failures.
    """

    def __init__(self, server: Api, node: str, driver: str, reporter: Reporter) -> None:
        self._server = server
        self._node = node
        self._driver = driver
        self._fields = f"spec.driver={driver},spec.nodeName={node}"
        self._reporter = reporter
        self._some = threading.Condition()
        self._wanted: Specs | None = None
        self._settled: Specs | None = None
        """What was wanted when everything was last up to date."""
        self._look = False
        self._sampled = False
        """Whether the server was asked if it keeps `SHARED`."""
        self._dropped: set[str] = set()
        """Fields that the server didn't keep when slices were last written."""
        self._pauses = Backoff(_FIRST_PAUSE, LONGEST_PAUSE)
        self._conflict_over = 0.0

    def want(self, specs: Specs | None) -> None:
        """Set the wanted slices; None if they aren't known any more."""
        with self._some:
            self._wanted = specs
            self._look = True
            self._some.notify_all()

    def watch(self) -> None:
        """List again whenever a slice changes.

        Raises:
            ApiProblem: they can't be watched.
        """
        with self._some:
            # It may be another server than before, or one with other feature gates.
            self._dropped, self._settled, self._sampled = set(), None, False
        for _ in follow(self._server, SLICES_PATH, self._fields, only(), time.sleep):
            self.look()

    def look(self) -> None:
        """List them again: one has changed."""
        with self._some:
            self._look = True
            self._some.notify_all()

    def write(self, sleep: Callable[[float], object] = time.sleep) -> NoReturn:
        """Write forever, at most four rounds per second."""
        while True:
            with self._some:
                self._some.wait_for(lambda: self._look and self._wanted is not None)
                specs = self._wanted
            pause = self.turn(time.monotonic())
            sleep(_ROUND_SECONDS)
            with self._some:
                self._some.wait_for(lambda now=specs: self._wanted is not now, pause - _ROUND_SECONDS)  # type: ignore[misc]

    def turn(self, now: float) -> float:
        """One round: write what has to be written.

        Args:
            now: seconds on a monotonic clock.

        Returns:
            Seconds until the next round; sooner if something else is wanted, except for the first quarter second.
        """
        with self._some:
            specs, self._look = self._wanted, False
        if specs is None:
            return _ROUND_SECONDS
        try:
            pause = self._round(specs, now)
        except ApiProblem as problem:
            with self._some:
                self._look = True
            if problem.status in _MOVED_ON:
                return _ROUND_SECONDS
            text = f"ResourceSlices can't be written: {problem}; trying again"
            self._reporter.once(self, "warning", text, status=problem.status)
            return self._pauses.failed("server", now)
        self._pauses.succeeded("server")
        self._reporter.solved(self)
        return pause

    def _round(self, specs: Specs, now: float) -> float:
        """List the existing slices, write what differs, and return the pause until the next round.

        Raises:
            ApiProblem: the server doesn't answer, or refuses something; what was written before stays.
        """
        self._sample(specs)
        published = without_shared(specs) if SHARED in self._dropped else specs
        listed = items_of(self._server.list(SLICES_PATH, whole, fieldSelector=self._fields))
        needed = slice_changes(SlicePool(self._driver, self._node), published, listed, self._dropped)
        owner = owner_of(self._server, self._node) if any(change.kind == "create" for change in needed.changes) else {}
        for change in needed.changes:
            self._write(change, owner)
        self._report_dropped(specs)
        if published is specs and SHARED in self._dropped:  # another server than the one that was asked
            return self._round(specs, now)
        foreign, self._settled = needed.foreign and self._settled is specs, specs
        if needed.changes:
            text = f"{self._driver}: {counted(len(published), 'ResourceSlice')}, generation {needed.generation}"
            suffix = "; another process had changed them" if foreign else ""
            self._reporter.log("info", text + suffix, written=len(needed.changes))
        return self._pause_after_conflict(now) if foreign else _ROUND_SECONDS

    def _sample(self, specs: Specs) -> None:
        """Ask the server, in a dry run, whether it keeps the field of devices that several claims can have: none may be
        published without it, not even for a moment (D14).

        Raises:
            ApiProblem: it doesn't answer.
        """
        spec = None if self._sampled else sample_of(specs)
        if spec is not None:
            pool = SlicePool(self._driver, self._node)
            body = _made(pool, 0, _complete(pool, spec, 1, 1))
            self._dropped |= dropped(body, self._server.post(SLICES_PATH, body, dry_run=True))
            self._sampled = True

    def _write(self, change: SliceChange, owner: Json) -> None:
        metadata = read(change.body, "metadata")
        if change.kind == "create":
            body = {**change.body, "metadata": {**metadata.rest(), "ownerReferences": [owner]}}
            self._dropped |= dropped(body, self._server.post(SLICES_PATH, body))
            return
        name, uid = (metadata.needed(key, text, "text") for key in ("name", "uid"))
        if change.kind == "replace":
            self._dropped |= dropped(change.body, self._server.put(f"{SLICES_PATH}/{name}", change.body))
        else:
            self._server.delete(f"{SLICES_PATH}/{name}", uid)

    def _report_dropped(self, specs: Specs) -> None:
        """Without them the scheduler allocates what the node then refuses."""
        if SHARED in self._dropped and sample_of(specs) is not None:
            text = (
                f"{self._driver}: cards with `sharing` are not published: the API server drops {SHARED} of "
                "ResourceSlices, so each would be one claim's; its feature gate DRAConsumableCapacity is off"
            )
            self._reporter.once((self, SHARED), "warning", text)
        else:
            self._reporter.solved((self, SHARED))
        if self._dropped - {SHARED}:
            fields = ", ".join(sorted(self._dropped - {SHARED}))
            text = f"the API server drops {fields} of ResourceSlices: the feature gates for them are off"
            self._reporter.once((self, "dropped"), "warning", text)

    def _pause_after_conflict(self, now: float) -> float:
        """The pause after another process's slices were replaced, such as those of a pod that is being replaced: two
        that want different things take turns, more and more slowly, until one of them ends.
        """
        if now > self._conflict_over:
            self._pauses.succeeded("conflict")
        self._conflict_over = now + 2 * LONGEST_PAUSE
        return self._pauses.failed("conflict", now)
