"""However many clients there are, the daemon is asked once a second and followed once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

from launcherkit_plugin.http.response import Response
from launcherkit_plugin.web.shared import KEEP_SECONDS, KeptAnswer, SharedStream
from tests.support.looping import TimedLoop, run_timed, settled


def test_an_answer_is_asked_for_once_a_second_whoever_wants_it() -> None:
    async def scene(loop: TimedLoop) -> None:
        loop.hold()
        asked: list[asyncio.Future[Response]] = []

        def ask() -> asyncio.Future[Response]:
            asked.append(loop.create_future())
            return asked[-1]

        kept = KeptAnswer(ask)
        waiting = [asyncio.create_task(kept.get()) for _ in range(50)]
        await settled()
        waiting.pop().cancel()
        loop.skip(KEEP_SECONDS * 5)  # a slow daemon isn't asked again meanwhile
        waiting.append(asyncio.create_task(kept.get()))
        await settled()
        asked[0].set_result(Response(200, b"1"))
        assert {given.body for given in await asyncio.gather(*waiting)} == {b"1"}
        assert len(asked) == 1
        waiting = [asyncio.create_task(kept.get())]
        await settled()
        asked[1].set_result(Response(503, b"2"))
        assert [(await each).body for each in waiting] == [b"2"]
        loop.skip(KEEP_SECONDS * 0.9)
        waiting = [asyncio.create_task(kept.get())]
        await settled()
        assert len(asked) == 2
        assert [(await each).body for each in waiting] == [b"2"]
        loop.skip(KEEP_SECONDS * 0.2)
        waiting = [asyncio.create_task(kept.get())]
        await settled()
        assert len(asked) == 3
        asked[2].set_result(Response(200, b"3"))
        assert [(await each).body for each in waiting] == [b"3"]

    run_timed(scene)


class Followed:
    """A daemon's stream, and how often it is followed."""

    def __init__(self) -> None:
        self.parts: asyncio.Queue[bytes | None] = asyncio.Queue()
        self.open = self.times = 0

    async def __call__(self) -> AsyncGenerator[bytes, None]:
        self.open += 1
        self.times += 1
        try:
            while (part := await self.parts.get()) is not None:
                if not part:
                    raise ConnectionResetError
                yield part
        finally:
            self.open -= 1


async def event(client: AsyncGenerator[bytes, None]) -> bytes:
    """The next one, without the comments before it."""
    async for part in client:
        if part.startswith(b"data:"):
            return part
    return b""


def test_one_stream_serves_all_clients_and_ends_with_the_last() -> None:
    async def scene() -> None:
        followed = Followed()
        shared = SharedStream(followed)
        clients = [shared.parts() for _ in range(3)]
        assert [await anext(client) for client in clients] == [b"retry: 1000\n\n"] * 3
        followed.parts.put_nowait(b"data: 1\n\nda")
        assert [await event(client) for client in clients] == [b"data: 1\n\n"] * 3
        late = shared.parts()
        assert await event(late) == b"data: 1\n\n", "the newest comes at once"
        followed.parts.put_nowait(b"ta: 2\n\n:\n\n")
        assert [await event(client) for client in (*clients, late)] == [b"data: 2\n\n"] * 4
        followed.parts.put_nowait(b":\n\n")
        assert await anext(late) == b":\n\n", "a dead client is noticed when it is written to"
        assert (followed.open, followed.times) == (1, 1)
        for client in (*clients, late):
            await client.aclose()
        await settled()
        assert followed.open == 0

    asyncio.run(scene())


def test_the_end_of_the_daemons_stream_is_theirs_and_the_next_client_follows_anew() -> None:
    async def scene() -> None:
        followed = Followed()
        shared = SharedStream(followed)
        for end in (None, b""):
            client = shared.parts()
            await anext(client)
            followed.parts.put_nowait(b"data: 1\n\n")
            assert await event(client) == b"data: 1\n\n"
            followed.parts.put_nowait(end)
            assert await event(client) == b""
        leaving = shared.parts()
        await anext(leaving)
        await leaving.aclose()
        joining = shared.parts()  # before the other's stream has ended, or even begun
        await anext(joining)
        followed.parts.put_nowait(b"data: 2\n\n")
        assert await event(joining) == b"data: 2\n\n"
        assert (followed.open, followed.times) == (1, 3)
        await joining.aclose()

    asyncio.run(scene())
