"""A device plugin's socket, as the kubelet has it: dialled when the plugin registers, watched till one of them goes."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import grpc
from google.protobuf.message import Message

from launcherkit_lab.proto import deviceplugin_v1beta1_pb2 as wire

Answer = TypeVar("Answer", bound=Message)


class NotAdmitted(Exception):
    """The pod is turned away: too few healthy devices, or the plugin has said no."""


class Endpoint:
    """A resource of a plugin.

    Args:
        path: of the plugin's socket.
        patience: seconds for each call.
        changed, left: called from a thread of its own, with each list of devices, and when there will be no more.
    """

    def __init__(
        self,
        path: Path,
        resource: str,
        *,
        patience: float,
        changed: Callable[[Endpoint, wire.ListAndWatchResponse], None],
        left: Callable[[Endpoint], None],
    ) -> None:
        self.resource, self.path = resource, path
        self.options = wire.DevicePluginOptions()
        self.listed: tuple[str, ...] = ()
        self.devices: dict[str, bool] = {}
        self.numa: dict[str, int] = {}
        self.pushes = 0
        self._patience = patience
        self._changed, self._left = changed, left
        self._channel = grpc.insecure_channel(f"unix:{path}", OWN_POOL)
        self._stream: Any = None
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def connect(self) -> None:
        """Dial the plugin and ask for its options, as the kubelet does before it answers the registration.

        Raises:
            NotAdmitted: it doesn't serve there, within ten seconds; the registration fails then.
        """
        deadline = time.monotonic() + min(self._patience, DIAL_SECONDS)
        while not _accepts(self.path):
            if time.monotonic() > deadline:
                self._channel.close()
                raise NotAdmitted(f"failed to dial device plugin: nothing serves at {self.path}")
            time.sleep(_PAUSE)
        try:
            # What it registered with counts no more (kubernetes, pkg/kubelet/cm/devicemanager: connectClient of
            # plugin/v1beta1/handler.go, PluginConnected of manager.go).
            ask = self._stub("GetDevicePluginOptions", wire.DevicePluginOptions)
            self.options = ask(wire.Empty(), timeout=self._patience, wait_for_ready=True)
        except grpc.RpcError as failure:
            self._channel.close()
            raise NotAdmitted(f"failed to get device plugin options: {failure.details()}") from failure

    def start(self) -> None:
        """Ask for the devices, as the kubelet does when it has answered the registration."""
        self._thread.start()

    def call(self, method: str, request: Message, answer: type[Answer]) -> Answer:
        """Call the plugin.

        Raises:
            NotAdmitted: with the plugin's status and message, or because there is no connection.
        """
        try:
            result: Answer = self._stub(method, answer)(request, timeout=self._patience)
        except grpc.RpcError as refusal:
            raise NotAdmitted(f"{refusal.code().name}: {refusal.details()}") from refusal
        except ValueError as closed:  # the kubelet was stopped in between
            raise NotAdmitted(str(closed)) from closed
        return result

    def _stub(self, method: str, answer: type[Answer]) -> Callable[..., Any]:
        return self._channel.unary_unary(  # type: ignore[no-any-return]
            f"/v1beta1.DevicePlugin/{method}", request_serializer=serialized, response_deserializer=answer.FromString
        )

    def _watch(self) -> None:
        try:
            self._stream = self._channel.unary_stream(
                "/v1beta1.DevicePlugin/ListAndWatch",
                request_serializer=serialized,
                response_deserializer=wire.ListAndWatchResponse.FromString,
            )(wire.Empty())
            for response in self._stream:
                self._changed(self, response)
        except (grpc.RpcError, ValueError):
            pass  # it has gone, or we have
        finally:
            self._left(self)

    def close(self) -> None:
        if self._stream is not None:
            self._stream.cancel()
        self._channel.close()
        with suppress(RuntimeError):
            self._thread.join(self._patience)


DIAL_SECONDS = 10.0
"""How long the kubelet waits for a plugin's socket (kubernetes, plugin/v1beta1/client.go)."""

_PAUSE = 0.05
"""Between two looks whether the plugin serves."""


def _accepts(path: Path) -> bool:
    """Whether something listens at a socket."""
    with socket.socket(socket.AF_UNIX) as connection:
        try:
            return connection.connect_ex(str(path)) == 0
        except OSError:  # the path is too long
            return False


OWN_POOL = (("grpc.use_local_subchannel_pool", 1),)
"""Of a channel: else a connection outlives it, and the next channel gets it, or waits because it has failed."""


def serialized(message: Message) -> bytes:
    return message.SerializeToString()
