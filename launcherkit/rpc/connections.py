"""All connections of a server: their number is limited, and idle ones make room for new ones (T4)."""

from __future__ import annotations

import asyncio

from launcherkit.rpc.connection import BoundedConnection

CONNECTIONS_AT_ONCE = 256
NEW_SECONDS = 1.0
"""How long a connection without a call keeps its place at least, after it was opened or its last call ended."""


class Connections:
    """The open connections."""

    def __init__(self) -> None:
        self._open: dict[BoundedConnection, None] = {}
        self._ending = False
        self._all_gone = asyncio.Event()
        self._all_gone.set()

    def opened(self, connection: BoundedConnection) -> bool:
        """Whether there is room for a connection; if necessary, the one that has been idle for longest is closed."""
        if self._ending:  # it was accepted a moment ago; `hang_up` would miss it
            return False
        if len(self._open) >= CONNECTIONS_AT_ONCE:
            since = connection.last_used - NEW_SECONDS
            idle = [each for each in self._open if each.last_used <= since and not each.is_busy]
            if not idle:
                return False
            oldest = min(idle, key=lambda each: each.last_used)
            del self._open[oldest]
            oldest.abort()
        self._open[connection] = None
        self._all_gone.clear()
        return True

    def closed(self, connection: BoundedConnection) -> None:
        """Forget a connection that has ended."""
        self._open.pop(connection, None)
        if not self._open:
            self._all_gone.set()

    async def hang_up(self) -> None:
        """Close each connection after everything written has been sent; peers that don't read are not waited for."""
        self._ending = True
        for connection in list(self._open):
            connection.close()
        await self._all_gone.wait()
