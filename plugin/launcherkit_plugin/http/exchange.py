"""HTTP on one connection, by h11."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Mapping
from contextlib import aclosing, suppress
from typing import Protocol

import h11

from launcherkit_plugin.http.response import Response

_HEADERS = 16 << 10
_READ = 64 << 10
_REST_SECONDS = 1.0
"""How long a client whose request is refused may go on sending it."""
_SECONDS = 5.0
"""How long a client on a socket may say nothing, or take to read a part of an answer."""


class Stream(Protocol):
    """One end of a connection; a method that fails raises an `OSError`."""

    async def read(self) -> bytes:
        """What the other end has sent; empty if it has closed the connection."""
        ...

    async def write(self, data: bytes) -> None:
        """Send to the other end."""
        ...


class SocketStream:
    """A connection without TLS.

    Args:
        client: doesn't block; who has made it closes it.
        received: is told how many bytes have come, each time.
        wrote: is called when bytes have been sent.
    """

    def __init__(
        self,
        client: socket.socket,
        received: Callable[[int], object] = lambda _: None,
        wrote: Callable[[], object] = lambda: None,
    ) -> None:
        self._socket, self._received, self._wrote, self._loop = client, received, wrote, asyncio.get_running_loop()

    async def read(self) -> bytes:
        """See `Stream`."""
        async with asyncio.timeout(_SECONDS):
            data = await self._loop.sock_recv(self._socket, _READ)
        self._received(len(data))
        return data

    async def write(self, data: bytes) -> None:
        """See `Stream`."""
        async with asyncio.timeout(_SECONDS):
            await self._loop.sock_sendall(self._socket, data)
        self._wrote()


class Exchange:
    """The server's side of a connection.

    Args:
        stream: of a client.
    """

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=_HEADERS)
        self._head = False

    async def request(self) -> h11.Request | None:
        """The next request, without its body; None: the client has closed the connection.

        Raises:
            h11.RemoteProtocolError: it isn't HTTP.
        """
        event = await self._event()
        if not isinstance(event, h11.Request):
            return None
        self._head = event.method == b"HEAD"
        return event

    async def body(self) -> bytearray:
        """Its body."""
        if self._http.they_are_waiting_for_100_continue:
            await self._stream.write(self._http.send(h11.InformationalResponse(status_code=100, headers=[])) or b"")
        body = bytearray()
        while isinstance(event := await self._event(), h11.Data):
            body += event.data
        return body

    async def _event(self) -> object:
        while (event := self._http.next_event()) is h11.NEED_DATA:
            self._http.receive_data(await self._stream.read())
        return event

    async def send(self, response: Response, *, close: bool = False) -> None:
        """Answer the request, or what isn't one."""
        headers = [("Server", "launcherkit"), ("Content-Type", response.content_type), *response.headers]
        headers.append(("X-Content-Type-Options", "nosniff"))
        if response.stream is None:
            headers.append(("Content-Length", str(len(response.body))))
        if close:
            headers.append(("Connection", "close"))
        body = b"" if self._head else response.body
        start = h11.Response(status_code=response.status, headers=headers), h11.Data(body)
        if response.stream is None:
            await self._write(*start, h11.EndOfMessage())
            return
        async with aclosing(response.stream):
            await self._write(*start)
            async for part in response.stream:
                await self._write(h11.Data(part))
        await self._write(h11.EndOfMessage())

    async def _write(self, *events: h11.Event) -> None:
        await self._stream.write(b"".join(filter(None, map(self._http.send, events))))

    async def discard_rest(self) -> None:
        """Read what the client still sends: if a socket with unread bytes is closed, its answer may be lost."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_REST_SECONDS):
                while await self._stream.read():
                    pass

    def unread(self) -> int:
        """Bytes that came after the request."""
        return len(self._http.trailing_data[0])

    def goes_on(self) -> bool:
        """Whether another request may follow."""
        if self._http.our_state is not h11.DONE or self._http.their_state is not h11.DONE:
            return False
        self._http.start_next_cycle()
        return True


async def answer_get(stream: Stream, answer: Callable[[str, Mapping[str, str]], Awaitable[Response]]) -> None:
    """Answer one request, which can only be a GET; the connection is to be closed then.

    Args:
        stream: of a client.
        answer: makes the answer by the path and the headers; see `launcherkit_plugin.http.response.Page`.

    Raises:
        OSError: the client is gone or too slow.
    """
    exchange = Exchange(stream)
    try:
        request = await exchange.request()
    except h11.RemoteProtocolError as problem:
        await exchange.send(Response(problem.error_status_hint, f"{problem}\n".encode()), close=True)
        await exchange.discard_rest()
        return
    if request is None:
        return
    if request.method != b"GET":
        response = Response(405, b"only GET\n", headers=(("Allow", "GET"),))
    else:
        path = request.target.decode("latin-1").partition("?")[0]
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in request.headers}
        response = await answer(path, headers)
    await exchange.send(response, close=True)
