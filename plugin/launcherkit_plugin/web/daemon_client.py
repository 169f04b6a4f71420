"""Asks the daemon, over its unix socket."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing

import h11

from launcherkit_plugin.http.response import Response

_SECONDS = 8.0
"""How long an answer may take; a drawing of the page takes longest. The client's connection has 10."""
_SILENCE = 45.0
"""After so long without a part a stream has ended: the daemon sends one every 15 s."""
_READ = 64 << 10
_OURS = {"connection", "content-length", "content-type", "server", "transfer-encoding", "x-content-type-options"}
"""Headers that are set anew where an answer is passed on."""


class DaemonClient:
    """The daemon.

    Args:
        path: of its socket.
    """

    def __init__(self, path: str) -> None:
        self._path = path

    async def get(self, path: str, headers: Mapping[str, str] | None = None) -> Response:
        """Its answer; 503 if there is none."""
        body = bytearray()
        try:
            async with asyncio.timeout(_SECONDS), aclosing(self._events(path, headers or {})) as events:
                head = await anext(events)
                async for event in events:
                    body += event.data if isinstance(event, h11.Data) else b""
        except (OSError, h11.RemoteProtocolError) as problem:
            reason = getattr(problem, "strerror", None) or str(problem) or f"nothing within {_SECONDS:g} s"
            return Response(503, f"{self._path}: the daemon doesn't answer: {reason}\n".encode())
        assert isinstance(head, h11.Response)
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in head.headers}
        passed = tuple((name, value) for name, value in headers.items() if name not in _OURS)
        return Response(head.status_code, bytes(body), headers["content-type"], passed)

    async def follow(self, path: str) -> AsyncGenerator[bytes, None]:
        """The parts of a stream, until it ends.

        Raises:
            OSError, h11.RemoteProtocolError: the daemon doesn't answer, or is gone.
        """
        async with aclosing(self._events(path, {})) as events:
            while True:
                async with asyncio.timeout(_SILENCE):
                    event = await anext(events, None)
                if event is None:
                    return
                if isinstance(event, h11.Data):
                    yield bytes(event.data)

    async def _events(self, path: str, headers: Mapping[str, str]) -> AsyncGenerator[object, None]:
        """An answer's head and the parts of its body."""
        loop = asyncio.get_running_loop()
        http = h11.Connection(h11.CLIENT)
        request = h11.Request(method="GET", target=path, headers=[("Host", "daemon"), *headers.items()])
        with socket.socket(socket.AF_UNIX) as daemon:
            daemon.setblocking(False)
            await loop.sock_connect(daemon, self._path)
            await loop.sock_sendall(daemon, b"".join(filter(None, map(http.send, (request, h11.EndOfMessage())))))
            while not isinstance(event := http.next_event(), h11.EndOfMessage):
                if event is h11.NEED_DATA:
                    http.receive_data(await loop.sock_recv(daemon, _READ))
                else:
                    yield event
