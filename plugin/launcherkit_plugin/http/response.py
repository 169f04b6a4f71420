"""Answers to HTTP requests, what makes them, and what is logged of refused ones; and the paths that the daemon serves
on its unix socket to the web process."""

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping
from typing import NamedTuple, TypeAlias

from launcherkit_plugin.telemetry.reporter import Log

TEXT = "text/plain; charset=utf-8"


class Response(NamedTuple):
    """What an HTTP request is answered with."""

    status: int
    body: bytes
    content_type: str = TEXT
    headers: tuple[tuple[str, str], ...] = ()
    """More of them."""
    stream: AsyncGenerator[bytes, None] | None = None
    """Follows the body, until it ends."""


Page: TypeAlias = Callable[[Mapping[str, str]], Awaitable[Response]]
"""Makes an answer, by the request's headers; their names are in lower case. One that waits bounds that itself."""


def not_found(paths: Iterable[str]) -> Response:
    """The answer to a request for another path than these."""
    return Response(404, f"there is {' and '.join(paths)}\n".encode())


_SECONDS = 60.0


class Refusals:
    """Counts refusals between two lines.

    Args:
        log: gets the lines.
        clock: seconds, monotonic.
    """

    def __init__(self, log: Log, clock: Callable[[], float]) -> None:
        self._log, self._clock = log, clock
        self._next, self._untold = -_SECONDS, 0

    def add(self, reason: str, client: str) -> None:
        """Log a refusal and how many there were since the last line, or only count it."""
        now = self._clock()
        if now < self._next:
            self._untold += 1
            return
        more = f"; {self._untold} others since the last such line" if self._untold else ""
        self._log("warning", f"refused: {reason}{more}", client=client)
        self._next, self._untold = now + _SECONDS, 0


METRICS, NODE_PAGE, EVENTS = "/metrics", "/", "/events"
"""Those that clients ask for, too."""
REVIEW = "/review"
"""Has the token in ``Authorization`` reviewed: 204, or 401 and why it doesn't grant access to the page, or 503."""
