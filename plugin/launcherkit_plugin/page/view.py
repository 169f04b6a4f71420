"""What the page of a node says beside what is on the host: the values that go to the process that draws it."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from launcherkit.model.value import NamedTuple
from launcherkit_plugin.model.device import Holder, Resource, Usage, UsageSource
from launcherkit_plugin.telemetry.reporter import EventType, Recorder


class NodeChange(NamedTuple):
    """Something that has happened on the node."""

    when: float
    """Seconds since the epoch."""
    type: EventType
    reason: str
    """As Kubernetes writes them, in CamelCase."""
    text: str


class UnhealthyDevice(NamedTuple):
    """A device that can't be had."""

    resource: str
    device: str
    reason: str
    """A `launcherkit_plugin.model.device.Reason`."""
    text: str
    since: float
    """Seconds since the epoch; of a daemon that has started later, its start."""


class PageHolder(NamedTuple):
    """Who has a device."""

    resource: str
    device: str
    pod: str
    """As `Holder` has it."""
    container: str
    claim: str
    """``namespace/name``; empty for a pod."""


class NodeView(NamedTuple):
    """All of it."""

    node: str
    """The node's name."""
    version: str
    """Differs from that of every other state of every other daemon."""
    made: float
    """When, in seconds since the epoch."""
    host: str
    """The root of what is to be drawn as a tree; empty where it can't be read."""
    counts: Mapping[str, int]
    """Resources by name, and how many devices each has."""
    unhealthy: tuple[UnhealthyDevice, ...]
    source: UsageSource
    """Who says who has what."""
    held: tuple[PageHolder, ...]
    changes: tuple[NodeChange, ...]
    """The newest first."""


def holders_of(usage: Usage) -> tuple[PageHolder, ...]:
    """Who has what, by resource and device."""
    return tuple(
        _holder(name, device, usage.held[name][device])
        for name in sorted(usage.held)
        for device in sorted(usage.held[name])
    )


def _holder(resource: str, device: str, holder: Holder) -> PageHolder:
    return PageHolder(resource, device, holder.pod, holder.container, str(holder.claim) if holder.claim else "")


def unhealthy_of(resources: Sequence[Resource], since: Mapping[tuple[str, str], float]) -> tuple[UnhealthyDevice, ...]:
    """What can't be had, by resource and device.

    Args:
        resources: what is advertised.
        since: when each of them became so, by resource and ID.
    """
    return tuple(
        UnhealthyDevice(resource.name, key, device.problem.reason, device.problem.text, since[resource.name, key])
        for resource in sorted(resources, key=lambda each: each.name)
        for key, device in sorted(resource.devices.items())
        if device.problem is not None
    )


def dump_view(view: NodeView) -> bytes:
    """The JSON of a view: named tuples are lists."""
    return json.dumps(view).encode()


def load_view(text: bytes) -> NodeView:
    """The view whose JSON this is.

    Raises:
        LookupError, TypeError, ValueError: it is none.
    """
    found: list[Any] = json.loads(text)
    node, version, made, host, counts, unhealthy, source, held, changes = found
    return NodeView(
        node,
        version,
        made,
        host,
        counts,
        tuple(UnhealthyDevice(*each) for each in unhealthy),
        source,
        tuple(PageHolder(*each) for each in held),
        tuple(NodeChange(*each) for each in changes),
    )


_MOST = 30
_CHARACTERS = 1024


class RecentChanges:
    """Remembers the last few changes, and passes all of them on.

    Args:
        further: who else is told.
        clock: seconds since the epoch.
    """

    def __init__(self, further: Recorder, clock: Callable[[], float]) -> None:
        self._further = further
        self._clock = clock
        self._kept: deque[NodeChange] = deque(maxlen=_MOST)
        self.told: Callable[[], object] = lambda: None
        """Called after each; from any thread."""

    def event(self, type: EventType, reason: str, message: str) -> None:  # noqa: A002  # Kubernetes' name
        """See `Recorder.event`."""
        self._further.event(type, reason, message)
        self._kept.appendleft(NodeChange(self._clock(), type, reason, message[:_CHARACTERS]))
        self.told()

    def newest_first(self) -> tuple[NodeChange, ...]:
        """Those that are remembered."""
        return tuple(self._kept)
