"""Tokens for the page of the node: reviewed by the process that speaks to the cluster, for the daemon."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from launcherkit_plugin.cluster.api import Api, ApiProblem, Json
from launcherkit_plugin.cluster.requests import (
    ACCESSREVIEWS_PATH,
    AUDIENCE,
    PAGE_URL,
    TOKENREVIEWS_PATH,
    Questions,
    ask_for_review,
    refusal_of,
)
from launcherkit_plugin.model.errors import TOKEN_NOT_REVIEWED, NoCluster
from launcherkit_plugin.telemetry.reporter import Reporter
from tests.plugin.cluster.test_cluster import Daemon, beside, kubeconfig, path, server
from tests.support.apiserver import ApiServer
from tests.support.errors import raises_code

__all__ = ["kubeconfig", "path", "server"]

ANN: Json = {"username": "ann", "uid": "7", "groups": ["admins"], "extra": {"k": ["v"]}}


class Reviewer(Api):
    """An API server that says what it is told to."""

    def __init__(self, token: Json, access: Json) -> None:
        self.status = {TOKENREVIEWS_PATH: token, ACCESSREVIEWS_PATH: access}
        self.asked: list[tuple[str, Json]] = []

    def post(self, path: str, body: Json, *, dry_run: bool = False) -> Json:
        assert not dry_run
        self.asked.append((path, body["spec"]))
        return {**body, "status": self.status[path]}


GOOD: Json = {"authenticated": True, "audiences": [AUDIENCE], "user": ANN}


def test_the_owner_of_a_good_token_is_asked_about_with_all_that_the_token_says_of_him() -> None:
    reviewer = Reviewer(GOOD, {"allowed": True})
    assert refusal_of(reviewer, "t") == ""
    assert reviewer.asked == [
        (TOKENREVIEWS_PATH, {"token": "t", "audiences": [AUDIENCE]}),
        (
            ACCESSREVIEWS_PATH,
            {
                "user": "ann",
                "uid": "7",
                "groups": ["admins"],
                "extra": {"k": ["v"]},
                "nonResourceAttributes": {"path": PAGE_URL, "verb": "get"},
            },
        ),
    ]


@pytest.mark.parametrize(
    ("token", "access", "why"),
    [
        ({"authenticated": False, "error": "expired"}, {}, "the token is invalid"),
        ({}, {}, "the token is invalid"),
        ({**GOOD, "audiences": ["https://kubernetes.default.svc"]}, {"allowed": True}, "not for the audience"),
        ({"authenticated": True, "user": ANN}, {"allowed": True}, "not for the audience"),
        ({**GOOD, "authenticated": "yes"}, {"allowed": True}, "the token is invalid"),
        (GOOD, {"allowed": False}, f"ann may not get {PAGE_URL}"),
        (GOOD, {}, "ann may not get"),
    ],
)
def test_a_token_that_is_not_good_or_not_for_the_page_or_whose_owner_may_not_gets_nothing(
    token: Json, access: Json, why: str
) -> None:
    assert why in refusal_of(Reviewer(token, access), "t")


@pytest.mark.parametrize("value", [None, 7, {"id": 1}, {"token": "secret"}, {"id": "1", "token": "secret"}])
def test_what_is_no_request_is_refused_and_no_token_is_reported(value: object) -> None:
    questions = Questions(1, lambda answer: None, Reporter())
    with pytest.raises(ValueError, match="no number and no token") as caught:
        ask_for_review(value, Reviewer(GOOD, {}), questions)
    assert "secret" not in str(caught.value)


def test_a_server_that_says_something_else_is_a_problem_and_nobody_is_let_in() -> None:
    with pytest.raises(ApiProblem, match="username"):
        refusal_of(Reviewer({**GOOD, "user": {}}, {"allowed": True}), "t")


def reviewed(path: Path, kubeconfig: Path, *tokens: str) -> list[str | None]:
    """What the daemon is told, through its socket and the other process."""
    found: list[str | None] = []

    async def scenario(it: Daemon) -> None:
        for token in tokens:
            try:
                found.append(await it.socket.review_token(token, 60.0))
            except NoCluster as problem:
                found.append(problem.message)

    beside(path, kubeconfig, scenario)
    return found


def test_the_daemon_learns_over_its_socket_whose_token_gets_the_page(
    server: ApiServer, kubeconfig: Path, path: Path
) -> None:
    server.tokens = {"anns": {"audiences": [AUDIENCE], "user": ANN}, "bobs": {"audiences": [AUDIENCE], "user": BOB}}
    server.permitted = {("ann", PAGE_URL, "get")}
    good, other, none = reviewed(path, kubeconfig, "anns", "bobs", "nobodys")
    assert good is None
    assert other == f"bob may not get {PAGE_URL}"
    assert none == f"the token is invalid, has expired, or is not for the audience {AUDIENCE}"


BOB: dict[str, Any] = {"username": "bob"}


def test_a_process_that_may_not_ask_says_which_right_it_lacks(server: ApiServer, kubeconfig: Path, path: Path) -> None:
    server.tokens = None
    (reported,) = reviewed(path, kubeconfig, "anns")
    assert isinstance(reported, str)
    assert reported.startswith("the token can't be reviewed: ")
    assert "tokenreviews" in reported
    assert "anns" not in reported


def test_the_daemon_does_not_wait_for_ever(path: Path) -> None:
    from tests.plugin.cluster.test_cluster import daemon

    async def scenario(it: Daemon) -> None:
        with raises_code(TOKEN_NOT_REVIEWED, match=r"is not connected within 0\.05 s"):
            await it.socket.review_token("t", 0.05)
        assert asyncio.all_tasks()  # it goes on

    daemon(path, scenario)
