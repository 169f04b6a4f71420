"""Who is served where there is no place for all: the rules, and the server at its limits."""

from __future__ import annotations

import asyncio
import http.client
import json
import select
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from launcherkit_plugin.telemetry.reporter import silent
from launcherkit_plugin.webhook.acceptor import (
    FOR_NEW,
    IDLE_SECONDS,
    PATIENCE,
    PLACES,
    SECONDS,
    SILENCE,
    WAITING,
    Acceptor,
    ServedConnection,
    giving_way,
)
from launcherkit_plugin.webhook.refusals import Refusals
from tests.plugin.webhook.test_server import PATH, YES, Webhook, review

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
    served = [*of_api_server(4), *(connection(POD, YOUNG, answered=True) for _ in range(28))]
    assert gives(served, API_SERVER) == 0  # an idle one of its own: nothing is lost
    assert gives(served[4:], API_SERVER) == 0


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
            stack.enter_context(socket.create_connection(("localhost", webhook.port)))
        first = kept.sock
        kept.request("POST", PATH, review(YES))
        assert json.loads(kept.getresponse().read())["response"]["allowed"]
        assert kept.sock is first
        kept.close()


def test_another_address_is_served_at_once_while_one_holds_all_places(webhook: Webhook) -> None:
    with ExitStack() as stack:
        for _ in range(PLACES + 20):
            stack.enter_context(socket.create_connection(("127.0.0.1", webhook.port), source_address=("127.0.0.2", 0)))
        assert webhook.reviewed(YES)["allowed"]


def test_more_reviews_at_once_than_there_are_places_are_all_answered(webhook: Webhook) -> None:
    with ThreadPoolExecutor(2 * PLACES) as threads:
        assert all(each["allowed"] for each in threads.map(webhook.reviewed, [YES] * 4 * PLACES))


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


class ClockAhead(asyncio.SelectorEventLoop):
    ahead = 0.0

    def time(self) -> float:
        return super().time() + self.ahead


@pytest.mark.parametrize(("answered", "seconds"), [(False, SECONDS), (True, IDLE_SECONDS)])
def test_a_connection_is_closed_when_its_time_is_over(answered: bool, seconds: float) -> None:
    async def closed() -> bool:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, ClockAhead)
        served = asyncio.Queue[ServedConnection]()

        async def serve(connection: ServedConnection, _: socket.socket) -> None:
            if answered:
                acceptor.answered(connection, 0)
            served.put_nowait(connection)
            await asyncio.Event().wait()

        with socket.create_server(("127.0.0.1", 0)) as listener:
            listener.setblocking(False)
            acceptor = Acceptor(listener, serve, Refusals(silent, loop.time), silent)
            async with acceptor:
                reader, writer = await asyncio.open_connection(*listener.getsockname())
                await served.get()
                loop.ahead = seconds - 2
                for _ in range(20):  # what is due is done
                    await asyncio.sleep(0)
                kept = not reader.at_eof()
                loop.ahead = seconds + 2
                assert await reader.read() == b""
                writer.close()
                return kept

    with asyncio.Runner(loop_factory=ClockAhead) as runner:
        assert runner.run(closed()), "it was closed too early"
