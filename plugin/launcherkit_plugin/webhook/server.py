"""The webhook's HTTPS server. Only the cluster's API server has a reason to connect to it.

h11 reads and writes HTTP: docs/decisions/0014-the-webhooks-server-is-asyncio-and-h11.md.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import NamedTuple

import h11

from launcherkit_plugin.http.acceptor import Acceptor, ServedConnection
from launcherkit_plugin.http.exchange import Exchange
from launcherkit_plugin.http.response import Refusals, Response
from launcherkit_plugin.model.errors import NO_WEBHOOK_PORT
from launcherkit_plugin.telemetry.reporter import Log
from launcherkit_plugin.webhook.injection import Injection, read_parameters
from launcherkit_plugin.webhook.review import BadReview, answer
from launcherkit_plugin.webhook.tls import Certificate, TlsStream

_LARGEST = 4 << 20
"""The most bytes of a review. It has one object, and the API server accepts none above 3 MiB."""
_LARGE = 64 << 10
"""Reviews above this many bytes are answered one at a time, so that small ones get their turn."""


class Answers(NamedTuple):
    """What is needed to answer requests."""

    injections: Mapping[str, Injection]
    parameters: Path
    """A folder that contains a folder for each injection's ConfigMap, named after the injection."""
    log: Log


@asynccontextmanager
async def serving(port: int, certificate: Certificate, answers: Answers) -> AsyncIterator[int]:
    """Serve until the block ends; yields the port, which the kernel chooses if it was 0.

    Raises:
        NO_WEBHOOK_PORT: the port can't be bound.
    """
    with _listening(port) as listener:
        server = _Server(certificate, answers, listener)
        async with server.acceptor:
            port = listener.getsockname()[1]
            answers.log("info", f"serving {', '.join(answers.injections)} on port {port}")
            yield port


def _listening(port: int) -> socket.socket:
    """On every address, including IPv6 if the host has it."""
    both = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if both else socket.AF_INET
    try:
        listener = socket.create_server(("", port), family=family, backlog=256, dualstack_ipv6=both)
    except OSError as problem:
        raise NO_WEBHOOK_PORT(
            f"--https-port {port}: {os.strerror(problem.errno or 0)}",
            "Give a free port; ports below 1024 need root or the capability NET_BIND_SERVICE.",
            key="--https-port",
        ) from problem
    listener.setblocking(False)
    return listener


class _Refused(Exception):
    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


class _Server:
    def __init__(self, certificate: Certificate, answers: Answers, listener: socket.socket) -> None:
        self._certificate, self._answers = certificate, answers
        self._refusals = Refusals(answers.log, asyncio.get_running_loop().time)
        self._one_large = asyncio.Lock()
        self.acceptor = Acceptor(listener, self._serve, self._refusals, answers.log)

    async def _serve(self, connection: ServedConnection, client: socket.socket) -> None:
        stream = TlsStream(client, self._certificate.context(), partial(self.acceptor.received, connection))
        await stream.handshake()
        exchange = Exchange(stream)
        try:
            while (request := await exchange.request()) and not _is_probe(request):
                review = await self._review(request, exchange, stream, connection)
                connection.whole = False  # now it is the client's turn to read
                await exchange.send(Response(HTTPStatus.OK, review, "application/json"))
                self.acceptor.answered(connection, exchange.unread())
                if not exchange.goes_on():
                    break
            else:
                if request:
                    await exchange.send(Response(HTTPStatus.OK, b"ok\n"), close=True)
        except (_Refused, h11.RemoteProtocolError) as refused:
            status = refused.status if isinstance(refused, _Refused) else refused.error_status_hint
            self._refusals.add(str(refused), connection.address)
            await exchange.send(Response(status, f"{refused}\n".encode()), close=True)
            await exchange.discard_rest()
        await stream.close()

    async def _review(
        self, request: h11.Request, exchange: Exchange, stream: TlsStream, connection: ServedConnection
    ) -> bytes:
        """The answer to a review. Nothing of its body is read before it is certain that it is wanted.

        Raises:
            _Refused: it isn't answered.
            h11.RemoteProtocolError: it isn't HTTP.
        """
        path = request.target.decode("ascii", "replace").partition("?")[0]
        injection = self._answers.injections.get(path.removeprefix("/"))
        if request.method == b"GET":
            raise _Refused(HTTPStatus.NOT_FOUND, "there is /healthz, and a path for each injection")
        if request.method != b"POST":
            raise _Refused(HTTPStatus.NOT_IMPLEMENTED, f"Unsupported method ({request.method.decode()!r})")
        if injection is None:
            raise _Refused(HTTPStatus.NOT_FOUND, f"{path}: there is /{', /'.join(self._answers.injections)}")
        if self._certificate.client_ca and not stream.certified():
            raise _Refused(HTTPStatus.FORBIDDEN, f"{path}: the client has no certificate, which --client-ca demands")
        headers = dict(request.headers)
        length = headers.get(b"content-length")
        # Chunks would come in place of the length, and be as many as their sender likes.
        if length is None or b"transfer-encoding" in headers or int(length) > _LARGEST:
            raise _Refused(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"a review has a length, of at most {_LARGEST} bytes")
        body = await exchange.body()
        connection.whole = True
        if len(body) <= _LARGE:
            return self._reviewed(path, body, injection)
        async with self._one_large:
            await asyncio.sleep(0)  # smaller ones first
            return self._reviewed(path, body, injection)

    def _reviewed(self, path: str, body: bytearray, injection: Injection) -> bytes:
        try:
            return answer(body, injection, read_parameters(self._answers.parameters / injection.name))
        except (BadReview, OSError, UnicodeError) as problem:
            raise _Refused(HTTPStatus.BAD_REQUEST, f"{path}: {problem}") from problem


def _is_probe(request: h11.Request) -> bool:
    """Of the kubelet. It keeps no connection, so its answer is the last."""
    return bool((request.method, request.target) == (b"GET", b"/healthz"))
