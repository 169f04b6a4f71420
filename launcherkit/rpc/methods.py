"""The methods of gRPC services, served and called by what is generated of their ``.proto`` files.

A generated module ``NAME_pb2`` has, beside the messages, each service's description: the paths of its methods, their
types, and which side streams. So it takes none of the classes that grpclib's own generator would write for each.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from google.protobuf.message_factory import GetMessageClass
from grpclib.const import Cardinality, Handler

if TYPE_CHECKING:
    from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor
    from google.protobuf.message import Message
    from grpclib.client import Channel, Stream


class Servicer:
    """Answers the calls of a service: a subclass has a coroutine method for each of the service's, by its name.

    Its argument is a `grpclib.server.Stream`.
    """

    service: ClassVar[ServiceDescriptor]
    """``NAME_pb2.DESCRIPTOR.services_by_name["Service"]``."""

    def __mapping__(self) -> dict[str, Handler]:
        """The methods by path, for grpclib's server.

        Raises:
            AttributeError: the subclass lacks one.
        """
        return {_path(method): Handler(getattr(self, method.name), *_shape(method)) for method in self.service.methods}


async def call(channel: Channel, method: MethodDescriptor, request: Message, *, timeout: float | None = None) -> Any:
    """Call a method of one message each way; gives the answer.

    Args:
        channel: to the server.
        method: ``service.methods_by_name["Method"]``.
        request: of the method's type.
        timeout: seconds, for the whole call.

    Raises:
        GRPCError: the server refuses.
        TimeoutError, OSError, grpclib.exceptions.StreamTerminatedError: there is no answer.
    """
    async with opened(channel, method, timeout=timeout) as stream:
        await stream.send_message(request, end=True)
        answer = await stream.recv_message()
    assert answer is not None
    return answer


def opened(channel: Channel, method: MethodDescriptor, *, timeout: float | None = None) -> Stream[Any, Any]:
    """A call of any method, as a context: nothing is sent before it is entered. The arguments are those of `call`."""
    return channel.request(_path(method), *_shape(method), timeout=timeout)


def _path(method: MethodDescriptor) -> str:
    return f"/{method.containing_service.full_name}/{method.name}"


def _shape(method: MethodDescriptor) -> tuple[Cardinality, type[Message], type[Message]]:
    cardinality = Cardinality((method.client_streaming, method.server_streaming))  # type: ignore[call-arg]  # an enum of pairs
    return cardinality, GetMessageClass(method.input_type), GetMessageClass(method.output_type)
