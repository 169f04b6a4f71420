"""The daemon's line to the cluster, where there is one: Events go out, settings and ends of pods come in."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from launcherkit_plugin.cluster import EventType
from launcherkit_plugin.cluster.client import Cluster, ClusterFacts, command, has_credentials
from launcherkit_plugin.host.wakeups import Wakeup, Wakeups
from launcherkit_plugin.model.errors import NoCluster
from launcherkit_plugin.telemetry.log import Log

NODE = "NODE_NAME"
"""The variable with the node's name, by the downward API."""


class Link:
    """A `launcherkit_plugin.cluster.Recorder`. Without credentials nothing goes out, and nothing comes in."""

    def __init__(self, env: Mapping[str, str], log: Log, hints: Wakeups) -> None:
        self._env = env
        self._log = log
        self._hints = hints
        self._cluster: Cluster | None = None
        self._running: asyncio.Task[None] | None = None
        self._kubevirt = False
        self.facts: tuple[Mapping[str, Any] | None, Mapping[str, str]] = None, {}
        """KubeVirt's settings, None as long as they are not known, and the node's labels."""

    def open(self, *, kubevirt: bool) -> None:
        """Talk to the cluster, about KubeVirt's settings too if they are wanted."""
        node = self._env.get(NODE)
        if not node or not has_credentials(self._env) or (self._cluster is not None and kubevirt <= self._kubevirt):
            return
        if self._running is not None:
            self._running.cancel()
        self._kubevirt = kubevirt
        self._cluster = Cluster(
            command(node, kubevirt),
            self._env,
            self._log,
            changed=self._changed,
            pod_gone=lambda _: self._hints.give(Wakeup.PODS),
        )
        self._running = asyncio.create_task(self._cluster.run())

    @property
    def is_open(self) -> bool:
        """Whether there is a cluster to talk to; it may not answer."""
        return self._cluster is not None

    async def first(self, seconds: float) -> tuple[Mapping[str, Any] | None, Mapping[str, str]]:
        """The first word of the cluster.

        Raises:
            NoCluster: there is none in that time.
        """
        if self._cluster is None:
            raise NoCluster(
                "the configuration wants KubeVirt's settings from the cluster, and there are no credentials for one",
                f"Run it as a pod with a service account and the variable {NODE}, or name a file: `kubevirt: {{file: "
                "...}`.",
            )
        self._changed(await self._cluster.first(seconds))
        return self.facts

    def event(self, type: EventType, reason: str, message: str) -> None:  # noqa: A002  # Kubernetes' name
        """See `launcherkit_plugin.cluster.Recorder`."""
        if self._cluster is not None:
            self._cluster.event(type, reason, message)

    def _changed(self, facts: ClusterFacts) -> None:
        # A cluster without KubeVirt has settings that say nothing, unlike one that has not been asked for them.
        self.facts = (facts.kubevirt or {}) if self._kubevirt else None, facts.labels
        self._hints.give(Wakeup.CONFIG)

    async def close(self) -> None:
        """Hang up."""
        if self._running is not None:
            self._running.cancel()
            await asyncio.wait({self._running})
