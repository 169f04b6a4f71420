"""The contents of the page except the host's tree: the values that are passed to the process that draws it."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from launcherkit_plugin.codec import decode, encode
from launcherkit_plugin.model.device import Holder, Resource, Usage, UsageSource
from launcherkit_plugin.telemetry.reporter import EventType, Recorder


class NodeChange(NamedTuple):
    """Something that has happened on the node."""

    when: float
    """Seconds since the epoch."""
    type: EventType
    reason: str
    """In CamelCase, as in Kubernetes."""
    text: str


class UnhealthyDevice(NamedTuple):
    """A device that isn't available."""

    resource: str
    device: str
    reason: str
    """A `launcherkit_plugin.model.device.Reason`."""
    text: str
    since: float
    """Seconds since the epoch; not before the daemon's start."""


class PageHolder(NamedTuple):
    """The holder of a device."""

    resource: str
    device: str
    pod: str
    """See `Holder.pod`."""
    container: str
    claim: str
    """``namespace/name``; empty for a pod."""


class NodeView(NamedTuple):
    """All contents."""

    node: str
    """The node's name."""
    version: str
    """Unique for each state of each daemon."""
    made: float
    """Seconds since the epoch."""
    host: str
    """The root of the host's file system, to draw the tree; empty: no tree is drawn."""
    counts: Mapping[str, int]
    """How many devices each resource has, by name."""
    unhealthy: tuple[UnhealthyDevice, ...]
    source: UsageSource
    """The source of ``held``."""
    held: tuple[PageHolder, ...]
    changes: tuple[NodeChange, ...]
    """The newest first."""


def holders_of(usage: Usage) -> tuple[PageHolder, ...]:
    """The holders of devices, sorted by resource and device."""
    return tuple(
        _holder(name, device, usage.held[name][device])
        for name in sorted(usage.held)
        for device in sorted(usage.held[name])
    )


def _holder(resource: str, device: str, holder: Holder) -> PageHolder:
    return PageHolder(resource, device, holder.pod, holder.container, str(holder.claim) if holder.claim else "")


def unhealthy_of(resources: Sequence[Resource], since: Mapping[tuple[str, str], float]) -> tuple[UnhealthyDevice, ...]:
    """The devices that aren't available, sorted by resource and device.

    Args:
        resources: all that are advertised.
        since: when each such device became Unhealthy, by resource and ID.
    """
    return tuple(
        UnhealthyDevice(resource.name, key, device.problem.reason, device.problem.text, since[resource.name, key])
        for resource in sorted(resources, key=lambda resource: resource.name)
        for key, device in sorted(resource.devices.items())
        if device.problem is not None
    )


def dump_view(view: NodeView) -> bytes:
    """A view as JSON."""
    return json.dumps(encode(view)).encode()


def load_view(text: bytes) -> NodeView:
    """The view in JSON from `dump_view`.

    Raises:
        ValueError: it isn't a view.
    """
    return decode(NodeView, json.loads(text))


_MAX = 30
_CHARACTERS = 1024


class RecentChanges:
    """A `Recorder` that remembers the last few Events, and passes all of them on.

    Args:
        further: receives each Event.
        clock: seconds since the epoch.
    """

    def __init__(self, further: Recorder, clock: Callable[[], float]) -> None:
        self._further = further
        self._clock = clock
        self._kept: deque[NodeChange] = deque(maxlen=_MAX)
        self.on_event: Callable[[], object] = lambda: None
        """Called after each Event, from any thread."""

    def event(self, type: EventType, reason: str, message: str) -> None:  # noqa: A002  # Kubernetes' name
        """See `Recorder.event`."""
        self._further.event(type, reason, message)
        self._kept.appendleft(NodeChange(self._clock(), type, reason, message[:_CHARACTERS]))
        self.on_event()

    def newest_first(self) -> tuple[NodeChange, ...]:
        """The remembered changes, the newest first."""
        return tuple(self._kept)
