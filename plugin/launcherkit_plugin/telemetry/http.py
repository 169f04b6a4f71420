"""``/metrics``, ``/healthz`` and ``/readyz`` over HTTP, in the daemon's own loop: where that hangs, probes fail.

HTTP as far as a scraper and a probe speak it: one GET a connection. Whoever reaches the port can send anything, so a
connection has few bytes and seconds, and of too many the oldest goes.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import NamedTuple

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

from launcherkit_plugin.model.errors import NoMetricsAddress
from launcherkit_plugin.telemetry.health import Health

_SECONDS = 5.0
"""For a whole connection."""
_REQUEST_BYTES = 16 * 1024
_CONNECTIONS = 16
_TEXT = "text/plain; charset=utf-8"


class Answer(NamedTuple):
    status: str
    body: bytes
    content_type: str = _TEXT


@asynccontextmanager
async def serving(address: str, registry: CollectorRegistry, health: Health) -> AsyncIterator[str]:
    """Serve while the block runs; gives ``HOST:PORT``, with the port that was chosen where 0 was asked for.

    Args:
        address: ``HOST:PORT``, ``[::1]:PORT``, or ``:PORT`` for every address.

    Raises:
        NoMetricsAddress: it is no address, or can't be had.
    """
    host, port = parse_address(address)
    connections = _Connections(registry, health)
    try:
        server = await asyncio.start_server(connections.serve, host or None, port, limit=_REQUEST_BYTES)
    except (OSError, UnicodeError) as problem:
        reason = problem.strerror if isinstance(problem, OSError) and problem.strerror else str(problem)
        raise NoMetricsAddress(
            f"--metrics-address {address}: {reason}", "Give an address of this host, and a port that nobody has."
        ) from problem
    try:
        yield _spelled(server.sockets[0])
    finally:
        server.close()
        connections.close()
        await server.wait_closed()


def parse_address(address: str) -> tuple[str, int]:
    """Host, empty for every address, and port.

    Raises:
        NoMetricsAddress: it is not of the form that `serving` takes.
    """
    host, colon, port = address.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    bare = host[1:-1] if bracketed else host
    if not colon or not (port.isascii() and port.isdigit() and int(port) < 65536) or (":" in bare and not bracketed):
        raise NoMetricsAddress(
            f"--metrics-address {address!r} is not HOST:PORT", "Say :8080, 127.0.0.1:8080 or [::1]:8080."
        )
    return bare, int(port)


def _spelled(bound: socket.socket) -> str:
    host, port = bound.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def answer(request: bytes, registry: CollectorRegistry, health: Health) -> Answer:
    """What a request, up to its empty line, is answered with."""
    line, *headers = request.decode("latin-1").split("\r\n")
    match line.split(" "):
        case ["GET", target, "HTTP/1.0" | "HTTP/1.1"]:
            path = target.partition("?")[0]
        case [_, _, "HTTP/1.0" | "HTTP/1.1"]:
            return Answer("405 Method Not Allowed", b"only GET\n")
        case _:
            return Answer("400 Bad Request", b"that is no HTTP\n")
    if path == "/metrics":
        encode, content_type = choose_encoder(_accept(headers))
        return Answer("200 OK", encode(registry), content_type)
    if path == "/healthz":
        return _probed(health.illness())
    if path == "/readyz":
        return _probed(health.unreadiness())
    return Answer("404 Not Found", b"there are /metrics, /healthz and /readyz\n")


def _accept(headers: list[str]) -> str:
    """The versions of the format that the scraper reads."""
    pairs = (header.partition(":") for header in headers)
    return next((value.strip() for name, _, value in pairs if name.lower() == "accept"), "")


def _probed(problem: str) -> Answer:
    return Answer("503 Service Unavailable", f"{problem}\n".encode()) if problem else Answer("200 OK", b"ok\n")


class _Connections:
    """Those that are open, the oldest first."""

    def __init__(self, registry: CollectorRegistry, health: Health) -> None:
        self._registry = registry
        self._health = health
        self._open: dict[asyncio.StreamWriter, None] = {}

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One request, one answer, the end."""
        while len(self._open) >= _CONNECTIONS:
            oldest = next(iter(self._open))
            del self._open[oldest]
            oldest.transport.abort()
        self._open[writer] = None
        try:
            # What goes wrong here is the client's: it went away, took too long, or said too much.
            with suppress(OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
                async with asyncio.timeout(_SECONDS):
                    request = await reader.readuntil(b"\r\n\r\n")
                    writer.write(_in_http(answer(request, self._registry, self._health)))
                    await writer.drain()
                    writer.close()
                    await writer.wait_closed()
        finally:
            self._open.pop(writer, None)
            writer.transport.abort()

    def close(self) -> None:
        """End them all."""
        for writer in list(self._open):
            writer.transport.abort()


def _in_http(given: Answer) -> bytes:
    head = (
        f"HTTP/1.1 {given.status}\r\nContent-Type: {given.content_type}\r\nContent-Length: {len(given.body)}\r\n"
        "X-Content-Type-Options: nosniff\r\nConnection: close\r\n\r\n"
    )
    return head.encode("latin-1") + given.body
