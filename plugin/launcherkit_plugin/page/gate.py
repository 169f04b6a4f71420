"""Who may see the page: on loopback, everybody on the host; elsewhere, clients whose token the cluster accepts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from launcherkit_plugin.model.errors import TokenNotReviewed
from launcherkit_plugin.telemetry.http import Response

REVIEW_SECONDS = 5.0
"""How long to wait for the cluster's review."""
GOOD_SECONDS, BAD_SECONDS = 60.0, 10.0
"""How long a positive and a negative review are remembered."""
MAX_TOKENS = 256
"""The most tokens whose reviews are remembered."""
MAX_REVIEWS = 4
"""The most reviews at once: clients that send many tokens must not load the API server."""

_LOOPBACK = ("localhost", "127.0.0.1", "[::1]")
_CHALLENGES = (("WWW-Authenticate", "Bearer"), ("WWW-Authenticate", 'Basic realm="a token as the password"'))


async def loopback_gate(headers: Mapping[str, str]) -> Response | None:
    """Admit requests with a loopback name in Host. Any other name could be a DNS rebinding attack, by which a foreign
    web page would read this one.
    """
    host = headers.get("host", "")
    name = host if host.endswith("]") else host.rpartition(":")[0] or host
    if name.lower() in _LOOPBACK:
        return None
    return Response("421 Misdirected Request", b"the page is at localhost, 127.0.0.1 and [::1] alone\n")


class Reviews(Protocol):
    """Has tokens reviewed by the cluster."""

    async def review_token(self, token: str, seconds: float) -> str | None:
        """Why a token doesn't grant access to the page; None if it does.

        Raises:
            TokenNotReviewed: there was no answer within ``seconds``.
        """
        ...


class TokenGate:
    """Admits requests with a valid token, as ``Bearer`` or as the password of ``Basic``, for which browsers prompt.

    Args:
        reviews: asks the cluster.
        clock: seconds on a monotonic clock.
    """

    def __init__(self, reviews: Reviews, clock: Callable[[], float]) -> None:
        self._reviews = reviews
        self._clock = clock
        self._known: dict[bytes, tuple[Response | None, float]] = {}
        """By the hash of a token: its refusal or None, and until when this is valid."""
        self._asking = 0

    async def __call__(self, headers: Mapping[str, str]) -> Response | None:
        """See `launcherkit_plugin.page.live.Gate`."""
        token = token_in(headers.get("authorization", ""))
        if not token:
            return Response("401 Unauthorized", b"a token is needed\n", headers=_CHALLENGES)
        try:
            return await self._refusal(token)
        except TokenNotReviewed as problem:
            return Response("503 Service Unavailable", f"{problem.code}: {problem.message}\n".encode())

    async def _refusal(self, token: str) -> Response | None:
        """The response that refuses a token; None if it grants access to the page."""
        import hashlib  # not above: it loads OpenSSL, and the daemon may never see a token

        key = hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()
        known = self._known.get(key)
        if known is not None and self._clock() < known[1]:
            return known[0]
        if self._asking >= MAX_REVIEWS:
            return Response("429 Too Many Requests", b"too many tokens at once\n", headers=(("Retry-After", "1"),))
        self._asking += 1
        try:
            why = await self._reviews.review_token(token, REVIEW_SECONDS)
        finally:
            self._asking -= 1
        self._known.pop(key, None)
        while len(self._known) >= MAX_TOKENS:
            self._known.pop(next(iter(self._known)))
        refusal = None if why is None else Response("401 Unauthorized", f"{why}\n".encode(), headers=_CHALLENGES)
        self._known[key] = refusal, self._clock() + (GOOD_SECONDS if why is None else BAD_SECONDS)
        return refusal


def token_in(authorization: str) -> str:
    """The token in a header ``Authorization``; empty if there is none."""
    scheme, _, given = authorization.partition(" ")
    given = given.strip()
    if scheme.lower() == "basic":
        import base64

        try:
            given = base64.b64decode(given, validate=True).decode().partition(":")[2]
        except ValueError:  # invalid base64 or UTF-8
            return ""
    elif scheme.lower() != "bearer":
        return ""
    return given if given.isascii() and given.isprintable() and " " not in given else ""
