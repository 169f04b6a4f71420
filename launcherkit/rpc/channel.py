"""A client's channel to a unix socket."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from grpclib.client import Channel

T = TypeVar("T")


def unix_channel(path: str) -> Channel:
    """A channel to a unix socket; it connects on first use."""
    return _UnixChannel(path=path)


class _UnixChannel(Channel):
    """Has the authority ``localhost``, as Go's clients do; grpclib's is ``127.0.0.1:50051`` even for a unix socket."""

    def _get_authority(self, host: str, port: int) -> str:  # noqa: ARG002  # of grpclib
        return "localhost"


async def in_a_task(call: Coroutine[Any, Any, T]) -> T:
    """Run a call in a task of its own, which grpclib cancels when it loses the connection.

    grpclib doesn't undo the cancellation. Up to Python 3.11.2, Debian 12's, the caller's next `asyncio.timeout` would
    take it for a cancellation of the caller, whose task would end silently.
    """
    return await asyncio.create_task(call)
