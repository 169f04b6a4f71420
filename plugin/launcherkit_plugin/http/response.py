"""Answers to HTTP requests, and what makes them."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping
from typing import NamedTuple, TypeAlias

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
