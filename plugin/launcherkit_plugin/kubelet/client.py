"""Calls to the kubelet: registration of a resource (v1beta1), and PodResources: which pod holds which device."""

from __future__ import annotations

from typing import NamedTuple

from grpclib import GRPCError
from grpclib.exceptions import ProtocolError, StreamTerminatedError

from launcherkit.errors import UsageUnknown
from launcherkit.rpc.client import ANSWER_SECONDS, in_a_task, list_pods, unix_channel
from launcherkit.rpc.methods import call
from launcherkit.rpc.proto.podresources_v1_pb2 import ListPodResourcesResponse
from launcherkit_plugin.kubelet import messages
from launcherkit_plugin.kubelet.proto import deviceplugin_v1beta1_pb2 as wire
from launcherkit_plugin.model.device import Holder, Resource
from launcherkit_plugin.model.errors import NO_KUBELET, REGISTRATION_REFUSED, USAGE_UNREADABLE, NoKubelet

REGISTER = wire.DESCRIPTOR.services_by_name["Registration"].methods_by_name["Register"]

KUBELET_SOCKET = "kubelet.sock"


async def register(folder: str, resource: Resource) -> None:
    """Register a resource. Its socket must be listening: the kubelet connects to it at once.

    Args:
        folder: the folder of the device plugins' sockets.
        resource: its name, socket and options.

    Raises:
        NoKubelet: nobody answers.
        REGISTRATION_REFUSED: the kubelet refuses it, and says why.
    """
    path = f"{folder}/{KUBELET_SOCKET}"
    channel = unix_channel(path)
    request = wire.RegisterRequest(
        version=messages.VERSION,
        endpoint=resource.socket,
        resource_name=resource.name,
        options=messages.options(resource),
    )
    try:
        await in_a_task(call(channel, REGISTER, request, timeout=ANSWER_SECONDS))
    except GRPCError as refusal:
        raise REGISTRATION_REFUSED(
            f"{path}: the kubelet refuses {resource.name}: {refusal.message or refusal.status.name}",
            "See the kubelet's log. It accepts v1beta1 since Kubernetes 1.10.",
            resource=resource.name,
            file=path,
        ) from refusal
    except TimeoutError as late:
        raise no_kubelet(path, f"no answer within {ANSWER_SECONDS:.0f} s") from late
    except (OSError, StreamTerminatedError, ProtocolError) as gone:
        reason = gone.strerror if isinstance(gone, OSError) else None
        raise no_kubelet(path, reason or "the connection was closed") from gone
    finally:
        channel.close()


def no_kubelet(path: str, reason: str) -> NoKubelet:
    """The error if nobody answers at the kubelet's socket."""
    return NO_KUBELET(
        f"{path}: no kubelet answers there: {reason}",
        "The plugin waits for it. If it runs: mount its folder device-plugins, and give the parent with --kubelet-dir.",
        file=path,
    )


class PodDevices(NamedTuple):
    """The kubelet's answer."""

    pods: frozenset[str]
    """All pods that it knows, with or without devices: ``namespace/name``."""
    held: dict[str, dict[str, Holder]]
    """By resource and device ID."""


async def list_pod_devices(socket: str, seconds: float = ANSWER_SECONDS) -> PodDevices:
    """Ask the kubelet which pod holds which device.

    Args:
        socket: the path of ``pod-resources/kubelet.sock``.
        seconds: how long to wait for the whole answer.

    Raises:
        USAGE_UNREADABLE: there is no such socket, nobody answers, or the answer can't be read.
    """
    try:
        return _pod_devices(await list_pods(socket, seconds))
    except UsageUnknown as problem:
        raise USAGE_UNREADABLE(
            problem.message,
            "The kubelet serves PodResources there since 1.20; mount /var/lib/kubelet/pod-resources into the "
            "container, or give its path with --pod-resources.",
            file=socket,
        ) from problem


def _pod_devices(answer: ListPodResourcesResponse) -> PodDevices:
    pods: set[str] = set()
    held: dict[str, dict[str, Holder]] = {}
    for pod in answer.pod_resources:
        name = f"{pod.namespace}/{pod.name}"
        pods.add(name)
        for container in pod.containers:
            holder = Holder(name, container.name)
            for devices in container.devices:
                # There is an entry for each NUMA node, so a resource may occur several times.
                held.setdefault(devices.resource_name, {}).update(dict.fromkeys(devices.device_ids, holder))
    return PodDevices(frozenset(pods), held)
