"""Who gets the page of the node, and who doesn't."""

from __future__ import annotations

import asyncio
import base64
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcherkit_plugin.http.response import Response
from launcherkit_plugin.model.errors import BAD_METRICS_TOKEN
from launcherkit_plugin.web.gate import (
    BAD_SECONDS,
    GOOD_SECONDS,
    GRACE_SECONDS,
    MAX_REVIEWS,
    MAX_TOKENS,
    TokenGate,
    loopback_gate,
    token_file_gate,
    token_in,
)
from tests.support.errors import raises_code
from tests.support.provoked import provoked


class Cluster:
    """Finds one token good, as long as it does; counts how often it is asked."""

    def __init__(self, good: str = "good") -> None:
        self.good = good
        self.asked = 0
        self.answers = asyncio.Event()
        self.answers.set()

    async def review(self, token: str) -> Response:
        self.asked += 1
        await self.answers.wait()
        return Response(204, b"") if token == self.good else Response(401, b"the token is not good\n")


def bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


def basic(token: str, user: str = "") -> dict[str, str]:
    return {"authorization": f"Basic {base64.b64encode(f'{user}:{token}'.encode()).decode()}"}


def status(answer: Response | None) -> str:
    return "200" if answer is None else str(answer.status)


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
        gate = TokenGate(Cluster().review, lambda: 0.0)
        for headers in (bearer("good"), basic("good"), basic("good", "anybody"), {"authorization": "bearer good"}):
            assert await gate(headers) is None
        for headers in ({}, bearer("bad"), basic("bad"), bearer(""), {"authorization": "Basic !"}, basic("g\xf6\xf6d")):
            refused = await gate(headers)
            assert refused is not None
            assert refused.status == 401
            assert [scheme.partition(" ")[0] for _, scheme in refused.headers] == ["Bearer", "Basic"]

    asyncio.run(scenario())


def test_what_the_cluster_says_holds_for_a_while_and_then_it_is_asked_again() -> None:
    async def scenario() -> None:
        cluster, now = Cluster(), [0.0]
        gate = TokenGate(cluster.review, lambda: now[0])
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
        cluster, now = Cluster(), [0.0]
        gate = TokenGate(cluster.review, lambda: now[0])
        assert await gate(bearer("good")) is None
        cluster.answers.clear()
        now[0] = 1.0
        waiting = [asyncio.create_task(gate(bearer(f"t{number}"))) for number in range(MAX_REVIEWS)]
        await asyncio.sleep(0)
        now[0] = 10.0
        assert status(await gate(bearer("one-more"))) == "429"
        assert await gate(bearer("good")) is None
        assert cluster.asked == 1 + MAX_REVIEWS
        cluster.answers.set()
        assert {status(each) for each in await asyncio.gather(*waiting)} == {"401"}

    asyncio.run(scenario())


def test_where_nobody_reviews_tokens_nobody_is_let_in_and_the_next_request_asks_again() -> None:
    async def scenario() -> list[Response | None]:
        unknown, good = Response(503, b"LK852: nobody there\n"), Response(204, b"")
        answers = iter([unknown, good])

        async def review(token: str) -> Response:
            return next(answers)

        gate = TokenGate(review, lambda: 0.0)
        return [await gate(bearer("good")) for _ in range(2)]

    assert asyncio.run(scenario()) == [Response(503, b"LK852: nobody there\n"), None]


@pytest.mark.parametrize(
    ("moments", "expected"),
    [([0.0] * 5, "429"), ([0.0, 0.5, 0.6, 0.7, 0.99], "429"), ([0.0, 0.5, 0.6, 0.7, 1.0], "401")],
)
def test_reviews_are_few_a_second_however_quick_they_are(moments: list[float], expected: str) -> None:
    async def scenario() -> list[str]:
        now = iter(each for moment in moments for each in (moment, moment))
        gate = TokenGate(Cluster().review, lambda: next(now))
        return [status(await gate(bearer(f"t{number}"))) for number in range(len(moments))]

    assert len(moments) == MAX_REVIEWS + 1
    assert asyncio.run(scenario()) == ["401"] * MAX_REVIEWS + [expected]


def test_who_was_let_in_before_is_let_in_while_others_send_many_tokens() -> None:
    class Clock:
        now = 0.0

        def __call__(self) -> float:
            return self.now

    clock, cluster = Clock(), Cluster()

    async def scenario() -> None:
        gate = TokenGate(cluster.review, clock)
        assert await gate(bearer("good")) is None
        for number in range(4 * 75):
            clock.now = 1 + number / 4
            assert status(await gate(bearer(f"bad{number}"))) == "401"
        assert GOOD_SECONDS < clock.now < GOOD_SECONDS + GRACE_SECONDS
        assert cluster.asked == 4 * 75 + 1 > MAX_TOKENS
        assert await gate(bearer("good")) is None
        assert cluster.asked == 4 * 75 + 1
        clock.now = GOOD_SECONDS + GRACE_SECONDS
        for number in range(MAX_REVIEWS):
            assert status(await gate(bearer(f"more{number}"))) == "401"
        assert status(await gate(bearer("good"))) == "429"

    asyncio.run(scenario())


@given(st.text(st.characters(max_codepoint=255), max_size=60))
def test_no_header_is_too_odd_to_be_read(authorization: str) -> None:
    assert " " not in token_in(authorization)


def test_with_a_token_the_metrics_are_for_who_has_it_and_a_new_one_counts_at_once(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("first\n")
    gate = token_file_gate(str(file))

    def asked(header: str | None) -> Response | None:
        async def answer() -> Response | None:
            return await gate({} if header is None else {"authorization": header})

        return asyncio.run(answer())

    assert asked("Bearer first") is None
    for header in (None, "Bearer", "Bearer first2", "Basic first", "Bearer \xff"):
        refused = asked(header)
        assert refused
        assert (refused.status, refused.headers) == (401, (("WWW-Authenticate", "Bearer"),))
    file.write_text("second")
    assert status(asked("Bearer first")) == "401"
    assert asked("bearer second") is None
    file.write_text("")
    assert status(asked("Bearer ")) == "401"


@pytest.mark.parametrize("content", ["", "\n", "two words"])
def test_a_file_without_a_token_is_reported_at_the_start(tmp_path: Path, content: str) -> None:
    file = tmp_path / "token"
    file.write_text(content)
    with raises_code(BAD_METRICS_TOKEN) as caught:
        token_file_gate(str(file))
    (reported,) = provoked("cluster", "LK744")
    assert f"LK744: {caught.value.message}" == reported.replace("/etc/launcherkit-metrics/token", str(file))
    with raises_code(BAD_METRICS_TOKEN, match="No such file"):
        token_file_gate(str(tmp_path / "none"))
