"""All connections of a server: so many, and none that does nothing keeps out one that wants something (T4)."""

from __future__ import annotations

import asyncio

from launcherkit.rpc.connection import BoundedConnection

CONNECTIONS_AT_ONCE = 256


class Connections:
    """See `launcherkit.rpc.connection.Peers`."""

    def __init__(self) -> None:
        self.in_debt = 0
        self._open: dict[BoundedConnection, None] = {}
        self._ending = False
        self._all_gone = asyncio.Event()
        self._all_gone.set()

    def opened(self, connection: BoundedConnection) -> bool:
        """Whether there is room, which the one makes that has been without a call for longest."""
        if self._ending:  # it was accepted a moment before; nobody would hang up on it any more
            return False
        if len(self._open) >= CONNECTIONS_AT_ONCE:
            idle = [each for each in self._open if not each.is_busy]
            if not idle:
                return False
            oldest = min(idle, key=lambda each: each.last_used)
            del self._open[oldest]
            oldest.abort()
        self._open[connection] = None
        self._all_gone.clear()
        return True

    def closed(self, connection: BoundedConnection) -> None:
        """One has gone."""
        self._open.pop(connection, None)
        if not self._open:
            self._all_gone.set()

    async def hang_up(self) -> None:
        """Close every one once what was written to it has left; none is waited for that doesn't read its answer."""
        self._ending = True
        for connection in list(self._open):
            connection.close()
        await self._all_gone.wait()
