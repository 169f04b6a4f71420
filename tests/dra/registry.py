"""The kubelet's look at plugins_registry: which drivers there are."""

from __future__ import annotations

import os
import stat
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc

from tests.dra import wire
from tests.dra.plugins import OPTIONS, Pace, Plugin

KNOWN = ("v1.DRAPlugin", "v1beta1.DRAPlugin")
"""The services that this kubelet calls."""
SOCKET_PATH_BYTES = 107


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
        channel = grpc.insecure_channel(f"unix:{path}", OPTIONS)
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
