"""Event loops whose clock a test moves; one runs in a thread, so that what it runs can be asked by calls that block."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any, TypeVar, cast

PATIENCE = 60.0
"""Seconds before a test gives up; nothing here should take one."""

Result = TypeVar("Result")


class TimedLoop(asyncio.SelectorEventLoop):
    """Its clock can be moved forward: what is due later is due at once, and nobody has to wait for it."""

    def __init__(self) -> None:
        super().__init__()
        self._ahead = 0.0
        self._held: float | None = None

    def time(self) -> float:
        """See asyncio."""
        return (super().time() if self._held is None else self._held) + self._ahead

    def hold(self) -> None:
        """Stop the clock, for good: from now on only `skip` moves it. To be called in the loop's thread."""
        self._held = super().time()

    def skip(self, seconds: float) -> None:
        """Move the clock; to be called in the loop's thread."""
        self._ahead += seconds


def run_timed(scene: Callable[[TimedLoop], Coroutine[Any, Any, Result]]) -> Result:
    """Run a coroutine that is given its loop.

    Raises:
        AssertionError: it never ends.
    """
    with asyncio.Runner(loop_factory=TimedLoop) as runner:
        loop = cast("TimedLoop", runner.get_loop())
        task = loop.create_task(scene(loop))
        # By the real clock, which is another one.
        patience = threading.Timer(PATIENCE, loop.call_soon_threadsafe, (task.cancel,))
        patience.start()
        try:
            return loop.run_until_complete(task)
        except asyncio.CancelledError:
            raise AssertionError("it never ends") from None
        finally:
            patience.cancel()
            patience.join()


class WorkThreads:
    """The threads of work queues that were started since this was made: another test may have left one that hangs."""

    def __init__(self) -> None:
        self._others = frozenset(threading.enumerate())

    def names(self) -> list[str]:
        """Their names, ``work: card``, in order."""
        now = threading.enumerate()
        return sorted(each.name for each in now if each.name.startswith("work") and each not in self._others)

    async def names_are(self, *names: str) -> None:
        """Wait until there are just these: one that has just done its work may need a moment to end."""
        while self.names() != list(names):
            await asyncio.sleep(0.001)

    async def number_is(self, number: int) -> None:
        """Wait until there are so many."""
        while len(self.names()) != number:
            await asyncio.sleep(0.001)


async def settled() -> None:
    """Let all that is ready run, and what follows; what waits for a thread, a process or the clock still waits."""
    for _ in range(100):
        await asyncio.sleep(0)


class Loop:
    """Runs coroutines and functions in its thread."""

    def __init__(self, loop: TimedLoop) -> None:
        self._loop = loop

    def skip(self, seconds: float) -> None:
        """Move its clock."""
        self.call(self._loop.skip, seconds)

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
    loop = TimedLoop()
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
