"""Who is served where there is no place for all: the rules, and the server at its limits."""

from __future__ import annotations

import asyncio
import http.client
import itertools
import json
import select
import socket
import ssl
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from launcherkit_plugin.http.acceptor import (
    FOR_NEW,
    IDLE_SECONDS,
    PATIENCE,
    PLACES,
    SECONDS,
    SILENCE,
    UNDER_WAY,
    WAITING,
    Acceptor,
    ServedConnection,
    giving_way,
)
from launcherkit_plugin.http.response import Refusals
from launcherkit_plugin.telemetry.reporter import silent
from tests.plugin.webhook.test_server import HERE, PATH, YES, Webhook, review

NOW = 1000.0
YOUNG, LATE = NOW - SILENCE / 2, NOW - PATIENCE * 2
API_SERVER, POD, OTHER = "10.0.0.1", "10.1.0.1", "10.1.0.2"


def connection(address: str, since: float, *, busy: bool = True, answered: bool = False) -> ServedConnection:
    it = ServedConnection(address, since)
    it.busy, it.answered = busy, answered
    return it


def gives(served: list[ServedConnection], newcomer: str = OTHER) -> int | None:
    leaves = giving_way(served, newcomer, NOW)
    return None if leaves is None else served.index(leaves)


def of_api_server(count: int) -> list[ServedConnection]:
    return [connection(API_SERVER, 0.0, busy=False, answered=True) for _ in range(count)]


def young_of_all(count: int = FOR_NEW) -> list[ServedConnection]:
    return [connection(f"10.2.0.{number}", YOUNG) for number in range(count)]


def test_the_oldest_of_the_address_with_the_most_connections_gives_its_place() -> None:
    served = [connection(API_SERVER, LATE), *(connection(POD, YOUNG + 0.001 * number) for number in range(31))]
    assert gives(served) == 1
    assert gives([*reversed(served)]) == 30


def test_where_all_addresses_have_as_many_the_first_request_that_takes_too_long_gives() -> None:
    served = [*young_of_all(), connection(POD, LATE), connection(OTHER, LATE - 1)]
    assert gives(served, "10.3.0.1") == len(served) - 1


def test_a_first_request_that_stops_gives_and_one_that_goes_on_for_long_too() -> None:
    stopped, going_on = connection(POD, NOW - SILENCE * 2), connection(OTHER, NOW - SILENCE * 3)
    going_on.heard = NOW
    assert gives([*young_of_all(), going_on, stopped], "10.3.0.1") == FOR_NEW + 1
    going_on.since = LATE
    assert gives([*young_of_all(), going_on], "10.3.0.1") == FOR_NEW


def test_first_requests_that_are_young_are_not_interrupted_by_others_of_the_same_address() -> None:
    served = [connection(API_SERVER, YOUNG) for _ in range(PLACES)]
    assert gives(served, API_SERVER) is None
    assert gives(served, POD) == 0


def test_who_was_answered_is_safe_while_others_hold_places() -> None:
    kept = of_api_server(PLACES - FOR_NEW)
    assert gives([*kept, *young_of_all()]) is None
    assert gives([*kept, *young_of_all(), connection(POD, LATE)]) == PLACES


def test_who_was_answered_and_is_idle_gives_where_only_such_are_left_and_the_longest_idle_first() -> None:
    kept = [connection(API_SERVER, NOW - number, busy=False, answered=True) for number in range(PLACES)]
    assert gives(kept, API_SERVER) == PLACES - 1
    busy = [connection(API_SERVER, 0.0, answered=True), *kept]
    assert gives(busy, API_SERVER) == PLACES
    assert gives([connection(API_SERVER, 0.0, answered=True) for _ in range(PLACES)], API_SERVER) is None


def test_reviews_win_no_pod_more_than_its_share() -> None:
    served = [*of_api_server(4), *(connection(POD, LATE, answered=True) for _ in range(28))]
    assert gives(served, API_SERVER) == 0  # an idle one of its own: nothing is lost
    assert gives(served[4:], API_SERVER) == 0


def test_a_review_under_way_on_a_kept_connection_is_not_cut_off_and_one_that_is_being_answered_never() -> None:
    coming = [connection(API_SERVER, YOUNG, answered=True) for _ in range(PLACES)]
    assert gives(coming, POD) is None
    for answered in (True, False):
        served = [connection(API_SERVER, LATE, answered=answered) for _ in range(PLACES)]
        assert gives(served, POD) == 0
        for each in served:
            each.whole = True
        assert gives(served, POD) is None


def test_refusals_are_a_line_a_minute_with_how_many_there_were() -> None:
    lines, now = list[str](), [0.0]
    refusals = Refusals(lambda level, text, **fields: lines.append(f"{level}: {text}, {fields}"), lambda: now[0])
    for now[0] in (0, 1, 59, 60, 61, 200):
        refusals.add(f"at {now[0]}", "10.0.0.1")
    of = "{'client': '10.0.0.1'}"
    assert lines == [
        f"warning: refused: at 0, {of}",
        f"warning: refused: at 60; 2 others since the last such line, {of}",
        f"warning: refused: at 200; 1 others since the last such line, {of}",
    ]


@pytest.fixture
def webhook(tmp_path: Path) -> Iterator[Webhook]:
    it = Webhook(tmp_path)
    with it.running():
        yield it


def test_a_kept_connection_outlives_more_silent_ones_than_there_are_places(webhook: Webhook) -> None:
    kept = webhook.connected()
    kept.request("POST", PATH, review(YES))
    assert kept.getresponse().read()
    with ExitStack() as stack:
        for _ in range(PLACES + WAITING + 20):
            stack.enter_context(socket.create_connection((HERE, webhook.port)))
        first = kept.sock
        kept.request("POST", PATH, review(YES))
        assert json.loads(kept.getresponse().read())["response"]["allowed"]
        assert kept.sock is first
        kept.close()


def test_another_address_is_served_at_once_while_one_holds_all_places(webhook: Webhook) -> None:
    with ExitStack() as stack:
        for _ in range(PLACES + 20):
            stack.enter_context(socket.create_connection(("127.0.0.1", webhook.port), source_address=("127.0.0.2", 0)))
        assert allowed(webhook)


def allowed(webhook: Webhook) -> bool:
    """Whether the pod is. On a busy machine a client pauses for longer than it may while others wait, so it retries."""
    while True:
        with suppress(ConnectionError, ssl.SSLError):
            return bool(webhook.reviewed(YES)["allowed"])


def test_more_reviews_at_once_than_there_are_places_are_all_answered(webhook: Webhook) -> None:
    with ThreadPoolExecutor(2 * PLACES) as threads:
        assert all(threads.map(lambda _: allowed(webhook), range(4 * PLACES)))


def half_sent(webhook: Webhook, size: int) -> http.client.HTTPSConnection:
    it = webhook.connected()
    it.putrequest("POST", PATH)
    it.putheader("Content-Length", str(size + 1))
    it.endheaders(bytes(size))
    return it


def test_of_requests_that_are_too_large_in_all_the_largest_is_closed(webhook: Webhook) -> None:
    small = half_sent(webhook, 1000)
    large = {each.sock: each for each in (half_sent(webhook, (4 << 20) - 1) for _ in range(4))}
    readable, _, _ = select.select(list(large), [], [], 60)
    with suppress(ConnectionResetError):
        assert readable[0].recv(1) == b""
    for each in large.values():
        each.close()
    small.send(b"x")
    assert small.getresponse().status == 400
    small.close()


class StoppedClock(asyncio.SelectorEventLoop):
    now = 1000.0

    def time(self) -> float:
        return self.now


class Accepting:
    """An acceptor whose clients are never spoken with, and a clock that only moves when it is told to."""

    def __init__(self, listener: socket.socket) -> None:
        self.listener, self.clients = listener, list[asyncio.StreamWriter]()
        self.served, self.refused = dict[ServedConnection, asyncio.Event](), list[str]()
        loop = asyncio.get_running_loop()
        assert isinstance(loop, StoppedClock)
        self.loop = loop
        refusals = Refusals(lambda level, text, **fields: self.refused.append(text), itertools.count(0, 100).__next__)
        self.acceptor = Acceptor(listener, self._serve, refusals, silent)

    async def _serve(self, connection: ServedConnection, _: socket.socket) -> None:
        self.served[connection] = asyncio.Event()
        await self.served[connection].wait()

    async def connect(self, address: str = "127.0.0.1") -> asyncio.StreamReader:
        reader, writer = await asyncio.open_connection(*self.listener.getsockname(), local_addr=(address, 0))
        self.clients.append(writer)
        await self.settle()
        return reader

    async def settle(self, seconds: float = 0) -> None:
        """Let time pass, and all be done that is due."""
        self.loop.now += seconds
        for _ in range(30):
            await asyncio.sleep(0)


def accepting(test: Callable[[Accepting], Awaitable[None]]) -> None:
    async def run() -> None:
        with socket.create_server(("127.0.0.1", 0), backlog=256) as listener:
            listener.setblocking(False)
            it = Accepting(listener)
            async with it.acceptor:
                await test(it)
            for client in it.clients:
                client.close()
            await it.settle()

    with asyncio.Runner(loop_factory=StoppedClock) as runner:
        runner.run(run())


def test_of_requests_that_are_too_large_in_all_those_of_the_address_with_the_most_are_closed() -> None:
    async def test(it: Accepting) -> None:
        of_api_server = await it.connect()
        of_pod = [await it.connect("127.0.0.2") for _ in range(PLACES - 2)]
        review, *others = it.served
        it.acceptor.received(review, 1 << 20)
        for each in others:
            it.acceptor.received(each, UNDER_WAY // len(others))
        await it.settle()
        assert not of_api_server.at_eof()
        assert sum(each.at_eof() for each in of_pod) == 2

    accepting(test)


def test_a_connection_is_closed_when_its_time_is_over() -> None:
    async def test(it: Accepting) -> None:
        first, kept = await it.connect(), await it.connect()
        connection = list(it.served)[1]
        it.acceptor.received(connection, 100)
        it.acceptor.answered(connection, 0)
        assert connection.held == 0
        await it.settle(SECONDS - 1)
        assert not first.at_eof()
        await it.settle(2)
        assert (first.at_eof(), kept.at_eof()) == (True, False)
        await it.settle(IDLE_SECONDS - SECONDS - 2)
        assert not kept.at_eof()
        await it.settle(2)
        assert kept.at_eof()

    accepting(test)


def test_each_request_of_a_kept_connection_has_its_own_time() -> None:
    async def test(it: Accepting) -> None:
        kept = await it.connect()
        (connection,) = it.served
        it.acceptor.answered(connection, 0)
        await it.settle(SECONDS * 3)
        it.acceptor.received(connection, 1)
        await it.settle(SECONDS - 1)
        assert not kept.at_eof()
        await it.settle(2)
        assert kept.at_eof()

    accepting(test)


def test_who_waits_is_next_when_a_place_is_free_and_the_address_with_the_fewest_first() -> None:
    async def test(it: Accepting) -> None:
        for _ in range(PLACES + 2):
            await it.connect("127.0.0.2")
        assert len(it.served) == PLACES
        await it.connect("127.0.0.3")
        assert [each.address for each in it.served][PLACES:] == ["127.0.0.3"]
        assert ["its place was needed for another connection" in text for text in it.refused] == [True]
        list(it.served.values())[5].set()
        await it.settle()
        assert [each.address for each in it.served][PLACES:] == ["127.0.0.3", "127.0.0.2"]

    accepting(test)


def test_of_more_than_may_wait_the_last_of_the_address_with_the_most_is_turned_away() -> None:
    async def test(it: Accepting) -> None:
        waiting = [await it.connect("127.0.0.2") for _ in range(PLACES + WAITING)][-1]
        other = await it.connect("127.0.0.3")
        assert (waiting.at_eof(), other.at_eof()) == (True, False)
        assert f"{PLACES} connections are served and {WAITING} wait" in it.refused[0]

    accepting(test)


def test_no_more_wait_than_may_and_none_for_longer_than_a_request_may_take() -> None:
    async def test(it: Accepting) -> None:
        waiting = [await it.connect() for _ in range(PLACES + WAITING)][-1]
        assert it.refused == []
        assert (await it.connect()).at_eof()
        assert (waiting.at_eof(), len(it.refused)) == (False, 1)
        await it.settle(SECONDS + 1)
        assert (waiting.at_eof(), len(it.served)) == (True, PLACES)

    accepting(test)
