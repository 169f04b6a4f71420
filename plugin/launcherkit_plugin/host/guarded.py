"""Work that may hang in the kernel, in a thread that can be left behind."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Generic, TypeVar

Result = TypeVar("Result")


class Guarded(Generic[Result]):
    """One piece of work at a time, and never a second thread while the first one hangs.

    Reading sysfs takes the device's lock for some files, and a driver that hangs while it is unbound has it. Neither
    can be interrupted. The thread is a daemon's, so that the process can end all the same.
    """

    def __init__(self, work: Callable[[], Result], patience: float) -> None:
        """``patience``: seconds that `result` waits."""
        self._work = work
        self._patience = patience
        self._pending: asyncio.Future[Result] | None = None

    async def result(self) -> Result:
        """Do it, or wait on for what was begun.

        Raises:
            TimeoutError: it hasn't ended yet.
            Exception: what the work raises.
        """
        if self._pending is None:
            self._pending = self._begin()
        done, _ = await asyncio.wait({self._pending}, timeout=self._patience)
        if not done:
            raise TimeoutError
        pending, self._pending = self._pending, None
        return pending.result()

    def _begin(self) -> asyncio.Future[Result]:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Result] = loop.create_future()

        def settle(result: Result | None, error: BaseException | None) -> None:
            if not future.done():
                future.set_exception(error) if error is not None else future.set_result(result)  # type: ignore[arg-type]

        def run() -> None:
            result, error = None, None
            try:
                result = self._work()
            except BaseException as raised:
                error = raised
            with suppress(RuntimeError):  # the loop has ended meanwhile
                loop.call_soon_threadsafe(settle, result, error)

        threading.Thread(target=run, name="apart", daemon=True).start()
        return future
