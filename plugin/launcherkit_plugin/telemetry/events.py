"""Events on the node, as Kubernetes has them; who sends them is the business of `launcherkit_plugin.cluster`."""

from __future__ import annotations

from typing import Literal, Protocol, TypeAlias

from launcherkit_plugin.telemetry.log import Level, Log

EventType: TypeAlias = Literal["Normal", "Warning"]


class Recorder(Protocol):
    """Reports to the cluster what happened on the node. Never waits, raises nothing; what can't be sent is dropped."""

    def event(self, type: EventType, reason: str, message: str) -> None:  # noqa: A002  # Kubernetes' name
        """Record an Event on the Node. ``reason`` is one CamelCase word; ``message`` says it to people."""


class LogRecorder:
    """A `Recorder` for where there is no cluster: a line in the log."""

    def __init__(self, log: Log) -> None:
        self._log = log

    def event(self, type: EventType, reason: str, message: str) -> None:  # noqa: A002
        level: Level = "warning" if type == "Warning" else "info"
        self._log(level, message, reason=reason)
