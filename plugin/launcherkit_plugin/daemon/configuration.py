"""The configuration as the daemon reads it: from its file and the cluster, at the start and again when one changes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from launcherkit_plugin.cluster.socket import ClusterSocket, no_cluster_socket
from launcherkit_plugin.config.child import read_config_in_child
from launcherkit_plugin.config.source import ConfigSource
from launcherkit_plugin.daemon.wiring import Setup, Wiring, assemble
from launcherkit_plugin.devices.selectors import with_auto, with_dra
from launcherkit_plugin.model.config import Auto, Config, Reading
from launcherkit_plugin.model.errors import NoCluster
from launcherkit_plugin.telemetry.reporter import Reporter

CLUSTER_SECONDS = 30.0
"""How long to wait, at the start, for KubeVirt's settings in the cluster if the configuration uses them."""


class Configuration:
    """Reads the configuration from its file and the cluster, and makes a `Setup` of it."""

    def __init__(
        self,
        source: ConfigSource,
        cluster: ClusterSocket,
        watch: Callable[[], None],
        wiring: Wiring,
    ) -> None:
        """``watch`` is called whenever a configuration has been read: it may have other files."""
        self._source = source
        self._cluster = cluster
        self._watch = watch
        self._wiring = wiring

    async def first(self) -> Reading:
        """Read it at the start. If it uses the cluster's settings, these are waited for."""
        reading = await self._source.first()
        if not reading.cluster:
            return reading
        self._cluster.want_kubevirt()
        try:
            self._source.set_cluster(*await self._cluster.first(CLUSTER_SECONDS))
        except NoCluster as silent:
            self._wiring.reporter.error(silent)  # what the file itself configures doesn't wait for the cluster
        return await self._source.again() or reading

    async def reload(self) -> Setup | None:
        """Read it again; None if nothing else comes into force."""
        self._source.set_cluster(*self._cluster.facts)
        reading = await self._source.again()
        if reading is None:
            return None
        if reading.cluster and _waits_for(self._cluster, self._wiring.reporter):
            self._source.forget()  # the settings' arrival is a wakeup; until then the old configuration stays
            return None
        return self.assembled(reading)

    def assembled(self, reading: Reading) -> Setup:
        """The setup of a configuration, whose files are watched from now on."""
        for note in reading.notes:
            self._wiring.reporter.log("info", note.text, topic=note.topic)
        self._watch()
        return assemble(reading.config, self._wiring)


def _waits_for(cluster: ClusterSocket, reporter: Reporter) -> bool:
    """Whether a configuration that uses the cluster's settings has to wait for them. Without a cluster socket, this is
    reported as an error, and the rest of the configuration comes into force.
    """
    cluster.want_kubevirt()
    if not cluster.listens:
        reporter.error(no_cluster_socket())
    return cluster.listens and cluster.facts[0] is None


class ConfigReader:
    """Reads the configuration file in a process of its own. Without a file, the command line's options are used."""

    def __init__(
        self, path: str | None, auto: Auto | None, first: asyncio.Task[Reading] | None = None, *, dra: bool = False
    ) -> None:
        """``first`` already reads it, for the first call; ``dra``: everything is for DRA."""
        self._path = path
        self._auto = auto
        self._first = first
        self._dra = dra

    async def __call__(self, kubevirt: Mapping[str, Any] | None, labels: Mapping[str, str]) -> Reading:
        if self._path is None:
            return Reading(with_dra(with_auto(Config(auto=self._auto)), every=self._dra))
        if self._first is not None:
            first, self._first = self._first, None
            return await asyncio.shield(first)  # the caller that started it waits for its end
        return await read_config_in_child(self._path, self._auto, kubevirt, labels, dra=self._dra)
