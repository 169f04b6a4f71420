"""The kubelet's connection to a driver, and at what pace it does things."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple

import grpc

from tests.dra import wire


class Pace(NamedTuple):
    """The kubelet's own times, in seconds; a test takes a part of them."""

    deadline: float = 45.0
    """Of a call of Prepare or Unprepare."""
    again: float = 6.0
    """After which it is tried again."""
    lost: float = 30.0
    """From the end of a driver's last connection until its slices are deleted."""
    watch: float = 5.0
    """From a failed call of NodeWatchResources to the next."""
    scan: float = 0.4
    """Between two looks at the folder."""
    register: float = 1.0
    """Before a registration that has failed is tried again."""

    def scaled(self, factor: float) -> Pace:
        """All of it longer or shorter, by a factor."""
        return Pace._make(value * factor for value in self)


class CallFailed(Exception):
    """A call of a driver has failed: with the status, or because it isn't there."""

    def __init__(self, text: str, *, late: bool = False) -> None:
        super().__init__(text)
        self.late = late


OPTIONS = [
    ("grpc.use_local_subchannel_pool", 1),  # else a connection outlives its channel, and the next one gets it
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
]


class Plugin:
    """A registered driver: the connection to its ``dra.sock``."""

    def __init__(self, driver: str, endpoint: str, service: str, changed: Callable[[], None]) -> None:
        """``changed`` is called when the connection comes or goes."""
        self.driver = driver
        self.endpoint = endpoint
        self.version = service.partition(".")[0]
        self.connected = True
        self.health: dict[str, tuple[int, str]] = {}
        """By device: what the last message of NodeWatchResources says, and its text."""
        self.health_lists = 0
        self._changed = changed
        self._closed = threading.Event()
        self._channel = grpc.insecure_channel(f"unix:{endpoint}", OPTIONS)
        self._channel.subscribe(self._told, try_to_connect=True)
        self._stream: Any = None

    def call(self, method: str, claims: list[tuple[str, str, str]], seconds: float) -> dict[str, Any]:
        """NodePrepareResources or NodeUnprepareResources; the answers by the claims' UIDs.

        Args:
            claims: namespace, name and UID of each.

        Raises:
            CallFailed: the driver is away, says no, or takes longer.
        """
        package = f"{wire.DRA}.{self.version}"
        claim = wire.message(package, "Claim")
        request = wire.message(package, f"{method}Request")(
            claims=[claim(namespace=namespace, name=name, uid=uid) for namespace, name, uid in claims]
        )
        stub = self._channel.unary_unary(
            f"/{package}.DRAPlugin/{method}",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=wire.message(package, f"{method}Response").FromString,
        )
        try:
            answer = stub(request, timeout=seconds)
        except grpc.RpcError as refusal:
            late = refusal.code() is grpc.StatusCode.DEADLINE_EXCEEDED
            raise CallFailed(f"{refusal.code().name}: {refusal.details()}", late=late) from refusal
        except ValueError as closed:  # the kubelet was stopped in between
            raise CallFailed(str(closed)) from closed
        return {entry.key: entry.value for entry in answer.claims}

    def watch_health(self, pause: float) -> None:
        """Call NodeWatchResources for ever, whatever the driver has declared."""
        threading.Thread(target=self._watch_health, args=(pause,), daemon=True).start()

    def _watch_health(self, pause: float) -> None:
        stub = self._channel.unary_stream(
            "/v1alpha1.DRAResourceHealth/NodeWatchResources",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=wire.message("v1alpha1", "NodeWatchResourcesResponse").FromString,
        )
        request = wire.message("v1alpha1", "NodeWatchResourcesRequest")()
        while not self._closed.is_set():
            with suppress(grpc.RpcError, ValueError):
                self._stream = stub(request)
                for answer in self._stream:
                    self.health = {
                        one.device.device_name: (one.health, one.message)
                        for one in answer.devices
                        if one.device.pool_name
                    }
                    self.health_lists += 1
                    self._changed()
            self._closed.wait(pause)

    def _told(self, state: grpc.ChannelConnectivity) -> None:
        ready = state is grpc.ChannelConnectivity.READY
        lost = state in (grpc.ChannelConnectivity.TRANSIENT_FAILURE, grpc.ChannelConnectivity.IDLE)
        if not self._closed.is_set() and (ready or lost) and self.connected != ready:
            self.connected = ready
            self._changed()

    def close(self) -> None:
        self._closed.set()
        self.connected = False
        if self._stream is not None:
            self._stream.cancel()
        self._channel.unsubscribe(self._told)
        while self._channel._connectivity_state.polling:  # closed before that ends, it raises in a thread of gRPC's
            time.sleep(0.01)
        self._channel.close()
