"""Serialises the work on ResourceClaims of the same name, and answers before the kubelet gives up (D10)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, Self, TypeAlias, TypeVar

from launcherkit_plugin.file_lock import FileLock
from launcherkit_plugin.host.work_queue import NotFinished, WorkQueue
from launcherkit_plugin.model.device import ClaimRef
from launcherkit_plugin.model.errors import PREPARE_LATE

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
        self._file: FileLock | None = None
        self._has = False
        self._kept = False

    def try_lock(self) -> bool:
        """Lock it unless another process has it; returns whether this process has it now."""
        if self._file is None:
            self._file = FileLock(self._path)
        self._has = self._has or self._file.try_lock()
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
            self._file.unlock()

    def keep(self) -> None:
        """Keep the lock until the process ends: a thread may still change what it protects."""
        self._kept = self._has

    def close(self) -> None:
        """Close the file, which releases the lock."""
        if self._file is not None and not self._kept:
            file, self._file, self._has = self._file, None, False
            file.close()


class ClaimQueue:
    """The work of this process on claims, by their names: claims with the same name share files.

    A call that takes too long is answered with an error, and its work continues. The next call for this name waits for
    it.
    """

    def __init__(self, lock: DriverLock, seconds: float = ANSWER_SECONDS) -> None:
        self._lock = lock
        self._seconds = seconds
        self._queue = WorkQueue()

    async def run(self, ref: ClaimRef, work: Callable[[ReportStep], Coroutine[Any, Any, T]]) -> T:
        """Do work on a claim once earlier work on its name has ended.

        Raises:
            PREPARE_LATE: this or the earlier work takes too long.
            Exception: raised by the work.
        """
        step = "waiting for another process of this driver"

        def report(text: str) -> None:
            nonlocal step
            step = text

        async def locked() -> T:
            async with self._lock:
                try:
                    return await work(report)
                except asyncio.CancelledError:
                    self._lock.keep()
                    raise

        try:
            return await self._queue.run_here(str(ref), lambda: step, locked, self._seconds)
        except NotFinished as late:
            raise PREPARE_LATE(
                f"ResourceClaim {ref}: not finished within {self._seconds:g} s: {late}",
                "The work continues, and the kubelet tries again by itself. If it doesn't end, see the plugin's log, "
                "and `dmesg` on the node for a driver that is stuck.",
                file=f"ResourceClaim {ref}",
            ) from late

    async def end(self, seconds: float) -> None:
        """Wait for work in progress; work that doesn't end in time is cancelled."""
        await self._queue.end(seconds)
