"""The service, on a socket: before a VM starts its vGPUs are looked at once more, after it has stopped they are free.

KubeVirt knows that a VM has ended before the kubelet knows that its pod has. A pod runs one VM in its life, so what it
still holds by the kubelet's word is needed no more.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Coroutine, Sequence
from contextlib import asynccontextmanager
from typing import NamedTuple, Protocol

from grpclib import GRPCError, Status
from grpclib.server import Stream

from launcherkit.errors import LauncherkitError
from launcherkit.rpc.calls import Calls, receive
from launcherkit.rpc.refusal import refusal
from launcherkit.rpc.server import BoundedServer
from launcherkit.rpc.unix_socket import socket_at
from launcherkit_plugin.model.errors import PluginSocketInUse, PluginSocketNotMade, VmLacksDevices
from launcherkit_plugin.model.usage import Usage
from launcherkit_plugin.nodehook.proto import nodehook_v1alpha1_grpc
from launcherkit_plugin.nodehook.proto import nodehook_v1alpha1_pb2 as wire
from launcherkit_plugin.nodehook.vm import Had, Vm, pod_of, read_vm
from launcherkit_plugin.telemetry.log import Log, log_error
from launcherkit_plugin.vgpu.lifecycle import Stopped

DRAIN_SECONDS = 5.0
MOST_VMS = 4096
"""So many VMs are remembered; a node runs far fewer."""


class HookAllocator(Protocol):
    """`launcherkit_plugin.allocation.allocator.Allocator`."""

    @property
    def names(self) -> Collection[str]:
        """Of the resources that are advertised."""
        ...

    def check(self, resource: str, ids: Sequence[str]) -> Coroutine[None, None, None]: ...


class NodeHookParts(NamedTuple):
    """What the hook works with."""

    answers: HookAllocator
    read_usage: Callable[[], Awaitable[Usage]]
    """Who has what, at this moment."""
    stopped: Stopped
    wake: Callable[[], None]
    """There is something to be taken away."""
    log: Log


class NodeHook(nodehook_v1alpha1_grpc.NodeHookServiceBase):
    """Answers virt-handler. What it can't be sure of it leaves to the loop and the grace time."""

    def __init__(self, node: NodeHookParts) -> None:
        self._node = node
        self._started: dict[str, Had] = {}
        """By the VM's UID: its successor of the same name may have a pod already when it is said to have stopped."""

    async def ExecuteNodeHook(self, stream: Stream[wire.ExecuteNodeHookRequest, wire.ExecuteNodeHookResponse]) -> None:
        asked = await receive(stream, wire.ExecuteNodeHookRequest)
        try:
            if asked.hookPoint == "PreVMStart":
                await self.before_start(read_vm(asked.vmi))
            elif asked.hookPoint == "PostVMStop":
                self.after_stop(read_vm(asked.vmi))
        except LauncherkitError as error:
            log_error(self._node.log, error, hook=asked.hookPoint)
            raise refusal(error) from error
        except Exception as bug:
            self._node.log("error", f"internal error in {asked.hookPoint}: {type(bug).__name__}: {bug}")
            raise GRPCError(Status.INTERNAL, "internal error; the log of the device plugin has more") from bug
        await stream.send_message(wire.ExecuteNodeHookResponse())

    async def before_start(self, vm: Vm) -> None:
        """See that what the VM's pod has is there; in dynamic mode it is made where it is missing (G3).

        Raises:
            VmLacksDevices: the pod has less than the VM asks for.
            LauncherkitError: see `Provider.check`.
        """
        ours = {resource: number for resource, number in vm.asked.items() if resource in self._node.answers.names}
        if not ours:
            return
        usage = await self._node.read_usage()
        had = pod_of(vm, usage) if usage.known else None
        if had is None:
            self._node.log("warning", f"{vm} starts, and the kubelet names no pod, or several, that it could have")
            return
        for resource, number in ours.items():
            devices = had.devices.get(resource, ())
            if len(devices) < number:
                raise VmLacksDevices(
                    f"{vm} asks for {number} of {resource}, and its pod {had.pod} has {len(devices)}",
                    "Start the VM again, so that it gets a new pod; the kubelet's log says what became of this one's.",
                )
            # virt-handler may hang up in the middle; what has been begun comes to its end, under the allocator's lock.
            await asyncio.shield(asyncio.create_task(self._node.answers.check(resource, devices)))
        if len(self._started) >= MOST_VMS:
            self._started.pop(next(iter(self._started)))
        mine = {resource: had.devices[resource] for resource in ours}
        self._started[vm.uid] = Had(had.pod, mine)

    def after_stop(self, vm: Vm) -> None:
        """What the VM was seen to have when it started is free, unless somebody else has it."""
        had = self._started.pop(vm.uid, None)
        if had is not None:
            self._node.stopped.mark(had.pod, [device for devices in had.devices.values() for device in devices])
            self._node.log("info", f"{vm} has stopped; what {had.pod} has is free")
            self._node.wake()


@asynccontextmanager
async def serving_node_hook(path: str, node: NodeHookParts) -> AsyncIterator[None]:
    """Serve on a socket, which must not be there or must be a dead one's.

    Raises:
        PluginSocketInUse, PluginSocketNotMade: it can't be had.
    """
    with socket_at(path, _in_use, _not_made) as (made, _):
        calls = Calls()
        server = BoundedServer([NodeHook(node)], calls)
        await server.start(sock=made)
        try:
            yield
        finally:
            server.refuse()
            await calls.drain(DRAIN_SECONDS)
            await server.hang_up()


def _in_use(path: str) -> PluginSocketInUse:
    return PluginSocketInUse(
        f"{path}: another process answers there",
        "Run one device plugin on a node, or name another socket with --node-hook.",
    )


def _not_made(path: str, problem: OSError | str) -> PluginSocketNotMade:
    why = (problem.strerror or str(problem)) if isinstance(problem, OSError) else problem
    return PluginSocketNotMade(
        f"{path}: no socket can be made there: {why}",
        "Mount the folder that virt-handler looks into, writable, and name a socket in it with --node-hook.",
    )
