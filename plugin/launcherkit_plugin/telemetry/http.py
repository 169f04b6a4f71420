"""A small HTTP server in the daemon's own event loop: if the loop hangs, probes fail.

It supports what a scraper, a probe and a browser need: one GET request for each connection. Clients aren't trusted, so
the bytes and seconds of a connection are limited, and if there are too many connections, the oldest is closed. These
limits are separate for each server, so that pods that flood the metrics' server don't affect probes.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import aclosing, asynccontextmanager, suppress
from typing import TypeAlias

from launcherkit.model.value import NamedTuple
from launcherkit.rpc.unix_socket import socket_at
from launcherkit_plugin.model.errors import NoMetricsAddress, NoProbeSocket

_SECONDS = 5.0
"""The time limit for the request, for the response, and for each part of a stream."""
_REQUEST_BYTES = 16 * 1024
_CONNECTIONS = 16
_STREAMS = 16
TEXT = "text/plain; charset=utf-8"


class Response(NamedTuple):
    """What an HTTP request is answered with."""

    status: str
    body: bytes
    content_type: str = TEXT
    headers: tuple[tuple[str, str], ...] = ()
    """More of them."""
    stream: AsyncGenerator[bytes, None] | None = None
    """Follows the body, until it ends."""


Page: TypeAlias = Callable[[Mapping[str, str]], Awaitable[Response]]
"""Makes an answer, by the request's headers; their names are in lower case. One that waits bounds that itself."""


class Served(NamedTuple):
    """The address of a server."""

    where: str
    """``HOST:PORT``."""
    loopback: bool
    """Whether only this host, or this pod, can reach it."""


@asynccontextmanager
async def serving(address: str, pages: Mapping[str, Page]) -> AsyncIterator[Served]:
    """Serve until the block ends; yields the address, with the port that the kernel chose if it was 0.

    Args:
        address: ``HOST:PORT``, ``[::1]:PORT``, or ``:PORT`` for every address.
        pages: by path.

    Raises:
        NoMetricsAddress: it isn't an address, or can't be bound.
    """
    host, port = parse_address(address)
    connections = _Connections(pages)
    try:
        server = await asyncio.start_server(connections.serve, host or None, port, limit=_REQUEST_BYTES)
    except (OSError, UnicodeError) as problem:
        reason = problem.strerror if isinstance(problem, OSError) and problem.strerror else str(problem)
        raise NoMetricsAddress(
            f"--metrics-address {address}: {reason}",
            "Give an address of this host, and a port that is free.",
            key="--metrics-address",
        ) from problem
    async with connections.until_closed(server):
        yield Served(_spelled(server.sockets[0]), all(map(_is_loopback, server.sockets)))


@asynccontextmanager
async def serving_at(path: str, pages: Mapping[str, Page]) -> AsyncIterator[None]:
    """The same on a unix socket, which only its user and group can open.

    Raises:
        NoProbeSocket: it can't be created, or another process answers there.
    """
    connections = _Connections(pages)
    with socket_at(path, lambda path: _no_socket(path, "another process answers there"), _no_socket) as (made, _):
        server = await asyncio.start_unix_server(connections.serve, sock=made, limit=_REQUEST_BYTES)
        async with connections.until_closed(server):
            yield


def _no_socket(path: str, why: str) -> NoProbeSocket:
    return NoProbeSocket(
        f"--probe-socket {path}: {why}",
        "Give a socket in a folder that exists and is writable.",
        file=path,
        key="--probe-socket",
    )


def parse_address(address: str) -> tuple[str, int]:
    """The host, empty for every address, and the port.

    Raises:
        NoMetricsAddress: it doesn't have the form that `serving` describes.
    """
    host, colon, port = address.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    bare = host[1:-1] if bracketed else host
    if not colon or not (port.isascii() and port.isdigit() and int(port) < 65536) or (":" in bare and not bracketed):
        raise NoMetricsAddress(
            f"--metrics-address {address!r} is not HOST:PORT",
            "Give :8080, 127.0.0.1:8080 or [::1]:8080.",
            key="--metrics-address",
        )
    return bare, int(port)


def _is_loopback(bound: socket.socket) -> bool:
    host = str(bound.getsockname()[0])
    return host == "::1" or host.startswith("127.")


def _spelled(bound: socket.socket) -> str:
    host, port = bound.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


async def answer(request: bytes, pages: Mapping[str, Page]) -> Response:
    """What a request, up to its empty line, is answered with."""
    line, *rest = request.decode("latin-1").split("\r\n")
    match line.split(" "):
        case ["GET", target, "HTTP/1.0" | "HTTP/1.1"]:
            page = pages.get(target.partition("?")[0])
        case [_, _, "HTTP/1.0" | "HTTP/1.1"]:
            return Response("405 Method Not Allowed", b"only GET\n", headers=(("Allow", "GET"),))
        case _:
            return Response("400 Bad Request", b"not HTTP\n")
    if page is None:
        return Response("404 Not Found", f"there is {' and '.join(pages)}\n".encode())
    pairs = (header.partition(":") for header in rest)
    return await page({name.lower(): value.strip() for name, _, value in pairs})


class _Connections:
    """Open connections, the oldest first. Streams are counted separately, so they don't crowd out other requests."""

    def __init__(self, pages: Mapping[str, Page]) -> None:
        self._pages = pages
        self._open: dict[asyncio.StreamWriter, asyncio.Task[None] | None] = {}
        self._streams: dict[asyncio.StreamWriter, asyncio.Task[None] | None] = {}

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One request, one answer, the end."""
        _join(self._open, writer, _CONNECTIONS)
        try:
            # All of these are the client's fault: it left, was too slow, or sent too much. Except CancelledError: at
            # the end tasks are cancelled, and asyncio of Python 3.11 would report that as an error.
            with suppress(
                OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, asyncio.CancelledError
            ):
                async with asyncio.timeout(_SECONDS):
                    request = await reader.readuntil(b"\r\n\r\n")
                given = await answer(request, self._pages)
                async with asyncio.timeout(_SECONDS):
                    writer.write(_in_http(given))
                    await writer.drain()
                if given.stream is not None:
                    await self._follow(given.stream, writer)
                async with asyncio.timeout(_SECONDS):
                    writer.close()
                    await writer.wait_closed()
        finally:
            self._open.pop(writer, None)
            self._streams.pop(writer, None)
            writer.transport.abort()

    async def _follow(self, stream: AsyncGenerator[bytes, None], writer: asyncio.StreamWriter) -> None:
        self._open.pop(writer, None)
        _join(self._streams, writer, _STREAMS)
        async with aclosing(stream):
            async for part in stream:
                async with asyncio.timeout(_SECONDS):
                    writer.write(part)
                    await writer.drain()

    @asynccontextmanager
    async def until_closed(self, server: asyncio.Server) -> AsyncIterator[None]:
        """Close the server and all connections when the block ends."""
        try:
            yield
        finally:
            server.close()
            tasks = [task for task in (self._open | self._streams).values() if task is not None]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await server.wait_closed()


def _join(
    those: dict[asyncio.StreamWriter, asyncio.Task[None] | None], writer: asyncio.StreamWriter, limit: int
) -> None:
    while len(those) >= limit:
        oldest = next(iter(those))
        del those[oldest]
        oldest.transport.abort()
    those[writer] = asyncio.current_task()


def _in_http(given: Response) -> bytes:
    head = f"HTTP/1.1 {given.status}\r\nContent-Type: {given.content_type}\r\n"
    head += f"Content-Length: {len(given.body)}\r\n" if given.stream is None else ""
    head += "X-Content-Type-Options: nosniff\r\nConnection: close\r\n"
    head += "".join(f"{name}: {value}\r\n" for name, value in given.headers) + "\r\n"
    return head.encode("latin-1") + given.body


class ProbeState:
    """The health of the daemon: set by its loop, and read by the pages for probes.

    Args:
        clock: seconds on a monotonic clock.
        patience: how many seconds a turn of the loop may take: several times its longest pause.
    """

    def __init__(self, clock: Callable[[], float], patience: float) -> None:
        self._clock = clock
        self._patience = patience
        self._last = clock()
        self._waiting = "the host has not been scanned yet"

    def turned(self) -> None:
        """Note that the loop has completed a turn, so the daemon is alive."""
        self._last = self._clock()

    def waiting(self, for_what: str) -> None:
        """Set why it isn't ready; empty if it is: all advertised resources are registered with the kubelet."""
        self._waiting = for_what

    def why_restart(self) -> str:
        """Why it should be restarted; empty if it shouldn't."""
        quiet = self._clock() - self._last
        return f"the daemon's loop has not turned for {quiet:.0f} s" if quiet > self._patience else ""

    def why_not_ready(self) -> str:
        """Why it is not ready; empty if it is."""
        return self._waiting


def probe_pages(health: ProbeState) -> dict[str, Page]:
    """The pages that say whether the daemon is alive and ready."""
    return {"/healthz": _probe(health.why_restart), "/readyz": _probe(health.why_not_ready)}


def _probe(problem: Callable[[], str]) -> Page:
    async def page(_: Mapping[str, str]) -> Response:
        why = problem()
        return Response("503 Service Unavailable", f"{why}\n".encode()) if why else Response("200 OK", b"ok\n")

    return page
