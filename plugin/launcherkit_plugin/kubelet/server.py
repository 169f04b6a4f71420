"""The gRPC server of one resource, which the kubelet calls (v1beta1 DevicePlugin)."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AsyncExitStack
from time import perf_counter
from typing import Any

from grpclib import GRPCError, Status
from grpclib.server import Stream

from launcherkit.errors import LauncherkitError, Unavailable, UnreadableFile, UnwritableFile
from launcherkit.rpc.calls import receive
from launcherkit.rpc.methods import Servicer
from launcherkit.rpc.server import serving
from launcherkit.rpc.unix_socket import SocketIdentity, identity
from launcherkit_plugin.allocation.allocator import Allocator
from launcherkit_plugin.kubelet import messages
from launcherkit_plugin.kubelet.proto import deviceplugin_v1beta1_pb2 as wire
from launcherkit_plugin.model.device import Resource
from launcherkit_plugin.model.errors import CALLER_UNKNOWN, BadRecord, plugin_socket_errors
from launcherkit_plugin.model.stream import StreamedValue
from launcherkit_plugin.telemetry.metrics import ActionOutcome
from launcherkit_plugin.telemetry.reporter import Reporter

LIST_AND_WATCH = "/v1beta1.DevicePlugin/ListAndWatch"
"""The method whose calls last as long as the kubelet knows the resource."""
REQUEST_BYTES = 1 << 20
"""The largest request that is read; one for 256 devices takes 4 KB."""
DRAIN_SECONDS = 10.0
"""How long calls in progress may continue when the server stops."""


_SOCKET_ERRORS = plugin_socket_errors(
    in_use="Run only one device plugin for each resource: stop the other one, or give its resource another name.",
    not_made="Mount the kubelet's folder device-plugins, writable, and name its parent with --kubelet-dir.",
)


class ResourceServer(Servicer):
    """A resource, served from `start` to `stop`; it can be started again."""

    service = wire.DESCRIPTOR.services_by_name["DevicePlugin"]

    def __init__(
        self,
        resource: Resource,
        folder: str,
        allocator: Allocator,
        reporter: Reporter,
        when_left: Callable[[], None],
        dev_root: str = "",
    ) -> None:
        """Make a server.

        Args:
            resource: as it is now.
            folder: the folder of the device plugins' sockets.
            allocator: answers the kubelet's calls.
            reporter: receives errors, and the time that each Allocate takes.
            when_left: called when nobody watches the devices any more.
            dev_root: see `launcherkit_plugin.kubelet.messages.allocation`.
        """
        self.name = resource.name
        self.path = f"{folder}/{resource.socket}"
        self._options = self._wanted = messages.options(resource)
        self._allocator = allocator
        self._reporter = reporter
        self._dev_root = dev_root
        self._devices = _Devices(messages.device_list(resource), when_left)
        self._running: AsyncExitStack | None = None
        self._ours: SocketIdentity | None = None

    @property
    def watchers(self) -> int:
        """How many streams of ListAndWatch are open: one if the kubelet knows the resource."""
        return self._devices.watchers

    def in_place(self) -> bool:
        """Whether it runs as registered, and its socket exists: a starting kubelet removes all sockets (K4)."""
        return self._running is not None and self._options == self._wanted and identity(self.path) == self._ours

    def update(self, resource: Resource) -> None:
        """Set the devices; watchers are sent the new list if it differs. Other options need a new start."""
        self._wanted = messages.options(resource)
        self._devices.put(messages.device_list(resource))

    async def start(self) -> None:
        """Listen on the socket.

        Raises:
            PLUGIN_SOCKET_IN_USE, PLUGIN_SOCKET_NOT_MADE: it isn't started.
        """
        assert self._running is None
        self._options = self._wanted
        async with AsyncExitStack() as opening:
            self._ours = await opening.enter_async_context(
                serving(
                    self.path,
                    [self],
                    *_SOCKET_ERRORS,
                    drain_seconds=DRAIN_SECONDS,
                    endless={LIST_AND_WATCH},
                    late=lambda text: self._reporter.log("warning", f"{self.name}: {text}"),
                )
            )
            self._devices.open()
            self._running = opening.pop_all()

    async def stop(self) -> None:
        """End the streams, let calls in progress finish, and remove the socket if it is ours."""
        if self._running is not None:
            running, self._running = self._running, None
            self._devices.close()
            await running.aclose()

    # What the kubelet calls

    async def GetDevicePluginOptions(self, stream: Stream[wire.Empty, wire.DevicePluginOptions]) -> None:
        await receive(stream, wire.Empty, REQUEST_BYTES)
        await stream.send_message(self._options)

    async def ListAndWatch(self, stream: Stream[wire.Empty, wire.ListAndWatchResponse]) -> None:
        await receive(stream, wire.Empty, REQUEST_BYTES)
        await self._devices.send(stream)

    async def GetPreferredAllocation(
        self, stream: Stream[wire.PreferredAllocationRequest, wire.PreferredAllocationResponse]
    ) -> None:
        request = await receive(stream, wire.PreferredAllocationRequest, REQUEST_BYTES)
        answer = await self._guard("GetPreferredAllocation", self._prefer, request)
        await stream.send_message(answer)

    async def _prefer(self, request: wire.PreferredAllocationRequest) -> wire.PreferredAllocationResponse:
        answer = wire.PreferredAllocationResponse()
        for available, must, size in messages.preferences(self.name, request, self._devices.largest):
            chosen = await self._allocator.preferred(self.name, available, must, size)
            answer.container_responses.add(deviceIDs=chosen)
        return answer

    async def Allocate(self, stream: Stream[wire.AllocateRequest, wire.AllocateResponse]) -> None:
        request = await receive(stream, wire.AllocateRequest, REQUEST_BYTES)
        outcome: ActionOutcome = "failed"
        began = perf_counter()
        try:
            answer = await self._guard("Allocate", self._allocate, request)
            outcome = "done"
        except GRPCError as refusal:
            cause = refusal.__cause__
            leaves = [*cause.leaves()] if isinstance(cause, LauncherkitError) else []
            decided = leaves and not any(map(_has_failed, leaves))
            outcome = "refused" if decided else "failed"
            raise
        finally:
            self._reporter.metrics.allocated(self.name, perf_counter() - began, outcome)
        await stream.send_message(answer)

    async def _allocate(self, request: wire.AllocateRequest) -> wire.AllocateResponse:
        containers = messages.wanted(self.name, request, self._devices.largest)
        grants = await self._allocator.allocate(self.name, containers)
        return messages.allocation(grants, self._dev_root)

    async def PreStartContainer(
        self, stream: Stream[wire.PreStartContainerRequest, wire.PreStartContainerResponse]
    ) -> None:
        request = await receive(stream, wire.PreStartContainerRequest, REQUEST_BYTES)
        await self._guard("PreStartContainer", self._check, request)
        await stream.send_message(wire.PreStartContainerResponse())

    async def _check(self, request: wire.PreStartContainerRequest) -> None:
        ids = messages.to_check(self.name, request, self._devices.largest)
        await self._allocator.check(self.name, ids)

    async def _guard(self, call: str, work: Callable[..., Any], *arguments: object) -> Any:
        """Run ``work``. An error is logged, and returned to the kubelet."""
        try:
            return await work(*arguments)
        except LauncherkitError as error:
            self._reporter.error(error, resource=self.name, call=call)
            raise messages.refused(error) from error
        except Exception as bug:
            self._reporter.bug(bug, f" in {call} of {self.name}", resource=self.name, call=call)
            text = f"internal error in {call}: {type(bug).__name__}; the log of the device plugin has more"
            raise GRPCError(Status.INTERNAL, text) from bug


_FAILURES = (Unavailable, UnreadableFile, UnwritableFile, BadRecord)
"""Errors in which something has failed, and the pod could have had its devices; the others are decisions."""


def _has_failed(error: LauncherkitError) -> bool:
    """Whether something didn't work; who asks is only unknown while the API server hasn't told of a new pod."""
    return isinstance(error, _FAILURES) and error.code != CALLER_UNKNOWN.code


class _Devices(StreamedValue[wire.ListAndWatchResponse]):
    """The current list of devices, and its watchers."""

    def __init__(self, now: wire.ListAndWatchResponse, when_left: Callable[[], None]) -> None:
        super().__init__(now)
        self.largest = len(now.devices)
        """The most devices that were sent to the kubelet: it may still ask for those of an earlier list."""
        self._when_left = when_left
        self.watchers = 0

    def put(self, devices: wire.ListAndWatchResponse) -> None:
        self.largest = max(self.largest, len(devices.devices))
        self.set(devices)

    async def send(self, stream: Stream[wire.Empty, wire.ListAndWatchResponse]) -> None:
        """Send the list, and again whenever it has changed; a slow reader gets only the latest one."""
        self.watchers += 1
        try:
            while True:
                sent = self.now
                await stream.send_message(sent)
                while self.now is sent:
                    if not self.is_open:
                        return
                    await self.change(sent)
        finally:
            self.watchers -= 1
            if not self.watchers and self.is_open:
                self._when_left()
