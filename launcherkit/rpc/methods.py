"""Serves and calls the methods of gRPC services, by the modules generated from their ``.proto`` files.

Besides the messages, a generated module ``NAME_pb2`` describes each service: the paths of its methods, their types, and
which side streams. So the classes that grpclib's own generator writes for each service aren't needed.
"""

from __future__ import annotations

from typing import Any, ClassVar

from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from grpclib.client import Channel, Stream
from grpclib.const import Cardinality, Handler


class Servicer:
    """Answers the calls of a service; a subclass has a coroutine for each method of the service, with the same name.

    A coroutine's argument is a `grpclib.server.Stream`.
    """

    service: ClassVar[ServiceDescriptor]
    """``NAME_pb2.DESCRIPTOR.services_by_name["Service"]``."""

    def __mapping__(self) -> dict[str, Handler]:
        """The methods by path, for grpclib's server.

        Raises:
            AttributeError: the subclass lacks a method.
        """
        return {_path(method): Handler(getattr(self, method.name), *_shape(method)) for method in self.service.methods}


async def call(channel: Channel, method: MethodDescriptor, request: Message, *, timeout: float | None = None) -> Any:
    """Call a method with one message each way; returns the answer.

    Args:
        channel: to the server.
        method: ``service.methods_by_name["Method"]``.
        request: a message of the method's type.
        timeout: seconds, for the whole call.

    Raises:
        GRPCError: the server refuses.
        TimeoutError, OSError, grpclib.exceptions.StreamTerminatedError: no answer comes.
    """
    async with opened(channel, method, timeout=timeout) as stream:
        await stream.send_message(request, end=True)
        answer = await stream.recv_message()
    assert answer is not None
    return answer


def opened(channel: Channel, method: MethodDescriptor, *, timeout: float | None = None) -> Stream[Any, Any]:
    """A call of any method, as a context manager: nothing is sent before it is entered. Arguments as for `call`."""
    return channel.request(_path(method), *_shape(method), timeout=timeout)


def _path(method: MethodDescriptor) -> str:
    return f"/{method.containing_service.full_name}/{method.name}"


def _shape(method: MethodDescriptor) -> tuple[Cardinality, type[Message], type[Message]]:
    cardinality = Cardinality((method.client_streaming, method.server_streaming))  # type: ignore[call-arg]  # an enum of pairs
    return cardinality, GetMessageClass(method.input_type), GetMessageClass(method.output_type)
