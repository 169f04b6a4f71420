"""The server on a unix socket: few clients, few a second."""

from __future__ import annotations

import asyncio
import stat
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from launcherkit_plugin.http.response import Page, Response
from launcherkit_plugin.http.unix_server import CONNECTIONS, serving_at
from launcherkit_plugin.model.errors import NO_WEB_SOCKET
from tests.support.errors import raises_code
from tests.support.looping import TimedLoop, run_timed, settled

YEAR = 3e7


async def well(_: Mapping[str, str]) -> Response:
    return Response(200, b"ok\n")


async def endless(_: Mapping[str, str]) -> Response:
    async def parts() -> AsyncGenerator[bytes, None]:
        yield b"begun"
        await asyncio.Event().wait()

    return Response(200, b"", stream=parts())


PAGES: dict[str, Page] = {"/well": well, "/endless": endless}


@asynccontextmanager
async def server(path: Path, pause: float = 0.0) -> AsyncIterator[None]:
    async with serving_at(str(path), PAGES, lambda path, why: NO_WEB_SOCKET(f"{path}: {why}", "", file=path), pause):
        yield


async def asked(path: Path, page: str = "well") -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_unix_connection(path)
    writer.write(f"GET /{page} HTTP/1.0\r\n\r\n".encode())
    return reader, writer


async def answer(path: Path, page: str = "well") -> bytes:
    reader, writer = await asked(path, page)
    read = await reader.read()
    writer.close()
    return read


def test_a_page_comes_and_the_socket_is_for_its_user_and_group_alone(tmp_path: Path) -> None:
    async def scene() -> None:
        async with server(tmp_path / "s"):
            assert stat.S_IMODE((tmp_path / "s").stat().st_mode) == 0o660
            assert (await answer(tmp_path / "s")).endswith(b"\r\n\r\nok\n")
            assert b" 404 " in await answer(tmp_path / "s", "none")

    asyncio.run(scene())
    assert not (tmp_path / "s").exists()


def test_it_ends_although_clients_are_still_there(tmp_path: Path) -> None:
    async def scene() -> None:
        async with server(tmp_path / "s"):
            reader, writer = await asked(tmp_path / "s", "endless")
            await reader.readuntil(b"begun")
            silent, other = await asyncio.open_unix_connection(tmp_path / "s")
        for each in (reader, silent):
            with suppress(ConnectionResetError):  # it was not accepted yet
                assert await each.read() == b""
        for end in (writer, other):
            end.close()

    asyncio.run(scene())


def test_the_next_one_waits_until_the_pause_is_over(tmp_path: Path) -> None:
    async def scene(loop: TimedLoop) -> None:
        async with server(tmp_path / "s", YEAR):
            assert b"ok" in await answer(tmp_path / "s")
            waiting = asyncio.create_task(answer(tmp_path / "s"))
            await settled()
            assert not waiting.done()
            loop.skip(YEAR)
            assert b"ok" in await waiting

    run_timed(scene)


def test_while_there_are_many_the_next_one_waits(tmp_path: Path) -> None:
    async def scene() -> None:
        async with server(tmp_path / "s"):
            clients = [await asked(tmp_path / "s", "endless") for _ in range(CONNECTIONS)]
            for reader, _ in clients:
                await reader.readuntil(b"begun")
            waiting, writer = await asked(tmp_path / "s")
            reading = asyncio.create_task(waiting.read())
            await settled()
            assert not reading.done()
            for _, client in (*clients, (waiting, writer)):
                client.close()

    asyncio.run(scene())


def test_a_socket_of_another_process_is_left_to_it(tmp_path: Path) -> None:
    async def scene() -> None:
        async with server(tmp_path / "s"):
            with raises_code(NO_WEB_SOCKET, match="another process answers there"):
                async with server(tmp_path / "s"):
                    pass
            assert b"ok" in await answer(tmp_path / "s")

    asyncio.run(scene())
