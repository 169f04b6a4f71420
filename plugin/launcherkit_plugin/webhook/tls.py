"""TLS on a socket, in the event loop.

asyncio's own keeps 256 KiB for each connection, until the garbage collector comes by.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

_READ = 64 << 10
_Result = TypeVar("_Result")


class TlsStream:
    """The server's end of a connection.

    Args:
        client: doesn't block; who has made it closes it.
        context: of a server.
        took: is told how many bytes have come, each time.
    """

    def __init__(self, client: socket.socket, context: ssl.SSLContext, took: Callable[[int], None]) -> None:
        self._socket, self._took, self._loop = client, took, asyncio.get_running_loop()
        self._received, self._to_send = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._received, self._to_send, server_side=True)

    async def handshake(self) -> None:
        """Has to come first.

        Raises:
            OSError: the client doesn't speak TLS, or has a certificate of another authority.
        """
        await self._done(self._tls.do_handshake)

    async def read(self) -> bytes:
        """What the client has sent; empty if it has closed the connection."""
        try:
            return await self._done(lambda: self._tls.read(_READ))
        except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
            return b""

    async def write(self, data: bytes) -> None:
        """Send to the client."""
        await self._done(lambda: self._tls.write(data))

    async def close(self) -> None:
        """Tell the client that nothing else comes; its own farewell isn't waited for."""
        with suppress(ssl.SSLError):  # the client would have to answer, or is gone already
            self._tls.unwrap()
        await self._flush()

    def certified(self) -> bool:
        """Whether the client has shown a certificate; the handshake has checked it."""
        return bool(self._tls.getpeercert())

    async def _done(self, step: Callable[[], _Result]) -> _Result:
        while True:
            try:
                result = step()
            except ssl.SSLWantReadError:
                await self._flush()
                await asyncio.sleep(0)  # others first: there may always be more to read from this one
                if data := await self._loop.sock_recv(self._socket, _READ):
                    self._took(len(data))
                    self._received.write(data)
                else:
                    self._received.write_eof()
            except ssl.SSLError:
                await self._flush()  # the alert
                raise
            else:
                await self._flush()
                return result

    async def _flush(self) -> None:
        if self._to_send.pending:
            await self._loop.sock_sendall(self._socket, self._to_send.read())
