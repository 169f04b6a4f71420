"""A client's channel to a unix socket."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar, cast

from google.protobuf.message import DecodeError
from grpclib import GRPCError
from grpclib.client import Channel, Handler, Stream
from grpclib.exceptions import ProtocolError, StreamTerminatedError
from grpclib.protocol import H2Protocol

from launcherkit.errors import POD_RESOURCES_UNREADABLE, UsageUnknown
from launcherkit.rpc.connection import read_little
from launcherkit.rpc.methods import opened
from launcherkit.rpc.proto import podresources_v1_pb2 as wire
from launcherkit.rpc.proto.podresources_v1_pb2 import ListPodResourcesRequest, ListPodResourcesResponse

T = TypeVar("T")

OVERHEAD_BYTES = 64 * 1024
"""What a server may send that belongs to no message, such as headers and pings. 16 MiB have 10 KB."""


def unix_channel(path: str) -> Channel:
    """A channel to a unix socket; it connects on first use."""
    return _UnixChannel(path=path)


class _UnixChannel(Channel):
    """Has the authority ``localhost``, as Go's clients do; grpclib's is ``127.0.0.1:50051`` even for a unix socket."""

    def _get_authority(self, host: str, port: int) -> str:  # noqa: ARG002  # of grpclib
        return "localhost"

    def _protocol_factory(self) -> H2Protocol:
        return _BoundedClient(Handler(), self._config, self._h2_config)


class _BoundedClient(H2Protocol):
    """A connection to a server that may send without end: others have their turn, and it is closed after a while."""

    _read = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See asyncio."""
        read_little(transport)
        self._abort = cast("asyncio.Transport", transport).abort
        super().connection_made(transport)

    def data_received(self, data: bytes) -> None:
        """See asyncio."""
        self._read += len(data)
        super().data_received(data)
        if self._read - self.connection.data_received > OVERHEAD_BYTES:
            self._abort()


async def in_a_task(call: Coroutine[Any, Any, T]) -> T:
    """Run a call in a task of its own, which grpclib cancels when it loses the connection.

    grpclib doesn't undo the cancellation. Up to Python 3.11.2, Debian 12's, the caller's next `asyncio.timeout` would
    take it for a cancellation of the caller, whose task would end silently.
    """
    return await asyncio.create_task(call)


# The kubelet's PodResources: which pod holds which device.


LIST = wire.DESCRIPTOR.services_by_name["PodResourcesLister"].methods_by_name["List"]
ANSWER_SECONDS = 10.0
ANSWER_BYTES = 16 << 20
"""The largest answer, in bytes, as in the kubelet's own clients: some 100,000 devices."""


async def list_pods(socket: str, seconds: float = ANSWER_SECONDS) -> ListPodResourcesResponse:
    """Ask the kubelet for all pods with their devices.

    Args:
        socket: path of ``pod-resources/kubelet.sock``.
        seconds: the longest wait for the whole answer.

    Raises:
        POD_RESOURCES_UNREADABLE: the kubelet doesn't answer, refuses, or its answer can't be read.
    """
    channel = unix_channel(socket)
    try:
        async with asyncio.timeout(seconds):
            return await in_a_task(_list(channel))
    except TimeoutError:
        raise _unreadable(socket, f"no answer within {seconds:g} s") from None
    except OSError as problem:
        raise _unreadable(socket, problem.strerror or str(problem)) from problem
    except GRPCError as refused:
        raise _unreadable(socket, f"the kubelet says {refused.status.name}: {refused.message}") from refused
    except AssertionError as short:  # grpclib raises it if the stream ends early
        raise _unreadable(socket, "the answer is cut off") from short
    except (DecodeError, ProtocolError, StreamTerminatedError, ValueError) as broken:
        raise _unreadable(socket, f"the answer can't be read: {broken}") from broken
    finally:
        channel.close()


async def _list(channel: Channel) -> ListPodResourcesResponse:
    async with opened(channel, LIST) as stream:
        await stream.send_message(ListPodResourcesRequest(), end=True)
        return ListPodResourcesResponse.FromString(await _message(stream))


async def _message(stream: Stream[ListPodResourcesRequest, ListPodResourcesResponse]) -> bytes:
    """The bytes of the only message; grpclib itself would read any declared length."""
    await stream.recv_initial_metadata()
    arriving = stream._stream  # the only way to see the length before the message is read
    head = await arriving.recv_data(5)
    if len(head) == 5 and not head[0]:
        length = int.from_bytes(head[1:], "big")
        if length > ANSWER_BYTES:
            raise ValueError(f"it has {length} bytes, the limit is {ANSWER_BYTES}")
        return await arriving.recv_data(length)
    await stream.recv_trailing_metadata()  # raises the kubelet's errors
    raise ValueError("it has no message")


def _unreadable(socket: str, reason: str) -> UsageUnknown:
    return POD_RESOURCES_UNREADABLE(
        f"{socket}: {reason}",
        "The kubelet serves PodResources there since 1.20, only for root: run this as root, or give the socket's path "
        "with --kubelet-socket.",
        file=socket,
    )
