"""The daemon's side of the cluster: keeps the process that talks to the API server running, and hears what it says."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from launcherkit.errors import shown
from launcherkit_plugin.cluster import EventType
from launcherkit_plugin.model.errors import NoCluster
from launcherkit_plugin.telemetry.log import Log

TOKEN = "/var/run/secrets/kubernetes.io/serviceaccount/token"  # noqa: S105  # a path
_LINE_BYTES = 4 * 1024 * 1024
"""KubeVirt's whole configuration is one line; etcd takes objects of 1.5 MB."""
_WAITING = 256
"""Events that wait for the process; of more the oldest are lost."""
_FIRST_PAUSE, _LONGEST_PAUSE = 1.0, 60.0
_END_SECONDS = 3.0
_ENVIRONMENT = ("KUBECONFIG", "HOME", "PATH", "PYTHONPATH", "LANG", "LAUNCHERKIT_LOG_FORMAT", "SSL_CERT_FILE")


class ClusterFacts(NamedTuple):
    """What the cluster says of this node's devices."""

    kubevirt: Mapping[str, Any] | None = None
    """``permittedHostDevices`` and ``mediatedDevicesConfiguration``, as KubeVirt's configuration has them; None without
    KubeVirt."""
    labels: Mapping[str, str] = {}
    """Of the node."""


def has_credentials(env: Mapping[str, str], token: str = TOKEN) -> bool:
    """Whether a cluster can be talked to: a pod's service account, or ``KUBECONFIG``."""
    return bool(env.get("KUBECONFIG")) or (bool(env.get("KUBERNETES_SERVICE_HOST")) and os.path.exists(token))


def command(node: str, kubevirt: bool) -> list[str]:
    """The process."""
    return [sys.executable, "-P", "-m", "launcherkit_plugin.cluster", node, *(["--kubevirt"] if kubevirt else [])]


def _ignored(_told: object) -> None:
    """For who doesn't want to know."""


class Cluster:
    """A `launcherkit_plugin.cluster.Recorder`, and what the cluster says.

    Args:
        argv: see `command`.
        env: of the daemon; the process gets what it needs of it.
        changed: called with the facts when they change, as soon as all of them are known.
        pod_gone: called with ``namespace/name`` when a pod of this node has ended.
    """

    def __init__(
        self,
        argv: Sequence[str],
        env: Mapping[str, str],
        log: Log,
        *,
        changed: Callable[[ClusterFacts], None] = _ignored,
        pod_gone: Callable[[str], None] = _ignored,
    ) -> None:
        self._argv = tuple(argv)
        self._env = {name: value for name, value in env.items() if _is_for_the_process(name)}
        self._log = log
        self._changed = changed
        self._pod_gone = pod_gone
        self._waiting: deque[bytes] = deque(maxlen=_WAITING)
        self._some = asyncio.Event()
        self._heard: dict[str, Any] = {}
        self._known = asyncio.Event()

    def event(self, type: EventType, reason: str, message: str) -> None:  # noqa: A002
        """Send an Event on its way; never waits."""
        self._waiting.append(json.dumps({"event": [type, reason, message]}).encode() + b"\n")
        self._some.set()

    async def first(self, seconds: float) -> ClusterFacts:
        """The facts, waited for.

        Raises:
            NoCluster: they did not come in that time.
        """
        try:
            await asyncio.wait_for(self._known.wait(), seconds)
        except TimeoutError:
            raise NoCluster(
                f"the cluster has not told KubeVirt's configuration within {seconds:.0f} s",
                "Check that the API server can be reached, and that the service account may list kubevirts and nodes.",
            ) from None
        return self._facts()

    async def run(self) -> None:
        """Keep the process running until cancelled; one that dies is started again after a pause that grows."""
        pause = _FIRST_PAUSE
        loop = asyncio.get_running_loop()
        while True:
            began = loop.time()
            try:
                end = await self._attend()
            except (OSError, ValueError) as problem:
                end = str(problem)
            if loop.time() - began > _LONGEST_PAUSE:
                pause = _FIRST_PAUSE
            self._log("warning", f"the process that talks to the cluster has ended ({end}); again in {pause:.0f} s")
            await asyncio.sleep(pause)
            pause = min(pause * 2, _LONGEST_PAUSE)

    async def _attend(self) -> str:
        """One life of the process; says how it ended."""
        process = await asyncio.create_subprocess_exec(
            *self._argv,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env=self._env,
            limit=_LINE_BYTES,
        )
        assert process.stdin is not None
        assert process.stdout is not None
        feeding = asyncio.create_task(self._feed(process.stdin))
        try:
            async for line in process.stdout:
                self._hear(line)
            return f"exit code {await process.wait()}"
        finally:
            feeding.cancel()
            await _ended(process)
            with suppress(asyncio.CancelledError, OSError):
                await feeding

    async def _feed(self, stdin: asyncio.StreamWriter) -> None:
        while True:
            await self._some.wait()
            while self._waiting:
                stdin.write(self._waiting.popleft())
                await stdin.drain()
            self._some.clear()

    def _hear(self, line: bytes) -> None:
        message = json.loads(line)
        if not isinstance(message, dict) or len(message) != 1:
            raise ValueError(f"it said {shown(message)}")
        ((name, value),) = message.items()
        if name == "pod":
            self._pod_gone(str(value))
            return
        self._heard[name] = value
        if {"kubevirt", "labels"} <= self._heard.keys():
            self._known.set()
            self._changed(self._facts())

    def _facts(self) -> ClusterFacts:
        return ClusterFacts(self._heard["kubevirt"], self._heard["labels"])


def _is_for_the_process(name: str) -> bool:
    return name in _ENVIRONMENT or name.startswith("KUBERNETES_SERVICE_") or name.lower().endswith("_proxy")


async def _ended(process: asyncio.subprocess.Process) -> None:
    """End it: by the end of its input, and if that isn't enough by force."""
    assert process.stdin is not None
    process.stdin.close()
    try:
        await asyncio.wait_for(process.wait(), _END_SECONDS)
    except TimeoutError:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()
