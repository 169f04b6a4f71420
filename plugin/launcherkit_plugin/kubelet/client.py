"""Calls of the kubelet: registration of a resource (v1beta1), and PodResources, who holds which device."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, NamedTuple, TypeVar

from google.protobuf.message import DecodeError
from grpclib import GRPCError
from grpclib.client import Channel, Stream
from grpclib.exceptions import ProtocolError, StreamTerminatedError

from launcherkit.rpc.methods import call, opened
from launcherkit_plugin.kubelet import messages
from launcherkit_plugin.kubelet.proto import deviceplugin_v1beta1_pb2 as wire
from launcherkit_plugin.kubelet.proto import podresources_v1_pb2 as podresources
from launcherkit_plugin.kubelet.proto.podresources_v1_pb2 import ListPodResourcesRequest, ListPodResourcesResponse
from launcherkit_plugin.model.device import Holder, Resource
from launcherkit_plugin.model.errors import NoKubelet, RegistrationRefused, UsageUnreadable

T = TypeVar("T")

REGISTER = wire.DESCRIPTOR.services_by_name["Registration"].methods_by_name["Register"]
LIST = podresources.DESCRIPTOR.services_by_name["PodResourcesLister"].methods_by_name["List"]

KUBELET_SOCKET = "kubelet.sock"
ANSWER_SECONDS = 10.0
ANSWER_BYTES = 16 << 20
"""The largest answer, as the kubelet's own clients have it: some 100,000 devices."""


def unix_channel(path: str) -> Channel:
    """A channel to a unix socket; connects when it is first used."""
    return _UnixChannel(path=path)


class _UnixChannel(Channel):
    """grpclib says ``127.0.0.1:50051`` where it dials a socket; Go's own clients say ``localhost``."""

    def _get_authority(self, host: str, port: int) -> str:  # noqa: ARG002  # of grpclib
        return "localhost"


async def register(folder: str, resource: Resource) -> None:
    """Register a resource. Its socket must listen: the kubelet dials it at once.

    Args:
        folder: of the device plugins' sockets.
        resource: its name, socket and options.

    Raises:
        NoKubelet: nobody answers.
        RegistrationRefused: the kubelet says why.
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
        await _in_a_task(call(channel, REGISTER, request, timeout=ANSWER_SECONDS))
    except GRPCError as refusal:
        raise RegistrationRefused(
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


async def _in_a_task(call: Coroutine[Any, Any, T]) -> T:
    """A call in a task of its own, which is what grpclib cancels when it loses the connection.

    It doesn't take that back. Up to Python 3.11.2, Debian 12's, the caller's next `asyncio.timeout` would take it
    for a cancellation of the caller, whose task would end without a word.
    """
    return await asyncio.create_task(call)


def no_kubelet(path: str, why: str) -> NoKubelet:
    """The error where nobody answers at the kubelet's socket."""
    return NoKubelet(
        f"{path}: no kubelet answers there: {why}",
        "The plugin waits for it. If it runs: mount its folder device-plugins, and give the parent with --kubelet-dir.",
        file=path,
    )


class PodDevices(NamedTuple):
    """What the kubelet says."""

    pods: frozenset[str]
    """All that it knows, with devices or not: ``namespace/name``."""
    held: dict[str, dict[str, Holder]]
    """By resource and device ID."""


async def list_pod_devices(socket: str, seconds: float = ANSWER_SECONDS) -> PodDevices:
    """Ask the kubelet.

    Args:
        socket: path of ``pod-resources/kubelet.sock``.
        seconds: the longest to wait for the whole answer.

    Raises:
        UsageUnreadable: it isn't there, doesn't answer, or answers what can't be read.
    """
    channel = unix_channel(socket)
    try:
        async with asyncio.timeout(seconds):
            return _pod_devices(await _in_a_task(_list(channel)))
    except TimeoutError:
        raise _unreadable(socket, f"no answer within {seconds:g} s") from None
    except OSError as problem:
        raise _unreadable(socket, problem.strerror or str(problem)) from problem
    except GRPCError as refused:
        raise _unreadable(socket, f"the kubelet says {refused.status.name}: {refused.message}") from refused
    except AssertionError as short:  # grpclib's way to say that the stream ended before
        raise _unreadable(socket, "the answer is cut off") from short
    except (DecodeError, ProtocolError, StreamTerminatedError, ValueError) as broken:
        raise _unreadable(socket, f"the answer can't be read: {type(broken).__name__} {broken}") from broken
    finally:
        channel.close()


async def _list(channel: Channel) -> ListPodResourcesResponse:
    async with opened(channel, LIST) as stream:
        await stream.send_message(ListPodResourcesRequest(), end=True)
        return ListPodResourcesResponse.FromString(await _message(stream))


async def _message(stream: Stream[ListPodResourcesRequest, ListPodResourcesResponse]) -> bytes:
    """The bytes of the one message; grpclib itself reads whatever length the other side says."""
    await stream.recv_initial_metadata()
    arriving = stream._stream  # the only way to see the length before the message is read
    head = await arriving.recv_data(5)
    if len(head) == 5 and not head[0]:
        length = int.from_bytes(head[1:], "big")
        if length > ANSWER_BYTES:
            raise ValueError(f"it has {length} bytes, the limit is {ANSWER_BYTES}")
        return await arriving.recv_data(length)
    await stream.recv_trailing_metadata()  # an error of the kubelet's comes here
    raise ValueError("it has no message")


def _pod_devices(answer: ListPodResourcesResponse) -> PodDevices:
    pods: set[str] = set()
    held: dict[str, dict[str, Holder]] = {}
    for pod in answer.pod_resources:
        name = f"{pod.namespace}/{pod.name}"
        pods.add(name)
        for container in pod.containers:
            holder = Holder(name, container.name)
            for devices in container.devices:
                # An entry a NUMA node: a resource may come several times.
                held.setdefault(devices.resource_name, {}).update(dict.fromkeys(devices.device_ids, holder))
    return PodDevices(frozenset(pods), held)


def _unreadable(socket: str, why: str) -> UsageUnreadable:
    return UsageUnreadable(
        f"{socket}: {why}",
        "The kubelet serves PodResources there since 1.20; mount /var/lib/kubelet/pod-resources into the container, "
        "or give its path with --pod-resources.",
        file=socket,
    )
