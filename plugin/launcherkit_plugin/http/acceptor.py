"""Which connections are served. Every pod may connect, so none of them may keep the others out (T4).

Accepted connections wait, unread, until they are served. The address with the fewest connections is next. Where no
place is free, a connection gives its place to the next: `giving_way`.
"""

from __future__ import annotations

import asyncio
import socket
from collections import Counter
from collections.abc import Awaitable, Callable, Collection
from functools import partial
from typing import NamedTuple

from launcherkit_plugin.http.response import Refusals
from launcherkit_plugin.telemetry.reporter import Log

PLACES = 32
WAITING = 128
"""A socket that waits costs what the kernel keeps of it: `_RECEIVED`."""
UNDER_WAY = 16 << 20
"""The most bytes of requests that are not answered yet."""
SECONDS = 10.0
"""How long a request may take from its first byte, or from when its connection was accepted, until it is answered."""
IDLE_SECONDS = 120.0
"""How long a client keeps a connection between two requests; the API server closes it itself after 90."""
FOR_NEW = 8
"""So many of the places go to connections on which no request was answered yet, if there are as many."""
SILENCE, PATIENCE = 0.1, 1.0
"""How long a client may pause in its first request, and how long that may take, while others wait; seconds."""
_RECEIVED = 64 << 10
_ACCEPTED_AT_ONCE = 64
_STARTED_AT_ONCE = 4
"""Requests on other connections wait for the handshakes of so many at most."""


class ServedConnection:
    """One that is served."""

    def __init__(self, address: str, now: float) -> None:
        self.address = address
        self.since = now
        """When its current request began, or when it became idle."""
        self.heard = now
        """When bytes came last."""
        self.busy = True
        self.answered = False
        """Whether a request was answered on it."""
        self.whole = False
        """Whether its current request has come whole: it is being answered."""
        self.held = 0
        """Bytes that it has sent and that are not answered yet."""
        self.timer: asyncio.TimerHandle | None = None
        """Looks at the deadline."""

    @property
    def deadline(self) -> float:
        """When it is closed if nothing happens."""
        return self.since + (SECONDS if self.busy else IDLE_SECONDS)


def giving_way(served: Collection[ServedConnection], newcomer: str, now: float) -> ServedConnection | None:
    """The connection whose place goes to a newcomer where none is free; None if the newcomer has to wait.

    A connection whose request has come whole is safe, and so is one on which a request was answered while at least
    `FOR_NEW` places are held by others. Of the rest, one gives its place if it is idle, or if its request is late: it
    takes longer than `PATIENCE`, or has stopped for `SILENCE`. If its address has fewer connections than the newcomer's
    would have, or as many, only a first request is late; if it has more, a first request need not be late. Idle ones
    are first, then those of the address with the most connections, then the oldest.

    Args:
        served: all connections.
        newcomer: its address.
        now: on the clock of `ServedConnection.since`.
    """
    counts = Counter(connection.address for connection in served)
    new = [connection for connection in served if not connection.answered]

    def gives(connection: ServedConnection) -> bool:
        late = now - connection.heard > SILENCE or now - connection.since > PATIENCE
        more = counts[connection.address] > counts[newcomer] + 1
        first = not connection.answered
        return not connection.whole and (not connection.busy or (late and first) or (more and (late or first)))

    return min(
        filter(gives, new if len(new) >= FOR_NEW else served),
        key=lambda connection: (connection.busy, -counts[connection.address], connection.since),
        default=None,
    )


class _Waiting(NamedTuple):
    socket: socket.socket
    address: str
    since: float


class Acceptor:
    """Accepts connections and serves them, while it is entered.

    Args:
        listener: listens, and doesn't block.
        serve: speaks with a client until the connection is to be closed; an OSError is the client's fault.
        refusals: is told whom no place was left for.
        log: for bugs.
    """

    def __init__(
        self,
        listener: socket.socket,
        serve: Callable[[ServedConnection, socket.socket], Awaitable[None]],
        refusals: Refusals,
        log: Log,
    ) -> None:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _RECEIVED)  # of each connection
        self._listener, self._serve, self._refusals, self._log = listener, serve, refusals, log
        self._loop = asyncio.get_running_loop()
        self._waiting: list[_Waiting] = []
        self._served: dict[ServedConnection, asyncio.Task[None]] = {}
        self._ending = set[asyncio.Task[None]]()
        self._next: asyncio.TimerHandle | None = None

    async def __aenter__(self) -> None:
        self._loop.add_reader(self._listener, self._accept)

    async def __aexit__(self, *_: object) -> None:
        self._loop.remove_reader(self._listener)
        while self._waiting:
            self._waiting.pop().socket.close()
        for connection in list(self._served):
            self._end(connection)
        while self._ending:
            await asyncio.wait(self._ending)
        if self._next:
            self._next.cancel()

    def _accept(self) -> None:
        for _ in range(_ACCEPTED_AT_ONCE):
            try:
                client, (address, *_rest) = self._listener.accept()
            except OSError:  # no more, or one that has gone
                break
            client.setblocking(False)
            self._waiting.append(_Waiting(client, address, self._loop.time()))
            if len(self._waiting) > WAITING:
                ((most, _count),) = Counter(each.address for each in self._waiting).most_common(1)
                self._turn_away(next(each for each in reversed(self._waiting) if each.address == most))
        self._start_in(0)

    def _turn_away(self, waiting: _Waiting) -> None:
        self._waiting.remove(waiting)
        waiting.socket.close()
        self._refusals.add(f"{PLACES} connections are served and {WAITING} wait", waiting.address)

    def _start_in(self, seconds: float) -> None:
        if self._next:
            self._next.cancel()
        self._next = self._loop.call_later(seconds, self._start)

    def _start(self) -> None:
        """Serve some of those who wait."""
        self._next = None
        now = self._loop.time()
        for late in [waiting for waiting in self._waiting if now - waiting.since > SECONDS]:
            self._turn_away(late)
        for _ in range(_STARTED_AT_ONCE):
            if not self._waiting:
                return
            counts = Counter(each.address for each in self._served)
            turn = min(self._waiting, key=lambda waiting: (counts[waiting.address], waiting.since))
            if len(self._served) >= PLACES:
                leaves = giving_way(self._served, turn.address, now)
                if not leaves:
                    self._start_in(SILENCE / 2)
                    return
                if leaves.busy:
                    self._refusals.add("its place was needed for another connection", leaves.address)
                self._end(leaves)
            self._waiting.remove(turn)
            connection = ServedConnection(turn.address, now)
            task = self._loop.create_task(self._served_until_closed(connection, turn.socket))
            task.add_done_callback(partial(self._ended, connection, turn))
            self._served[connection] = task
            self._watch(connection)
        self._start_in(0)

    async def _served_until_closed(self, connection: ServedConnection, client: socket.socket) -> None:
        try:
            await self._serve(connection, client)
        except OSError as problem:
            if connection.busy:
                self._refusals.add(f"the connection failed: {problem}", connection.address)

    def _watch(self, connection: ServedConnection) -> None:
        """Close a connection when its time is over."""
        if connection.timer:
            connection.timer.cancel()
        if self._loop.time() < connection.deadline:
            connection.timer = self._loop.call_at(connection.deadline, self._watch, connection)
            return
        if connection.busy:
            self._refusals.add(f"no complete request in {SECONDS:.0f} s", connection.address)
        self._end(connection)

    def _end(self, connection: ServedConnection) -> None:
        task = self._served[connection]
        self._forget(connection)
        self._ending.add(task)
        task.cancel()

    def _forget(self, connection: ServedConnection) -> None:
        self._served.pop(connection, None)
        if connection.timer:
            connection.timer.cancel()

    def _ended(self, connection: ServedConnection, turn: _Waiting, task: asyncio.Task[None]) -> None:
        turn.socket.close()
        self._forget(connection)
        self._ending.discard(task)
        if not task.cancelled() and (problem := task.exception()):
            self._log("error", f"a bug: {problem!r}", client=turn.address)
        if self._waiting:
            self._start_in(0)

    def received(self, connection: ServedConnection, size: int) -> None:
        """Bytes of a request have come.

        If there are too many in all, the largest request of the address with the most is closed.
        """
        connection.heard = self._loop.time()
        if not connection.busy:
            connection.busy, connection.since = True, connection.heard
            self._watch(connection)
        connection.held += size
        if sum(each.held for each in self._served) > UNDER_WAY:
            of_address = Counter[str]()
            for served in self._served:
                of_address[served.address] += served.held
            largest = max(self._served, key=lambda served: (of_address[served.address], served.held))
            self._refusals.add(f"more than {UNDER_WAY >> 20} MiB of requests are under way", largest.address)
            self._end(largest)

    def answered(self, connection: ServedConnection, unread: int) -> None:
        """A request was answered; ``unread`` bytes were sent after it."""
        connection.busy, connection.answered, connection.since = False, True, self._loop.time()
        connection.whole = False
        connection.held = unread
