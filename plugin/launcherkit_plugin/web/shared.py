"""What clients share, so that many cost the daemon no more than one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing, suppress

import h11

from launcherkit_plugin.http.response import Response
from launcherkit_plugin.model.stream import StreamedValue

KEEP_SECONDS = 1.0
_END = b"\n\n"


class KeptAnswer:
    """An answer of the daemon, which is asked at most once a second.

    Args:
        ask: asks the daemon.
    """

    def __init__(self, ask: Callable[[], Awaitable[Response]]) -> None:
        self._ask = ask
        self._loop = asyncio.get_running_loop()
        self._asking: asyncio.Future[Response] | None = None
        self._until = 0.0

    async def get(self) -> Response:
        """The answer, of a second ago at most."""
        if self._asking is None or (self._asking.done() and self._loop.time() >= self._until):
            self._until = self._loop.time() + KEEP_SECONDS
            self._asking = asyncio.ensure_future(self._ask())
        return await asyncio.shield(self._asking)


class SharedStream:
    """The daemon's stream of changes, which is followed once while there are clients.

    Args:
        follow: follows the daemon's.
    """

    def __init__(self, follow: Callable[[], AsyncGenerator[bytes, None]]) -> None:
        self._follow = follow
        self._relay: _Relay | None = None

    async def parts(self) -> AsyncGenerator[bytes, None]:
        """For one client, until the daemon's ends: the newest event, and a comment when the daemon sends one."""
        relay = self._relay
        if relay is None or not relay.heard.is_open:
            relay = self._relay = _Relay(self._follow())
        relay.clients += 1
        sent = b""
        try:
            yield b"retry: 1000\n\n"
            while relay.heard.is_open:
                heard, newest = relay.heard.now, relay.newest
                yield newest if newest != sent else b":\n\n"
                sent = newest
                await relay.heard.change(heard)
        finally:
            relay.clients -= 1
            if not relay.clients:
                relay.end()


class _Relay:
    def __init__(self, stream: AsyncGenerator[bytes, None]) -> None:
        self.clients = 0
        self.newest = b""
        """The newest event."""
        self.heard = StreamedValue(0)
        """How often the daemon has sent something; closed when its stream has ended."""
        self.heard.open()
        self._task = asyncio.create_task(self._run(stream))

    def end(self) -> None:
        self.heard.close()
        self._task.cancel()

    async def _run(self, stream: AsyncGenerator[bytes, None]) -> None:
        rest = b""
        try:
            with suppress(OSError, h11.RemoteProtocolError):
                async with aclosing(stream):
                    async for part in stream:
                        *messages, rest = (rest + part).split(_END)
                        for message in messages:
                            if message.startswith(b"data:"):
                                self.newest = message + _END
                        self.heard.set(self.heard.now + 1)
        finally:
            self.heard.close()
