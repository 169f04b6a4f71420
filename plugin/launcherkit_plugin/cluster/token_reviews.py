"""Tokens that browsers show to the page of the node: are they good, and may their owners get it.

TokenReview and SubjectAccessReview. A token has to be made for the page: one that is meant for the API server would be
given to a server without TLS.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

from launcherkit_plugin.cluster.api import ApiProblem, Json, part, texts
from launcherkit_plugin.telemetry.reporter import Reporter

TOKENREVIEWS_PATH = "/apis/authentication.k8s.io/v1/tokenreviews"
ACCESSREVIEWS_PATH = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
AUDIENCE = "page.launcherkit.io"
"""What a token has to be for: ``kubectl create token NAME --audience page.launcherkit.io``."""
PAGE_URL = "/launcherkit-plugin/page"
"""The ``nonResourceURL`` that a role gives the right to get. The API server itself has nothing there."""
_READERS = 2


class ReviewServer(Protocol):
    """As much of `Api` as is needed."""

    def post(self, path: str, body: Json) -> Json: ...


class TokenReviews:
    """Answers what a daemon asks about tokens.

    Args:
        server: which says so.
        answered: is given the value of a message ``token``.
        reporter: is told of bugs.
    """

    def __init__(self, server: ReviewServer, answered: Callable[[Json], None], reporter: Reporter) -> None:
        self._server = server
        self._answered = answered
        self._reporter = reporter
        self._readers = ThreadPoolExecutor(_READERS, "tokens")

    def review(self, value: object) -> None:
        """Begin to review a token.

        Raises:
            ValueError: that is no request. What it is isn't said: it may be a token.
        """
        match value:
            case {"id": int(number), "token": str(token)}:
                self._readers.submit(self._review, number, token)
            case _:
                raise ValueError("review-token: that has no number and no token")

    def _review(self, number: int, token: str) -> None:
        try:
            why = refusal_of(self._server, token)
            self._answered({"id": number, "allowed": not why, "why": why})
        except ApiProblem as problem:
            self._answered({"id": number, "error": str(problem)})
        except Exception as bug:
            self._reporter.bug(bug, " while a token was reviewed")


def refusal_of(server: ReviewServer, token: str) -> str:
    """Why a token doesn't get the page; empty where it does.

    Raises:
        ApiProblem: the server can't say: it doesn't answer, or this process may not ask.
    """
    review = {
        "apiVersion": "authentication.k8s.io/v1",
        "kind": "TokenReview",
        "spec": {"token": token, "audiences": [AUDIENCE]},
    }
    found = part(server.post(TOKENREVIEWS_PATH, review), "status")
    # An authenticator that knows no audiences says none: its tokens are for the API server.
    if found.get("authenticated") is not True or AUDIENCE not in (found.get("audiences") or ()):
        return f"the token is not good, has expired, or is not for the audience {AUDIENCE}"
    user = part(found, "user")
    (name,) = texts(user, "username")
    access = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SubjectAccessReview",
        "spec": {
            "user": name,
            "uid": user.get("uid", ""),
            "groups": user.get("groups") or [],
            "extra": user.get("extra") or {},
            "nonResourceAttributes": {"path": PAGE_URL, "verb": "get"},
        },
    }
    if part(server.post(ACCESSREVIEWS_PATH, access), "status").get("allowed") is not True:
        return f"{name} may not get {PAGE_URL}"
    return ""
