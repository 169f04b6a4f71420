"""A client's channel to a unix socket."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from grpclib.client import Channel

T = TypeVar("T")


def unix_channel(path: str) -> Channel:
    """A channel to a unix socket; connects when it is first used."""
    return _UnixChannel(path=path)


class _UnixChannel(Channel):
    """grpclib says ``127.0.0.1:50051`` where it dials a socket; Go's own clients say ``localhost``."""

    def _get_authority(self, host: str, port: int) -> str:  # noqa: ARG002  # of grpclib
        return "localhost"


async def in_a_task(call: Coroutine[Any, Any, T]) -> T:
    """A call in a task of its own, which is what grpclib cancels when it loses the connection.

    It doesn't take that back. Up to Python 3.11.2, Debian 12's, the caller's next `asyncio.timeout` would take it
    for a cancellation of the caller, whose task would end without a word.
    """
    return await asyncio.create_task(call)
