"""A server on a unix socket, in the event loop of the process that has rights on the host (T6).

Whoever opens it has its user or its group, but may have been taken over from the network. So connections are few, and
at most twenty a second are accepted; the others wait in the kernel (T4).
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from functools import partial

from launcherkit.rpc.unix_socket import NotMade, socket_at
from launcherkit_plugin.http.response import Page, Response, not_found

CONNECTIONS = 8
_WAITING = 16
PAUSE_SECONDS = 0.05


@asynccontextmanager
async def serving_at(
    path: str, pages: Mapping[str, Page], not_made: NotMade, pause: float = PAUSE_SECONDS
) -> AsyncIterator[None]:
    """Serve until the block ends.

    Args:
        path: of the socket.
        pages: by path.
        not_made: makes the error if the socket can't be created, or another process answers there.
        pause: seconds between two connections.
    """
    with socket_at(path, lambda path: not_made(path, "another process answers there"), not_made) as (listener, _):
        listener.setblocking(False)
        listener.listen(_WAITING)
        serving = set[asyncio.Task[None]]()
        serving.add(asyncio.create_task(_accept(listener, pages, serving, pause)))
        try:
            yield
        finally:
            for task in serving:
                task.cancel()
            await asyncio.wait(serving)


async def _accept(
    listener: socket.socket, pages: Mapping[str, Page], serving: set[asyncio.Task[None]], pause: float
) -> None:
    places = asyncio.Semaphore(CONNECTIONS)

    def ended(client: socket.socket, task: asyncio.Task[None]) -> None:
        client.close()  # here, for a task that is cancelled at once has done nothing
        serving.discard(task)
        places.release()

    while True:
        await places.acquire()
        await _readable(listener)
        try:
            client, _ = listener.accept()  # not the loop's: if that is cancelled, a client may be left open
        except OSError:  # it has gone, or no file handles are left
            places.release()
        else:
            client.setblocking(False)
            task = asyncio.create_task(_serve(client, pages))
            serving.add(task)
            task.add_done_callback(partial(ended, client))
        await asyncio.sleep(pause)


async def _readable(listener: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    loop.add_reader(listener, ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(listener)


async def _serve(client: socket.socket, pages: Mapping[str, Page]) -> None:
    # Not above: a start of the daemon doesn't wait for h11.
    from launcherkit_plugin.http.exchange import SocketStream, answer_get

    async def answer(path: str, headers: Mapping[str, str]) -> Response:
        page = pages.get(path)
        return not_found(pages) if page is None else await page(headers)

    with suppress(OSError):
        await answer_get(SocketStream(client), answer)
