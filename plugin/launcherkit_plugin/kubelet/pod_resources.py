"""PodResources: the kubelet's own answer to who holds which device."""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from google.protobuf.message import DecodeError
from grpclib.client import Channel, Stream
from grpclib.exceptions import GRPCError, ProtocolError, StreamTerminatedError

from launcherkit_plugin.kubelet.channel import unix_channel
from launcherkit_plugin.kubelet.proto.podresources_v1_grpc import PodResourcesListerStub
from launcherkit_plugin.kubelet.proto.podresources_v1_pb2 import ListPodResourcesRequest, ListPodResourcesResponse
from launcherkit_plugin.model.errors import UsageUnreadable
from launcherkit_plugin.model.usage import Holder

ANSWER_BYTES = 16 << 20
"""The largest answer, as the kubelet's own clients have it: some 100,000 devices."""

ANSWER_SECONDS = 10.0


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
            return _pod_devices(await _list(channel))
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
    async with PodResourcesListerStub(channel).List.open() as stream:
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
        "The kubelet serves PodResources there from 1.20 on; mount /var/lib/kubelet/pod-resources into the container, "
        "or give the place with --pod-resources.",
    )
