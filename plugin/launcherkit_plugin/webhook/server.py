"""The webhook's HTTPS server. Only the cluster's API server has a reason to connect to it.

It is the server of the standard library, with a thread for each connection. Clients that send nothing for some seconds,
or more than an API server would, are disconnected.
"""

from __future__ import annotations

import socket
import ssl
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Lock, Thread
from time import monotonic
from typing import NamedTuple

from launcherkit_plugin.model.errors import BadCertificate, NoWebhookPort
from launcherkit_plugin.telemetry.reporter import Log, silent
from launcherkit_plugin.webhook.injection import Injection, read_parameters
from launcherkit_plugin.webhook.review import BadReview, answer

_LARGEST = 8 << 20
"""The most bytes of a request: etcd accepts objects of 1.5 MiB, and a review has at most two of them."""
_SECONDS = 10.0
"""How long a client may take to send the next bytes."""
_REST_SECONDS = 1.0
"""How long a client whose request is refused may go on sending it."""
_REST_BYTES = 1 << 16


class Certificate:
    """A certificate and its key in files, which are read again when they have changed.

    Args:
        certificate: PEM, the server's own certificate first.
        key: PEM.
        log: called if changed files can't be used.

    Raises:
        BadCertificate: they can't be read, or don't belong together.
    """

    def __init__(self, certificate: Path, key: Path, log: Log) -> None:
        self._certificate, self._key, self._log = certificate, key, log
        self._context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self._lock = Lock()
        self._seen = self._load()

    def context(self) -> ssl.SSLContext:
        """The context for the next connection. A mounted Secret may be replaced while the server runs."""
        with self._lock:
            try:
                if self._state() != self._seen:
                    self._seen = self._load()
            except (OSError, BadCertificate) as problem:
                self._log("error", f"the certificate has changed and can't be used; the old one is kept: {problem}")
        return self._context

    def _state(self) -> tuple[int, int]:
        return self._certificate.stat().st_mtime_ns, self._key.stat().st_mtime_ns

    def _load(self) -> tuple[int, int]:
        try:
            state = self._state()
            # Try another context first: a failure would leave this one with a certificate but no key.
            ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(self._certificate, self._key)
            self._context.load_cert_chain(self._certificate, self._key)
        except OSError as problem:  # includes ssl.SSLError
            raise BadCertificate(
                f"{self._certificate}, {self._key}: {problem.strerror or problem}",
                "Give a certificate and the key that belongs to it, both as PEM.",
                file=str(self._certificate),
            ) from problem
        return state


class Answers(NamedTuple):
    """What is needed to answer requests."""

    injections: Mapping[str, Injection]
    parameters: Path
    """A folder that contains a folder for each injection's ConfigMap, named after the injection."""
    log: Log


@contextmanager
def serving(port: int, certificate: Certificate, answers: Answers) -> Iterator[int]:
    """Serve, in threads, until the block ends; yields the port, which the kernel chooses if it was 0.

    Raises:
        NoWebhookPort: the port can't be bound.
    """

    class Handler(_ReviewHandler):
        by = answers
        context = certificate.context

    try:
        server = _Server(("", port), Handler)
        server.log = answers.log
    except OSError as problem:
        raise NoWebhookPort(
            f"--https-port {port}: {problem.strerror}",
            "Give a free port; ports below 1024 need root or the capability NET_BIND_SERVICE.",
            key="--https-port",
        ) from problem
    thread = Thread(target=server.serve_forever, name="webhook")
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class _Server(ThreadingHTTPServer):
    """Listens on every address, including IPv6 if the host has it."""

    address_family = socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET
    request_queue_size = 64
    log: Log = staticmethod(silent)

    def server_bind(self) -> None:
        if self.address_family == socket.AF_INET6:
            self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        super().server_bind()

    def handle_error(self, request: object, client_address: object) -> None:  # noqa: ARG002  # overrides
        """Report a bug; a client that left or doesn't speak TLS isn't one."""
        problem = sys.exception()
        if not isinstance(problem, OSError):
            self.log("error", f"a bug: {problem!r}", client=client_address)


class _ReviewHandler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = _SECONDS
    by: Answers

    @staticmethod
    def context() -> ssl.SSLContext:
        raise NotImplementedError

    def setup(self) -> None:
        # The handshake runs in the connection's own thread, so that a slow client blocks no other.
        self.request.settimeout(_SECONDS)
        self.request = self.context().wrap_socket(self.request, server_side=True)
        super().setup()

    def do_GET(self) -> None:
        """Answer the kubelet's probe."""
        if self.path == "/healthz":
            self._send(HTTPStatus.OK, b"ok\n", "text/plain; charset=utf-8")
        else:
            self._refuse(HTTPStatus.NOT_FOUND, "there is /healthz, and a path for each injection")

    def do_POST(self) -> None:
        """Answer a review."""
        injection = self.by.injections.get(self.path.partition("?")[0].removeprefix("/"))
        length = self.headers.get("Content-Length", "")
        if not (length.isascii() and length.isdigit()) or int(length) > _LARGEST:
            self._refuse(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"a review has a length, of at most {_LARGEST} bytes")
            return
        request = self.rfile.read(int(length))
        if injection is None:
            self._refuse(HTTPStatus.NOT_FOUND, f"{self.path}: there is /{', /'.join(self.by.injections)}")
        else:
            try:
                response = answer(request, injection, read_parameters(self.by.parameters / injection.name))
            except (BadReview, OSError, UnicodeError) as problem:
                self._refuse(HTTPStatus.BAD_REQUEST, f"{self.path}: {problem}")
            else:
                self._send(HTTPStatus.OK, response, "application/json")

    def _refuse(self, status: HTTPStatus, why: str) -> None:
        self.close_connection = True
        self.by.log("warning", f"refused: {why}", client=self.client_address[0])
        self._send(status, f"{why}\n".encode(), "text/plain; charset=utf-8")
        self._discard_rest()

    def _discard_rest(self) -> None:
        """Read what the client still sends: if a socket with unread bytes is closed, its answer may be lost."""
        self.request.settimeout(_REST_SECONDS)
        until = monotonic() + _REST_SECONDS
        with suppress(OSError):
            while monotonic() < until and self.rfile.read1(_REST_BYTES):
                pass

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:  # noqa: ARG002
        """Refuse what isn't HTTP, and methods other than GET and POST."""
        self._refuse(HTTPStatus(code), message or HTTPStatus(code).description)

    def _send(self, status: HTTPStatus, body: bytes, kind: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(body)

    def version_string(self) -> str:
        return "launcherkit"

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Don't log answered requests."""
