"""Who may see the page: on loopback, everybody on the host; elsewhere, clients whose token the cluster accepts. Who may
see the metrics: everybody, or clients with the token in a file.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from typing import Protocol

from launcherkit.errors import BadConfig, UnreadableFile
from launcherkit.request.fields import read_file
from launcherkit_plugin.http.response import Response
from launcherkit_plugin.model.errors import BAD_METRICS_TOKEN

GOOD_SECONDS, BAD_SECONDS = 60.0, 10.0
"""How long a positive and a negative review are remembered."""
GRACE_SECONDS = 60.0
"""How much longer a good token counts while there are too many reviews."""
MAX_TOKENS = 256
"""The most tokens whose reviews are remembered."""
MAX_REVIEWS = 4
"""The most reviews at once, and in a second: clients that send many tokens must load neither daemon nor API server."""
_TOKEN_BYTES = 4096

_LOOPBACK = ("localhost", "127.0.0.1", "[::1]")
_CHALLENGES = (("WWW-Authenticate", "Bearer"), ("WWW-Authenticate", 'Basic realm="a token as the password"'))


class Gate(Protocol):
    """Who may see something."""

    async def __call__(self, headers: Mapping[str, str], /) -> Response | None:
        """The refusal, by a request's headers; None lets it in."""


async def everybody(_: Mapping[str, str]) -> None:
    """Admit every request."""


async def loopback_gate(headers: Mapping[str, str]) -> Response | None:
    """Admit requests with a loopback name in Host. Any other name could be a DNS rebinding attack, by which a foreign
    web page would read this one.
    """
    host = headers.get("host", "")
    name = host if host.endswith("]") else host.rpartition(":")[0] or host
    if name.lower() in _LOOPBACK:
        return None
    return Response(421, b"the page is at localhost, 127.0.0.1 and [::1] alone\n")


class TokenGate:
    """Admits requests with a valid token, as ``Bearer`` or as the password of ``Basic``, for which browsers prompt.

    Args:
        review: has a token reviewed by the cluster: 204 if it grants access, 401 and why if it doesn't, or why nobody
            knows.
        clock: seconds on a monotonic clock.
    """

    def __init__(self, review: Callable[[str], Awaitable[Response]], clock: Callable[[], float]) -> None:
        self._review = review
        self._clock = clock
        self._known: dict[bytes, tuple[Response | None, float]] = {}
        """By the hash of a token: its refusal or None, and until when this is valid."""
        self._asking = 0
        self._asked: deque[float] = deque([float("-inf")] * MAX_REVIEWS, MAX_REVIEWS)
        """When the last reviews began."""

    async def __call__(self, headers: Mapping[str, str]) -> Response | None:
        """See `Gate`."""
        token = token_in(headers.get("authorization", ""))
        if not token:
            return Response(401, b"a token is needed\n", headers=_CHALLENGES)
        import hashlib  # not above: it loads OpenSSL, and there may never be a token

        key, now = hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest(), self._clock()
        remembered = self._known.get(key)
        if remembered is not None and now < remembered[1]:
            return remembered[0]
        if self._asking >= MAX_REVIEWS or now - self._asked[0] < 1:
            if remembered is not None and remembered[0] is None and now < remembered[1] + GRACE_SECONDS:
                return None  # whoever sends many tokens doesn't keep those out who were let in before
            return Response(429, b"too many tokens at once\n", headers=(("Retry-After", "1"),))
        self._asked.append(now)
        self._asking += 1
        try:
            review = await self._review(token)
        finally:
            self._asking -= 1
        return self._remembered(key, review)

    def _remembered(self, key: bytes, review: Response) -> Response | None:
        """The refusal that a review makes of a token; kept if the cluster has decided."""
        if review.status not in (204, 401):
            return review
        self._known.pop(key, None)
        while len(self._known) >= MAX_TOKENS:
            oldest = next(iter(self._known))
            self._known.pop(next((each for each, (refused, _) in self._known.items() if refused), oldest))
        good = review.status == 204
        refusal = None if good else review._replace(headers=_CHALLENGES)
        self._known[key] = refusal, self._clock() + (GOOD_SECONDS if good else BAD_SECONDS)
        return refusal


def token_in(authorization: str) -> str:
    """The token in a header ``Authorization``; empty if there is none."""
    scheme, _, credentials = authorization.partition(" ")
    credentials = credentials.strip()
    if scheme.lower() == "basic":
        import base64

        try:
            credentials = base64.b64decode(credentials, validate=True).decode().partition(":")[2]
        except ValueError:  # invalid base64 or UTF-8
            return ""
    elif scheme.lower() != "bearer":
        return ""
    return credentials if credentials.isascii() and credentials.isprintable() and " " not in credentials else ""


def token_file_gate(path: str) -> Gate:
    """Admits requests with the token in a file, which is read at each request: a mounted Secret may change.

    Raises:
        BAD_METRICS_TOKEN: the file has no token now.
    """
    read_token(path)

    async def gate(headers: Mapping[str, str]) -> Response | None:
        if _has_token(headers.get("authorization", ""), path):
            return None
        return Response(401, b"a token is needed\n", headers=(("WWW-Authenticate", "Bearer"),))

    return gate


def read_token(path: str) -> bytes:
    """The token in a file.

    Raises:
        BAD_METRICS_TOKEN: it can't be read, or has no token.
    """
    try:
        token = read_file(path, _TOKEN_BYTES).strip()
    except UnreadableFile as problem:
        raise _bad_token(path, problem.message) from problem
    if not token or len(token.split()) != 1:
        raise _bad_token(path, f"{path}: it must have a token of one word")
    return token


def _bad_token(path: str, problem: str) -> BadConfig:
    return BAD_METRICS_TOKEN(
        f"--metrics-token-file: {problem}",
        "Put a token of one word into the file; `openssl rand -hex 32` creates one.",
        file=path,
        key="--metrics-token-file",
    )


def _has_token(authorization: str, path: str) -> bool:
    import hmac  # not above: it loads OpenSSL, and there may be no token

    try:
        token = read_token(path)
    except BadConfig:  # it may just be being replaced; nobody is let in meanwhile
        return False
    scheme, _, credentials = authorization.partition(" ")
    return scheme.lower() == "bearer" and hmac.compare_digest(credentials.strip().encode("latin-1"), token)
