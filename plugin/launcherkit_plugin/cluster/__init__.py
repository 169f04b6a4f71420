"""The cluster, from a process of its own: Events, KubeVirt's configuration, this node's pods.

That process alone has the Kubernetes client (as much memory as all the rest), the credentials and the network; the
daemon works without it. `client` is the daemon's side, `__main__` the other; they exchange lines of JSON:

* down: ``{"event": [type, reason, message]}``;
* up: ``{"kubevirt": {...} | null}`` and ``{"labels": {...}}`` as they are now; ``{"pod": "namespace/name"}``, which has
  ended.
"""

from __future__ import annotations

from typing import Literal, Protocol, TypeAlias

from launcherkit_plugin.telemetry.log import Level, Log

EventType: TypeAlias = Literal["Normal", "Warning"]


class Recorder(Protocol):
    """Tells the cluster what happened on the node. Never waits, raises nothing; what can't be told is dropped."""

    def event(self, type: EventType, reason: str, message: str) -> None:  # noqa: A002  # Kubernetes' name
        """Record an Event on the Node. ``reason`` is one CamelCase word; ``message`` says it to people."""


class LogRecorder:
    """A `Recorder` for where there is no cluster: a line in the log."""

    def __init__(self, log: Log) -> None:
        self._log = log

    def event(self, type: EventType, reason: str, message: str) -> None:  # noqa: A002
        level: Level = "warning" if type == "Warning" else "info"
        self._log(level, message, reason=reason)
