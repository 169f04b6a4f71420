"""The two sockets of a DRA driver: one for registration, and one for the service.

The kubelet watches ``plugins_registry`` and connects to every socket in it. It never removes any; drivers must do so.
While two pods of a driver overlap, in a rolling update, each has its own sockets, and the kubelet uses the newer ones.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack, suppress
from typing import NamedTuple
from zlib import crc32

from grpclib.server import Stream

from launcherkit.rpc.calls import receive
from launcherkit.rpc.methods import Servicer
from launcherkit.rpc.server import serving
from launcherkit.rpc.unix_socket import PATH_BYTES, SocketIdentity, answers, identity
from launcherkit_plugin.dra.node_service import ENDLESS, VERSIONS, Healths
from launcherkit_plugin.dra.proto import pluginregistration_v1_pb2 as wire
from launcherkit_plugin.model.errors import NO_KUBELET, REGISTRATION_REFUSED, plugin_socket_errors
from launcherkit_plugin.telemetry.reporter import Reporter

LOOK_SECONDS = 1.0
"""Seconds between checks that the sockets still exist. A check takes three calls of lstat."""
DRAIN_SECONDS = 10.0
"""How long calls in progress may continue when the driver ends."""
_REQUEST_BYTES = 64 * 1024


_SOCKET_ERRORS = plugin_socket_errors(
    in_use="Run one pod of the driver on a node. Two of a rolling update need different names: set POD_UID in the pod.",
    not_made="Mount the kubelet's folders plugins_registry and plugins, writable, at their own paths (component "
    "`dra`), and name their parent with --kubelet-dir.",
)


class SocketPaths(NamedTuple):
    """The paths of the two sockets."""

    registration: str
    service: str


def socket_paths(kubelet_dir: str, driver: str, pod_uid: str = "") -> SocketPaths:
    """The paths of a driver's sockets, shortened to at most `PATH_BYTES` if possible.

    Args:
        kubelet_dir: ``/var/lib/kubelet``.
        driver: its name.
        pod_uid: of the pod in which this runs; empty if it doesn't run in a pod.
    """
    registry, data = f"{kubelet_dir}/plugins_registry", f"{kubelet_dir}/plugins/{driver}"
    if not pod_uid:
        return SocketPaths(f"{registry}/{driver}-reg.sock", f"{data}/dra.sock")
    return SocketPaths(
        _short(lambda uid: f"{registry}/{driver}-{uid}-reg.sock", pod_uid),
        _short(lambda uid: f"{data}/dra-{uid}.sock", pod_uid),
    )


def _short(path: Callable[[str], str], uid: str) -> str:
    whole = path(uid)
    return whole if len(os.fsencode(whole)) <= PATH_BYTES else path(f"{crc32(uid.encode()):08x}")


class Registration(Servicer):
    """Tells the kubelet which service is at which socket, and receives its answer.

    Args:
        driver: its name.
        endpoint: the path of the service's socket.
        answered: called with the kubelet's answer: empty if the driver is registered, else why not.
    """

    service = wire.DESCRIPTOR.services_by_name["Registration"]

    def __init__(self, driver: str, endpoint: str, answered: Callable[[str], object]) -> None:
        self._info = wire.PluginInfo(type="DRAPlugin", name=driver, endpoint=endpoint, supported_versions=VERSIONS)
        self._answered = answered

    async def GetInfo(self, stream: Stream[wire.InfoRequest, wire.PluginInfo]) -> None:
        await receive(stream, wire.InfoRequest, _REQUEST_BYTES)
        await stream.send_message(self._info)

    async def NotifyRegistrationStatus(
        self, stream: Stream[wire.RegistrationStatus, wire.RegistrationStatusResponse]
    ) -> None:
        status = await receive(stream, wire.RegistrationStatus, _REQUEST_BYTES)
        self._answered("" if status.plugin_registered else status.error or "it doesn't say why")
        await stream.send_message(wire.RegistrationStatusResponse())


class KubeletSockets:
    """Serves both sockets, and makes them again if they are removed.

    Args:
        driver: its name.
        paths: of the sockets.
        services: what is served to the kubelet.
        healths: its streams are open as long as the sockets are served.
        reporter: receives problems and registrations.
        changed: called when `registered` changes.
    """

    def __init__(
        self,
        driver: str,
        paths: SocketPaths,
        services: Sequence[Servicer],
        healths: Healths,
        reporter: Reporter,
        changed: Callable[[], object],
    ) -> None:
        self._driver = driver
        self._paths = paths
        self._services = services
        self._healths = healths
        self._reporter = reporter
        self._changed = changed
        self._running: AsyncExitStack | None = None
        self._ours: dict[str, SocketIdentity] = {}
        self.registered = False
        """Whether the driver is registered with the kubelet, as far as is known."""

    async def serve_forever(self) -> None:
        """Serve until cancelled; the caller must call `end` then."""
        while True:
            try:
                if not self._in_place():
                    await self.end()
                    await self._start()
                self._reporter.solved("dra")
            except Exception as problem:  # concerns the sockets; the rest of the daemon continues
                self._reporter.not_served("dra", problem, self._driver)
            await asyncio.sleep(LOOK_SECONDS)

    async def end(self) -> None:
        """Let calls in progress finish, and remove the sockets: that for registration first."""
        if self._running is not None:
            running, self._running, self._ours = self._running, None, {}
            self._healths.close()
            self._set(registered=False)
            await running.aclose()

    def _in_place(self) -> bool:
        return bool(self._ours) and all(identity(path) == ours for path, ours in self._ours.items())

    async def _start(self) -> None:
        folder = os.path.dirname(self._paths.registration)
        if not os.path.isdir(folder):
            raise NO_KUBELET(
                f"{folder}: there is no such folder",
                "The plugin waits for the kubelet. If it runs: mount its folder plugins_registry, and give the parent "
                "with --kubelet-dir.",
                file=folder,
            )
        _remove_dead(self._paths, self._driver)
        self._ours = {}
        async with AsyncExitStack() as opening:
            registration = Registration(self._driver, self._paths.service, self._answered)
            for path, services in ((self._paths.service, self._services), (self._paths.registration, [registration])):
                self._ours[path] = await opening.enter_async_context(
                    serving(
                        path,
                        services,
                        *_SOCKET_ERRORS,
                        drain_seconds=DRAIN_SECONDS,
                        endless=ENDLESS,
                        late=lambda text: self._reporter.log("warning", f"{self._driver}: {text}"),
                    )
                )
            self._running = opening.pop_all()
            self._healths.open()

    def _answered(self, refusal: str) -> None:
        """Handle the kubelet's answer to the registration."""
        self._reporter.metrics.registered(self._driver, "refused" if refusal else "done")
        if refusal:
            error = REGISTRATION_REFUSED(
                f"{self._paths.registration}: the kubelet refuses {self._driver}: {refusal}",
                "See the kubelet's log. Dynamic Resource Allocation needs Kubernetes 1.32, and is on by default from "
                "1.34 on.",
                driver=self._driver,
                file=self._paths.registration,
            )
            self._reporter.problem("registration", error, "DriverRefused")
        else:
            self._reporter.solved("registration")
            self._reporter.log("info", f"the kubelet has registered {self._driver}")
        self._set(registered=not refusal)

    def _set(self, *, registered: bool) -> None:
        before, self.registered = self.registered, registered
        if before != registered:
            self._changed()


def _remove_dead(paths: SocketPaths, driver: str) -> None:
    """Remove sockets that killed pods of this driver left. A socket that answers belongs to another pod or to us."""
    for path, start, end in ((paths.registration, driver, "-reg.sock"), (paths.service, "dra", ".sock")):
        name = re.compile(rf"{re.escape(start)}(-[0-9a-f]{{8}}|-[-0-9a-f]{{36}})?{re.escape(end)}")
        folder = os.path.dirname(path)
        with suppress(OSError):
            for socket_name in filter(name.fullmatch, os.listdir(folder)):
                if not answers(f"{folder}/{socket_name}"):
                    with suppress(FileNotFoundError):  # its process has just removed it
                        os.unlink(f"{folder}/{socket_name}")
