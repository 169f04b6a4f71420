"""Serialises the work on ResourceClaims of the same name, and answers before the kubelet gives up (D10)."""

from __future__ import annotations

import asyncio
import fcntl
import os
from collections.abc import Callable, Coroutine
from contextlib import suppress
from types import TracebackType
from typing import Any, Self, TypeAlias, TypeVar

from launcherkit_plugin.model.device import ClaimRef
from launcherkit_plugin.model.errors import PrepareLate

T = TypeVar("T")

ANSWER_SECONDS = 35.0
"""How long a call may take. The kubelet waits for 45 s, and asks again some seconds later."""
_LOCK_PAUSE = 0.05

ReportStep: TypeAlias = Callable[[str], None]
"""Receives what the work is doing, in words."""


class DriverLock:
    """A lock between the processes of a node's driver: during a rolling update there are two.

    It is a context manager. Several tasks of one process may be in it at once; the last one releases the lock.

    Args:
        path: of a file in the driver's folder, which must exist.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._users = 0
        self._file: int | None = None
        self._has = False
        self._kept = False

    def try_lock(self) -> bool:
        """Lock it unless another process has it; returns whether this process has it now."""
        if self._file is None:
            self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        if not self._has:
            with suppress(BlockingIOError):
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                self._has = True
        return self._has

    async def __aenter__(self) -> Self:
        self._users += 1
        try:
            while not self.try_lock():
                await asyncio.sleep(_LOCK_PAUSE)
        except BaseException:
            self._leave()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, raised: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._leave()

    def _leave(self) -> None:
        self._users -= 1
        self.release()

    def release(self) -> None:
        """Release the lock, unless a task of this process is in the context."""
        if self._has and not self._users and self._file is not None and not self._kept:
            self._has = False
            fcntl.flock(self._file, fcntl.LOCK_UN)

    def keep(self) -> None:
        """Keep the lock until the process ends: a thread may still change what it protects."""
        self._kept = self._has

    def close(self) -> None:
        """Close the file, which releases the lock."""
        if self._file is not None and not self._kept:
            file, self._file, self._has = self._file, None, False
            os.close(file)


class _Work:
    def __init__(self, at: str) -> None:
        self.at = at
        self.task: asyncio.Task[Any] | None = None


class Turns:
    """The work of this process on claims, by their names: claims with the same name share files.

    A call that takes too long is answered with an error, and its work continues. The next call for this name waits for
    it.
    """

    def __init__(self, lock: DriverLock, seconds: float = ANSWER_SECONDS) -> None:
        self._lock = lock
        self._seconds = seconds
        self._under_way: dict[str, _Work] = {}

    async def take(self, ref: ClaimRef, work: Callable[[ReportStep], Coroutine[Any, Any, T]]) -> T:
        """Do work on a claim once earlier work on its name has ended.

        Raises:
            PrepareLate: this or the earlier work takes too long.
            Exception: raised by the work.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._seconds
        name = str(ref)
        while (before := self._under_way.get(name)) is not None:
            assert before.task is not None
            await asyncio.wait({before.task}, timeout=deadline - loop.time())
            if not before.task.done():
                raise self._late(ref, before)
        mine = _Work("waiting for another process of this driver")
        self._under_way[name] = mine
        mine.task = task = asyncio.create_task(self._locked(mine, work))
        task.add_done_callback(lambda done: self._ended(name, done))
        await asyncio.wait({task}, timeout=max(0.0, deadline - loop.time()))
        if not task.done():
            raise self._late(ref, mine)
        return task.result()

    async def _locked(self, mine: _Work, work: Callable[[ReportStep], Coroutine[Any, Any, T]]) -> T:
        def report(what: str) -> None:
            mine.at = what

        async with self._lock:
            try:
                return await work(report)
            except asyncio.CancelledError:
                self._lock.keep()
                raise

    def _ended(self, name: str, task: asyncio.Task[Any]) -> None:
        del self._under_way[name]
        if not task.cancelled():
            task.exception()  # marks it as retrieved: the caller may have stopped waiting

    async def end(self, seconds: float) -> None:
        """Wait for work in progress; work that doesn't end in time is cancelled."""
        tasks = [work.task for work in self._under_way.values() if work.task is not None]
        if tasks:
            await asyncio.wait(tasks, timeout=seconds)
        for task in tasks:
            task.cancel()

    def _late(self, ref: ClaimRef, work: _Work) -> PrepareLate:
        return PrepareLate(
            f"ResourceClaim {ref}: not finished within {self._seconds:g} s: {work.at}",
            "The work continues, and the kubelet tries again by itself. If it doesn't end, see the plugin's log, and "
            "`dmesg` on the node for a driver that is stuck.",
            file=f"ResourceClaim {ref}",
        )
