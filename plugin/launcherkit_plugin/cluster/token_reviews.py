"""Reviews tokens that browsers send to the page of the node: whether they are valid, and whether their owners may see
the page (TokenReview and SubjectAccessReview).

A token must have the page's audience: one for the API server must not be sent to a server without TLS.
"""

from __future__ import annotations

from launcherkit_plugin.cluster.api import Api, Json, part, texts
from launcherkit_plugin.cluster.questions import Questions

TOKENREVIEWS_PATH = "/apis/authentication.k8s.io/v1/tokenreviews"
ACCESSREVIEWS_PATH = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
AUDIENCE = "page.launcherkit.io"
"""The audience that a token must have: ``kubectl create token NAME --audience page.launcherkit.io``."""
PAGE_URL = "/launcherkit-plugin/page"
"""The ``nonResourceURL`` that the owner must have the right to get. The API server itself serves nothing there."""
TOKENS_AT_ONCE = 2


def ask_for_review(value: object, server: Api, questions: Questions) -> None:
    """Begin to review the token in a message ``review-token``.

    Raises:
        ValueError: the message is invalid. The error doesn't quote it: it may contain a token.
    """
    match value:
        case {"id": int(number), "token": str(token)}:
            questions.take(number, "a token's review", lambda: review_of(server, token))
        case _:
            raise ValueError("review-token: that has no number and no token")


def review_of(server: Api, token: str) -> Json:
    """The review of a token, as in a message ``token``; raises the same as `refusal_of`."""
    why = refusal_of(server, token)
    return {"allowed": not why, "why": why}


def refusal_of(server: Api, token: str) -> str:
    """Why a token doesn't grant access to the page; empty if it does.

    Raises:
        ApiProblem: the server doesn't answer, or refuses the review.
    """
    review = {
        "apiVersion": "authentication.k8s.io/v1",
        "kind": "TokenReview",
        "spec": {"token": token, "audiences": [AUDIENCE]},
    }
    found = part(server.post(TOKENREVIEWS_PATH, review), "status")
    # An authenticator that doesn't support audiences returns none: its tokens are for the API server.
    if found.get("authenticated") is not True or AUDIENCE not in (found.get("audiences") or ()):
        return f"the token is invalid, has expired, or is not for the audience {AUDIENCE}"
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
