"""The webhook's certificate and authorities, and TLS on a socket in the event loop.

asyncio's own keeps 256 KiB for each connection, until the garbage collector comes by.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from launcherkit.errors import BadConfig
from launcherkit_plugin.model.errors import BAD_CERTIFICATE
from launcherkit_plugin.telemetry.reporter import Log


class Certificate:
    """The TLS context of a server by its files, which are read again when they have changed.

    Args:
        certificate: PEM, the server's own certificate first.
        key: PEM.
        client_ca: PEM. Clients with a certificate that no authority in it has signed are turned away in the handshake.
            One without a certificate isn't: the kubelet's probes have none. None: no client is asked for one.
        log: called if changed files can't be used.

    Raises:
        BAD_CERTIFICATE: they can't be read, or don't belong together.
    """

    def __init__(self, certificate: Path, key: Path, client_ca: Path | None, log: Log) -> None:
        self._certificate, self._key, self._log = certificate, key, log
        self.client_ca = client_ca
        self._seen, self._context = self._load()
        self._failed: list[int] | None = None

    def context(self) -> ssl.SSLContext:
        """The context for the next connection. A mounted Secret may be replaced while the server runs."""
        state = self._state()
        if state not in (self._seen, self._failed):
            try:
                self._seen, self._context = self._load()
            except BadConfig as problem:
                self._failed = state  # as it is now it isn't tried again: every pod may connect, as often as it likes
                self._log("error", f"the certificate has changed and can't be used; the old one is kept: {problem}")
        return self._context

    def _state(self) -> list[int]:
        """When each file was changed last; -1 for one that isn't there."""
        return [_changed(path) for path in (self._certificate, self._key, self.client_ca) if path]

    def _load(self) -> tuple[list[int], ssl.SSLContext]:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.num_tickets = 0  # the API server doesn't resume sessions
        files, remedy = (
            f"{self._certificate}, {self._key}",
            "Give a certificate and the key that belongs to it, as PEM.",
        )
        try:
            state = self._state()
            context.load_cert_chain(self._certificate, self._key)
            if self.client_ca:
                files, remedy = str(self.client_ca), "Give certificates of authorities, as PEM."
                context.load_verify_locations(self.client_ca)
                context.verify_mode = ssl.CERT_OPTIONAL
        except OSError as problem:  # includes ssl.SSLError
            raise BAD_CERTIFICATE(
                f"{files}: {problem.strerror or problem}", remedy, file=files.partition(",")[0]
            ) from problem
        return state, context


def _changed(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return -1


_READ = 64 << 10
_Result = TypeVar("_Result")


class TlsStream:
    """The server's end of a connection.

    Args:
        client: doesn't block; who has made it closes it.
        context: of a server.
        received: is told how many bytes have come, each time.
    """

    def __init__(self, client: socket.socket, context: ssl.SSLContext, received: Callable[[int], None]) -> None:
        self._socket, self._count_received, self._loop = client, received, asyncio.get_running_loop()
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
                    self._count_received(len(data))
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
