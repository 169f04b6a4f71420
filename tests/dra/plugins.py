"""The kubelet's look at plugins_registry: which drivers there are, and the connections to them."""

from __future__ import annotations

import os
import stat
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import grpc

from tests.dra import wire

KNOWN = ("v1.DRAPlugin", "v1beta1.DRAPlugin")
"""The services that this kubelet calls."""
SOCKET_PATH_BYTES = 107


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
        self._channel = grpc.insecure_channel(f"unix:{endpoint}", _OPTIONS)
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
        self._channel.close()


class Registry:
    """Watches the folder in a thread; a socket that appears is registered, one that goes is forgotten.

    Args:
        folder: ``plugins_registry``.
        register: takes a driver's connection.
        forget: takes it away.
        changed: called when a connection comes or goes.
    """

    def __init__(
        self,
        folder: Path,
        pace: Pace,
        *,
        register: Callable[[Plugin], None],
        forget: Callable[[Plugin], None],
        changed: Callable[[], None],
    ) -> None:
        self._folder = folder
        self._pace = pace
        self._register = register
        self._forget = forget
        self._changed = changed
        self._ending = threading.Event()
        self._seen: dict[Path, tuple[int, int]] = {}
        self._plugins: dict[Path, Plugin] = {}
        self._notified = 0
        self.refused: list[str] = []
        """Why registrations were refused; each is tried again and again."""
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def close(self) -> None:
        """Look no more; what is registered stays with whom it was given to."""
        self._ending.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._ending.wait(self._pace.scan):
            there = dict(_sockets(self._folder))
            for path in [path for path, identity in self._seen.items() if there.get(path) != identity]:
                del self._seen[path]
                if path in self._plugins:
                    self._forget(self._plugins.pop(path))
            for path, identity in there.items():
                if path not in self._seen and self._try(path):
                    self._seen[path] = identity

    def _try(self, path: Path) -> bool:
        """Register what serves on a socket. True: it need not be tried again."""
        channel = grpc.insecure_channel(f"unix:{path}", _OPTIONS)
        try:
            info = _ask(channel, "GetInfo", wire.message(wire.REGISTRATION, "InfoRequest")())
            if wrong := _wrong_in(info, path):
                self.refused.append(f"{path.name}: {wrong}")
                self._notify(channel, wrong)
                self._ending.wait(self._pace.register)
                return False
            service = next(name for name in info.supported_versions if name in KNOWN)
            plugin = Plugin(info.name, info.endpoint, service, self._changed)
            # The real one does both at once: either may come first.
            first, then = (plugin.watch_health, self._pace.watch), (self._notify, channel, "")
            for call, *arguments in (first, then) if self._notified % 2 else (then, first):
                call(*arguments)
        except grpc.RpcError as problem:
            self.refused.append(f"{path.name}: {problem.code().name}: {problem.details()}")
            self._ending.wait(self._pace.register)
            return False
        finally:
            channel.close()
        self._plugins[path] = plugin
        self._register(plugin)
        return True

    def _notify(self, channel: Any, error: str) -> None:
        self._notified += 1
        status = wire.message(wire.REGISTRATION, "RegistrationStatus")
        _ask(channel, "NotifyRegistrationStatus", status(plugin_registered=not error, error=error))


_OPTIONS = [
    ("grpc.use_local_subchannel_pool", 1),  # else a connection outlives its channel, and the next one gets it
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
]
_ANSWERS = {"GetInfo": "PluginInfo", "NotifyRegistrationStatus": "RegistrationStatusResponse"}
_DIAL_SECONDS = 10.0


def _ask(channel: Any, method: str, request: Any) -> Any:
    stub = channel.unary_unary(
        f"/pluginregistration.Registration/{method}",
        request_serializer=lambda message: message.SerializeToString(),
        response_deserializer=wire.message(wire.REGISTRATION, _ANSWERS[method]).FromString,
    )
    return stub(request, timeout=_DIAL_SECONDS)


def _wrong_in(info: Any, path: Path) -> str:
    if info.type != "DRAPlugin":
        return f"no handler registered for plugin type: {info.type} at socket {path}"
    if not info.name or len(info.name) > 63:
        return f"invalid driver name {info.name!r}"
    if not info.endpoint.startswith("/") or len(info.endpoint.encode()) > SOCKET_PATH_BYTES:
        return f"invalid endpoint {info.endpoint!r}"
    if not set(KNOWN) & set(info.supported_versions):
        return f"could not find a supported service, got {list(info.supported_versions)}, want one of {KNOWN}"
    return ""


def _sockets(folder: Path) -> Iterator[tuple[Path, tuple[int, int]]]:
    """Each socket below a folder, and what tells it from a later one of its name."""
    for place, _, names in os.walk(folder):
        for name in names:
            path = Path(place, name)
            with suppress(FileNotFoundError):
                found = path.lstat()
                if stat.S_ISSOCK(found.st_mode) and not name.startswith("."):
                    yield path, (found.st_ino, found.st_ctime_ns)
