"""Who gets the page of the node, and who doesn't."""

from __future__ import annotations

import asyncio
import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcherkit_plugin.cluster.socket import ClusterSocket
from launcherkit_plugin.daemon.page_wiring import PageServing
from launcherkit_plugin.model.config import PageChoice
from launcherkit_plugin.model.errors import PageNotServed, TokenNotReviewed
from launcherkit_plugin.model.wakeups import WakeupQueue
from launcherkit_plugin.page.gate import BAD_SECONDS, GOOD_SECONDS, MAX_REVIEWS, TokenGate, loopback_gate, token_in
from launcherkit_plugin.telemetry.http import Response, Served
from launcherkit_plugin.telemetry.reporter import silent
from tests.support.provoked import provoked


class Cluster:
    """Finds one token good, as long as it does; counts how often it is asked."""

    def __init__(self, good: str = "good") -> None:
        self.good = good
        self.asked = 0
        self.answers = asyncio.Event()
        self.answers.set()

    async def review_token(self, token: str, seconds: float) -> str | None:
        self.asked += 1
        await self.answers.wait()
        return None if token == self.good else "the token is not good"


def bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


def basic(token: str, user: str = "") -> dict[str, str]:
    return {"authorization": f"Basic {base64.b64encode(f'{user}:{token}'.encode()).decode()}"}


def status(answer: Response | None) -> str:
    return "200" if answer is None else answer.status[:3]


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("localhost:8080", "200"),
        ("LOCALHOST", "200"),
        ("127.0.0.1:18080", "200"),
        ("[::1]:8080", "200"),
        ("[::1]", "200"),
        ("node.example:8080", "421"),
        ("127.0.0.1.evil.example:8080", "421"),
        ("localhost.", "421"),
        ("", "421"),
    ],
)
def test_a_name_that_was_made_to_lead_here_leads_to_no_page(host: str, expected: str) -> None:
    assert status(asyncio.run(loopback_gate({"host": host} if host else {}))) == expected


def test_a_good_token_gets_the_page_as_bearer_and_as_a_browsers_password() -> None:
    async def scenario() -> None:
        gate = TokenGate(Cluster(), lambda: 0.0)
        for headers in (bearer("good"), basic("good"), basic("good", "anybody"), {"authorization": "bearer good"}):
            assert await gate(headers) is None
        for headers in ({}, bearer("bad"), basic("bad"), bearer(""), {"authorization": "Basic !"}, basic("g\xf6\xf6d")):
            refused = await gate(headers)
            assert refused is not None
            assert refused.status == "401 Unauthorized"
            assert [scheme.partition(" ")[0] for _, scheme in refused.headers] == ["Bearer", "Basic"]

    asyncio.run(scenario())


def test_what_the_cluster_says_holds_for_a_while_and_then_it_is_asked_again() -> None:
    async def scenario() -> None:
        cluster, now = Cluster(), [0.0]
        gate = TokenGate(cluster, lambda: now[0])
        for moment, token, expected, asked in (
            (0.0, "good", "200", 1),
            (GOOD_SECONDS - 1, "good", "200", 1),
            (GOOD_SECONDS - 1, "bad", "401", 2),
            (GOOD_SECONDS - 2 + BAD_SECONDS, "bad", "401", 2),
            (GOOD_SECONDS + BAD_SECONDS, "bad", "401", 3),
            (GOOD_SECONDS + BAD_SECONDS, "good", "200", 4),
        ):
            now[0] = moment
            assert (status(await gate(bearer(token))), cluster.asked) == (expected, asked)
        cluster.good, now[0] = "another", 1000.0
        assert status(await gate(bearer("good"))) == "401"

    asyncio.run(scenario())


def test_who_sends_many_tokens_keeps_neither_the_cluster_busy_nor_those_out_who_are_known() -> None:
    async def scenario() -> None:
        cluster = Cluster()
        gate = TokenGate(cluster, lambda: 0.0)
        assert await gate(bearer("good")) is None
        cluster.answers.clear()
        waiting = [asyncio.create_task(gate(bearer(f"t{number}"))) for number in range(MAX_REVIEWS)]
        await asyncio.sleep(0)
        assert status(await gate(bearer("one-more"))) == "429"
        assert await gate(bearer("good")) is None
        assert cluster.asked == 1 + MAX_REVIEWS
        cluster.answers.set()
        assert {status(each) for each in await asyncio.gather(*waiting)} == {"401"}

    asyncio.run(scenario())


def test_where_nobody_reviews_tokens_nobody_is_let_in() -> None:
    async def scenario() -> Response | None:
        socket = ClusterSocket(silent, WakeupQueue(0.01))
        with pytest.raises(TokenNotReviewed) as caught:
            await socket.review_token("good", 1.0)
        (reported,) = provoked("page", "LK852")
        assert f"LK852: {caught.value.message}" == reported
        return await TokenGate(socket, lambda: 0.0)(bearer("good"))

    refused = asyncio.run(scenario())
    assert refused is not None
    assert refused.status == "503 Service Unavailable"
    assert refused.body.startswith(b"LK852: ")


@given(st.text(st.characters(max_codepoint=255), max_size=60))
def test_no_header_is_too_odd_to_be_read(authorization: str) -> None:
    assert " " not in token_in(authorization)


def page_serving(said: PageChoice | None = None, *, cluster: bool = False) -> PageServing:
    socket = ClusterSocket(silent, WakeupQueue(0.01))
    socket.listens = cluster
    return PageServing(said, {"NODE_NAME": "node-1"}, "/", socket, silent)


HERE, EVERYWHERE = Served("127.0.0.1:80", loopback=True), Served("0.0.0.0:80", loopback=False)


@pytest.mark.parametrize(
    ("said", "configured", "served", "expected"),
    [
        (None, "auto", HERE, True),
        (None, "auto", EVERYWHERE, False),
        (None, "auto", None, False),
        (None, "token", EVERYWHERE, True),
        (None, "token", HERE, True),
        (None, "off", HERE, False),
        ("off", "token", EVERYWHERE, False),
        ("auto", "token", EVERYWHERE, False),
        ("token", "auto", EVERYWHERE, True),
    ],
)
def test_the_page_is_there_where_it_is_wanted_and_safe(
    said: PageChoice | None, configured: PageChoice, served: Served | None, expected: bool
) -> None:
    async def scenario() -> set[str]:
        it = page_serving(said, cluster=True)
        if served is not None:
            it.server_started(served)
        it.configure(configured)
        return set(it.pages)

    assert asyncio.run(scenario()) == ({"/", "/events"} if expected else set())


def test_outside_of_loopback_nobody_gets_it_without_a_token() -> None:
    async def scenario() -> list[str]:
        it = page_serving(cluster=False)
        it.server_started(HERE)
        it.configure("auto")
        by_name = await it.pages["/events"]({"host": "localhost"})
        it._cluster.listens = True
        it.configure("token")
        without = await it.pages["/events"]({"host": "localhost"})
        it.configure("off")
        return [by_name.status[:3], without.status[:3], *it.pages]

    assert asyncio.run(scenario()) == ["200", "401"]


@pytest.mark.parametrize("served", [EVERYWHERE, None])
def test_a_page_for_tokens_needs_the_metrics_and_the_cluster(served: Served | None) -> None:
    it = page_serving()
    if served is not None:
        it.server_started(served)
    with pytest.raises(PageNotServed) as caught:
        it.configure("token")
    reported = provoked("page", "LK851")[0 if served else 1]
    assert f"LK851: {caught.value.message}" == reported
