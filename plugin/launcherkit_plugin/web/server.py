"""The web process: serves metrics and page to clients, and asks the daemon for them."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import NamedTuple

from launcherkit_plugin.http.acceptor import Acceptor, ServedConnection
from launcherkit_plugin.http.exchange import SocketStream, answer_get
from launcherkit_plugin.http.response import EVENTS, METRICS, NODE_PAGE, REVIEW, Page, Refusals, Response, not_found
from launcherkit_plugin.model.config import PageChoice
from launcherkit_plugin.model.errors import NO_METRICS_ADDRESS
from launcherkit_plugin.telemetry.reporter import Log
from launcherkit_plugin.web.daemon_client import DaemonClient
from launcherkit_plugin.web.gate import Gate, TokenGate, everybody, loopback_gate, token_file_gate
from launcherkit_plugin.web.shared import KeptAnswer, SharedStream

_OPENMETRICS = "application/openmetrics-text"
_HEADERS = (
    ("Cache-Control", "no-store"),
    ("Referrer-Policy", "no-referrer"),
    ("Cross-Origin-Resource-Policy", "same-origin"),
    ("Cross-Origin-Opener-Policy", "same-origin"),
)
"""Of the page: it is for this origin alone."""
_PLAIN = ("*/*", "text/*", "text/plain", "application/*")
"""The media types in Accept for which there is the text format of Prometheus."""


class WebOptions(NamedTuple):
    """The options of the command line."""

    metrics_address: str
    web_socket: str
    metrics_token_file: str | None
    page: PageChoice


class Site(NamedTuple):
    """What is served at a path, and to whom."""

    gate: Gate
    page: Page


@asynccontextmanager
async def serving(options: WebOptions, log: Log) -> AsyncIterator[str]:
    """Serve until the block ends; yields the address, with the port that the kernel chose if it was 0.

    Raises:
        NO_METRICS_ADDRESS: it isn't an address, or can't be bound.
        BAD_METRICS_TOKEN: there is no token in the file.
    """
    with listening(options.metrics_address) as listener:
        where, loopback = spelled(listener), is_loopback(listener)
        sites = sites_of(options, DaemonClient(options.web_socket), loopback=loopback)
        async with _Server(listener, sites, log).acceptor:
            log("info", f"metrics are served on {where}")
            if NODE_PAGE in sites:
                who = "for clients with a token" if options.page == "token" else "for this host only"
                log("info", f"the page of the node is served on http://{where}/, {who}")
            yield where


def sites_of(options: WebOptions, daemon: DaemonClient, *, loopback: bool) -> dict[str, Site]:
    """What is served, by path.

    Args:
        options: of the command line.
        daemon: is asked.
        loopback: whether only this host, or this pod, can reach the server.

    Raises:
        BAD_METRICS_TOKEN: there is no token in the file.
    """
    token_file = options.metrics_token_file
    scrapers: Gate = everybody if token_file is None else token_file_gate(token_file)
    sites = {METRICS: Site(scrapers, metrics_page(daemon))}
    if options.page == "off" or (options.page == "auto" and not loopback):
        return sites
    drawing, changes = KeptAnswer(partial(daemon.get, NODE_PAGE)), SharedStream(partial(daemon.follow, EVENTS))

    async def page(_: Mapping[str, str]) -> Response:
        drawn = await drawing.get()
        return drawn._replace(headers=(*drawn.headers, *_HEADERS))

    async def events(_: Mapping[str, str]) -> Response:
        return Response(200, b"", "text/event-stream", _HEADERS, changes.parts())

    async def review(token: str) -> Response:
        return await daemon.get(REVIEW, {"Authorization": f"Bearer {token}"})

    readers: Gate = TokenGate(review, asyncio.get_running_loop().time) if options.page == "token" else loopback_gate
    return sites | {NODE_PAGE: Site(readers, page), EVENTS: Site(readers, events)}


def metrics_page(daemon: DaemonClient) -> Page:
    """The metrics, in one of the two formats of Prometheus, or 406."""
    forms = (f"{_OPENMETRICS}; version=1.0.0", "text/plain")
    openmetrics, plain = (KeptAnswer(partial(daemon.get, METRICS, {"Accept": form})) for form in forms)

    async def page(headers: Mapping[str, str]) -> Response:
        accept = headers.get("accept") or "*/*"
        kinds = {part.partition(";")[0].strip().lower() for part in accept.split(",")}
        if _OPENMETRICS in kinds:
            return await openmetrics.get()
        if kinds.intersection(_PLAIN):
            return await plain.get()
        return Response(406, b"there is text/plain and application/openmetrics-text\n")

    return page


class _Server:
    def __init__(self, listener: socket.socket, sites: Mapping[str, Site], log: Log) -> None:
        self._sites = sites
        refusals = Refusals(log, asyncio.get_running_loop().time)
        self.acceptor = Acceptor(listener, self._serve, refusals, log)

    async def _serve(self, connection: ServedConnection, client: socket.socket) -> None:
        received, answered = partial(self.acceptor.received, connection), partial(self.acceptor.answered, connection, 0)

        async def answer(path: str, headers: Mapping[str, str]) -> Response:
            site = self._sites.get(path)
            if site is None:
                return not_found(self._sites)
            refusal = await site.gate(headers)
            if refusal is not None:
                return refusal
            connection.whole = True  # who is let in isn't thrown out while the page is drawn
            try:
                return await site.page(headers)
            finally:
                connection.whole = False  # now it is his turn to read

        await answer_get(SocketStream(client, received, answered), answer)


# Where it listens.


_WAITING = 256


def listening(address: str) -> socket.socket:
    """A socket that listens, and doesn't block.

    Args:
        address: ``HOST:PORT``, ``[::1]:PORT``, or ``:PORT`` for every address, including IPv6 if the host has it.

    Raises:
        NO_METRICS_ADDRESS: it isn't an address, or can't be bound.
    """
    host, port = parse_address(address)
    both = not host and socket.has_dualstack_ipv6()
    try:
        if host:
            ((family, *_, where), *_others) = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        else:
            family, where = socket.AF_INET6 if both else socket.AF_INET, ("", port)
        listener = socket.create_server(where[:2], family=family, backlog=_WAITING, dualstack_ipv6=both)
    except (OSError, UnicodeError) as problem:
        reason = getattr(problem, "strerror", None) or problem
        raise NO_METRICS_ADDRESS(
            f"--metrics-address {address}: {reason}",
            "Give an address of this host, and a port that is free.",
            key="--metrics-address",
        ) from problem
    listener.setblocking(False)
    return listener


def parse_address(address: str) -> tuple[str, int]:
    """The host, empty for every address, and the port.

    Raises:
        NO_METRICS_ADDRESS: it doesn't have the form that `listening` describes.
    """
    host, colon, port = address.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    bare = host[1:-1] if bracketed else host
    if not colon or not (port.isascii() and port.isdigit() and int(port) < 65536) or (":" in bare and not bracketed):
        raise NO_METRICS_ADDRESS(
            f"--metrics-address {address!r} is not HOST:PORT",
            "Give :8080, 127.0.0.1:8080 or [::1]:8080.",
            key="--metrics-address",
        )
    return bare, int(port)


def is_loopback(bound: socket.socket) -> bool:
    """Whether only this host, or this pod, can reach it."""
    host = str(bound.getsockname()[0])
    return host == "::1" or host.startswith("127.")


def spelled(bound: socket.socket) -> str:
    """``HOST:PORT``."""
    host, port = bound.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
