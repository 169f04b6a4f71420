"""What is served to whom, of a daemon at the other end of a real socket."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from launcherkit_plugin.http.acceptor import PLACES
from launcherkit_plugin.http.response import Response
from launcherkit_plugin.http.unix_server import serving_at
from launcherkit_plugin.model.config import PageChoice
from launcherkit_plugin.model.errors import NO_WEB_SOCKET
from launcherkit_plugin.telemetry.reporter import silent
from launcherkit_plugin.web.daemon_client import DaemonClient
from launcherkit_plugin.web.server import WebOptions, metrics_page, serving, sites_of


def options(path: Path | str = "none", page: PageChoice = "auto") -> WebOptions:
    return WebOptions("127.0.0.1:0", str(path), None, page)


@pytest.mark.parametrize(
    ("page", "loopback", "expected"),
    [
        ("auto", True, True),
        ("auto", False, False),
        ("token", True, True),
        ("token", False, True),
        ("off", True, False),
        ("off", False, False),
    ],
)
def test_the_page_is_there_where_it_is_wanted_and_safe(page: PageChoice, loopback: bool, expected: bool) -> None:
    async def paths() -> set[str]:
        return set(sites_of(options(page=page), DaemonClient("none"), loopback=loopback))

    assert asyncio.run(paths()) == ({"/metrics", "/", "/events"} if expected else {"/metrics"})


@pytest.mark.parametrize(("page", "loopback"), [("token", True), ("token", False)])
def test_with_tokens_nobody_gets_it_without_one_not_even_on_loopback(page: PageChoice, loopback: bool) -> None:
    async def statuses() -> list[int]:
        sites = sites_of(options(page=page), DaemonClient("none"), loopback=loopback)
        refusals = [await sites[path].gate({"host": "localhost"}) for path in ("/", "/events")]
        return [refusal.status for refusal in refusals if refusal]

    assert asyncio.run(statuses()) == [401, 401]


class Counting:
    """A daemon that repeats what it is asked to accept, and counts."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    async def __call__(self, headers: Mapping[str, str]) -> Response:
        self.asked.append(headers["accept"])
        return Response(200, headers["accept"].encode(), headers["accept"])

    @asynccontextmanager
    async def serving(self, path: Path) -> AsyncIterator[None]:
        async with serving_at(str(path), {"/metrics": self}, lambda path, why: NO_WEB_SOCKET(why, "", file=path)):
            yield


OPENMETRICS = "application/openmetrics-text"


@pytest.mark.parametrize(
    ("accept", "expected"),
    [
        (None, "text/plain"),
        ("", "text/plain"),
        ("*/*", "text/plain"),
        ("text/html, */*;q=0.1", "text/plain"),
        ("text/plain;version=1.0.0", "text/plain"),
        ("application/openmetrics-text; version=one", OPENMETRICS),
        ("text/plain, APPLICATION/openmetrics-text", OPENMETRICS),
        ("image/png", None),
        (",", None),
    ],
)
def test_a_scraper_gets_the_format_that_it_reads(tmp_path: Path, accept: str | None, expected: str | None) -> None:
    async def scene() -> Response:
        async with Counting().serving(tmp_path / "s"):
            return await metrics_page(DaemonClient(str(tmp_path / "s")))({} if accept is None else {"accept": accept})

    given = asyncio.run(scene())
    assert (given.status, given.content_type.partition(";")[0]) == (
        (200, expected) if expected else (406, "text/plain")
    )


@pytest.mark.parametrize(
    ("page", "whom"), [("auto", ["for this host only"]), ("token", ["for clients with a token"]), ("off", [])]
)
def test_it_says_where_the_page_is_and_for_whom(tmp_path: Path, page: PageChoice, whom: list[str]) -> None:
    lines: list[str] = []

    async def scene() -> str:
        chosen = options(tmp_path / "s", page=page)
        async with serving(chosen, lambda level, text, **fields: lines.append(text)) as where:
            return where

    where = asyncio.run(scene())
    pages = [f"the page of the node is served on http://{where}/, {each}" for each in whom]
    assert lines == [f"metrics are served on {where}", *pages]


async def fetched(where: str, request: bytes = b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n") -> bytes:
    host, _, port = where.rpartition(":")
    reader, writer = await asyncio.open_connection(host, port)
    writer.write(request)
    read = await reader.read()
    writer.close()
    return read


def test_fifty_scrapes_cost_the_daemon_a_few_and_clients_that_say_nothing_keep_none_out(tmp_path: Path) -> None:
    async def scene() -> None:
        daemon = Counting()
        async with daemon.serving(tmp_path / "s"), serving(options(tmp_path / "s"), silent) as where:
            host, _, port = where.rpartition(":")
            idle = [await asyncio.open_connection(host, port) for _ in range(PLACES)]
            began = asyncio.get_running_loop().time()
            answers = await asyncio.gather(*(fetched(where) for _ in range(50)))
            assert all(answer.startswith(b"HTTP/1.1 200 ") for answer in answers)
            assert len(daemon.asked) <= 1 + asyncio.get_running_loop().time() - began
            for _, writer in idle:
                writer.close()

    asyncio.run(scene())


def test_it_ends_although_a_client_is_still_there(tmp_path: Path) -> None:
    async def scene() -> None:
        async with serving(options(tmp_path / "s"), silent) as where:
            host, _, port = where.rpartition(":")
            reader, writer = await asyncio.open_connection(host, port)
            writer.write(b"GET /met")
            await writer.drain()
        with pytest.raises(ConnectionResetError):  # nothing was answered
            assert await reader.read() != b""
        writer.close()

    asyncio.run(scene())
