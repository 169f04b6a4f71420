"""The node hook's service. Before a VM starts or arrives, its vGPUs are checked; after it has stopped, they are free.

KubeVirt knows that a VM has ended before the kubelet knows that its pod has. A pod runs only one VM, so the devices
that the kubelet still lists for the pod are no longer needed.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import NamedTuple

from grpclib import GRPCError, Status
from grpclib.server import Stream

from launcherkit.errors import BAD_VMI, LauncherkitError
from launcherkit.request.fields import Fields, text
from launcherkit.request.vmi import THE_VMI, VmiErrors, parse_vmi, read_vmi
from launcherkit.rpc.calls import receive, refusal
from launcherkit.rpc.methods import Servicer
from launcherkit.rpc.server import serving
from launcherkit_plugin.allocation.allocator import Allocator
from launcherkit_plugin.model.device import Usage
from launcherkit_plugin.model.errors import VM_LACKS_DEVICES, plugin_socket_errors
from launcherkit_plugin.nodehook.proto import nodehook_v1alpha1_pb2 as wire
from launcherkit_plugin.telemetry.reporter import Reporter
from launcherkit_plugin.vgpu.lifecycle import Stopped

_LONGEST_BASE = 58
"""Kubernetes truncates a generated name to this length before it appends five characters. A truncated name may belong
to another VM."""


_SOCKET_ERRORS = plugin_socket_errors(
    in_use="Run one device plugin on a node, or name another socket with --node-hook.",
    not_made="Mount the folder that virt-handler looks into, writable, and name a socket in it with --node-hook.",
    key="--node-hook",
)


class Vm(NamedTuple):
    """The parts of a VirtualMachineInstance that are used here."""

    namespace: str
    name: str
    uid: str
    asked: Mapping[str, int]
    """How many devices of each resource it asks for."""
    pod_uids: frozenset[str]
    """The UIDs of its pods, on all nodes."""

    def __str__(self) -> str:
        return f"VM {self.namespace}/{self.name}"


def read_vm(document: bytes) -> Vm:
    """A VM from its JSON.

    Raises:
        BAD_VMI, SeveralErrors: it is not JSON, or doesn't have the form of a VMI.
    """
    values = parse_vmi(document, THE_VMI)
    asked = Counter(request.resource for request in read_vmi(values, interfaces=False).requests if request.resource)
    problems = VmiErrors(THE_VMI, BAD_VMI, "Pass the whole VirtualMachineInstance, with its status.")
    root = Fields(values, "", problems)
    metadata = root.inner("metadata")
    namespace, name, uid = (
        metadata.required(key, text, f"the {key} of the VM", "") for key in ("namespace", "name", "uid")
    )
    pods = root.inner("status").mapping("activePods")
    problems.raise_if_any()
    return Vm(namespace, name, uid, dict(asked), frozenset(pods))


class VmDevices(NamedTuple):
    """The pod of a VM and its devices."""

    pod: str
    devices: Mapping[str, tuple[str, ...]]
    """Device IDs by resource."""


def pod_of(vm: Vm, usage: Usage) -> VmDevices | None:
    """The VM's pod and its devices; None if no pod of it has devices, or if several pods may be its."""
    base = f"virt-launcher-{vm.name}-"
    if len(base) > _LONGEST_BASE:
        return None
    name = re.compile(rf"{re.escape(f'{vm.namespace}/{base}')}[a-z0-9]{{5}}")
    by_pod: dict[str, dict[str, list[str]]] = {}
    for resource, devices in usage.held.items():
        for device, holder in devices.items():
            if name.fullmatch(holder.pod) or holder.pod.removeprefix("uid:") in vm.pod_uids:
                by_pod.setdefault(holder.pod, {}).setdefault(resource, []).append(device)
    if len(by_pod) != 1:
        return None
    ((pod, held),) = by_pod.items()
    return VmDevices(pod, {resource: tuple(devices) for resource, devices in held.items()})


DRAIN_SECONDS = 5.0
MAX_VMS = 4096
"""The most VMs that are remembered; a node runs far fewer."""


class NodeHook(Servicer):
    """Answers virt-handler. Cases in which it can't be sure are left to the loop and the grace time.

    Args:
        allocator: checks the devices of a VM's pod, and creates missing ones.
        read_usage: reads usage now.
        stopped: receives the devices that are free.
        wake: called when devices may be taken away.
        reporter: receives problems.
    """

    service = wire.DESCRIPTOR.services_by_name["NodeHookService"]

    def __init__(
        self,
        allocator: Allocator,
        read_usage: Callable[[], Awaitable[Usage]],
        stopped: Stopped,
        wake: Callable[[], object],
        reporter: Reporter,
    ) -> None:
        self._allocator = allocator
        self._read_usage = read_usage
        self._stopped = stopped
        self._wake = wake
        self._reporter = reporter
        self._started: dict[str, VmDevices] = {}
        """By the VM's UID, not its name: when it stops, a new VM with the same name may already have a pod."""

    async def ExecuteNodeHook(self, stream: Stream[wire.ExecuteNodeHookRequest, wire.ExecuteNodeHookResponse]) -> None:
        asked = await receive(stream, wire.ExecuteNodeHookRequest)
        try:
            if asked.hookPoint in ("PreVMStart", "PreMigrationTarget"):  # a VM that migrates here starts nowhere else
                await self.before_start(read_vm(asked.vmi))
            elif asked.hookPoint == "PostVMStop":
                self.after_stop(read_vm(asked.vmi))
        except LauncherkitError as error:
            self._reporter.error(error, hook=asked.hookPoint)
            raise refusal(error) from error
        except Exception as bug:
            self._reporter.bug(bug, f" in {asked.hookPoint}")
            raise GRPCError(Status.INTERNAL, "internal error; the log of the device plugin has more") from bug
        await stream.send_message(wire.ExecuteNodeHookResponse())

    async def before_start(self, vm: Vm) -> None:
        """Check that the devices of the VM's pod exist; in dynamic mode, missing ones are created (G3).

        Raises:
            VM_LACKS_DEVICES: the pod has fewer devices than the VM asks for.
            LauncherkitError: see `Provider.check`.
        """
        ours = {resource: number for resource, number in vm.asked.items() if resource in self._allocator.names}
        if not ours:
            return
        usage = await self._read_usage()
        had = pod_of(vm, usage) if usage.known else None
        if had is None:
            self._reporter.log(
                "warning", f"{vm} starts, and the kubelet lists no pod, or more than one, that could be its"
            )
            return
        for resource, number in ours.items():
            devices = had.devices.get(resource, ())
            if len(devices) < number:
                raise VM_LACKS_DEVICES(
                    f"{vm} asks for {number} of {resource}, and its pod {had.pod} has {len(devices)}",
                    "Start or migrate the VM again, so that it gets a new pod; the kubelet's log says what happened to "
                    "this one's devices.",
                    resource=resource,
                )
            await self._allocator.check(resource, devices)
        if len(self._started) >= MAX_VMS:
            self._started.pop(next(iter(self._started)))
        mine = {resource: had.devices[resource] for resource in ours}
        self._started[vm.uid] = VmDevices(had.pod, mine)

    def after_stop(self, vm: Vm) -> None:
        """Note that the devices that the VM had at its start are free, unless another pod has them by now."""
        had = self._started.pop(vm.uid, None)
        if had is not None:
            self._stopped.mark(had.pod, [device for devices in had.devices.values() for device in devices])
            self._reporter.log("info", f"{vm} has stopped; the devices of {had.pod} are free")
            self._wake()


def serving_node_hook(path: str, hook: NodeHook) -> AbstractAsyncContextManager[object]:
    """Serve it on a socket. An existing socket is replaced if nobody answers there.

    Raises:
        PLUGIN_SOCKET_IN_USE, PLUGIN_SOCKET_NOT_MADE: it isn't served.
    """
    return serving(path, [hook], *_SOCKET_ERRORS, drain_seconds=DRAIN_SECONDS)
