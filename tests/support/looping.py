"""An event loop in a thread, so that what it runs can be talked to by calls that block."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any, TypeVar

PATIENCE = 60.0
"""Seconds before a test gives up; nothing here should take one."""

Result = TypeVar("Result")


class Loop:
    """Runs coroutines and functions in its thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def run(self, work: Coroutine[Any, Any, Result]) -> Result:
        """A coroutine to its end."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(PATIENCE)

    def start(self, work: Coroutine[Any, Any, Result]) -> Future[Result]:
        """A coroutine, without waiting for it."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def call(self, function: Callable[..., Result], *arguments: object) -> Result:
        """A plain function, in the loop's thread."""

        async def called() -> Result:
            return function(*arguments)

        return self.run(called())


@contextmanager
def running_loop() -> Iterator[Loop]:
    """A loop that runs while the block does; what was forgotten in it is an error."""
    loop = asyncio.new_event_loop()
    forgotten: list[dict[str, Any]] = []
    loop.set_exception_handler(lambda _, context: forgotten.append(context))
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield Loop(loop)
    finally:
        asyncio.run_coroutine_threadsafe(_cancel_rest(), loop).result(PATIENCE)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(PATIENCE)
        loop.close()
    assert forgotten == []


async def _cancel_rest() -> None:
    rest = asyncio.all_tasks() - {asyncio.current_task()}
    for task in rest:
        task.cancel()
    await asyncio.gather(*rest, return_exceptions=True)
    await asyncio.get_running_loop().shutdown_default_executor()
