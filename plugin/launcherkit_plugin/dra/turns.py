"""One piece of work at a time for ResourceClaims of one name, answered before the kubelet gives up (D10)."""

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
"""For how long a call may take. The kubelet waits for 45, and asks again some seconds later."""
_LOCK_PAUSE = 0.05

Says: TypeAlias = Callable[[str], None]
"""Takes what the work is at, in words."""


class DriverLock:
    """A lock of all processes that are the driver of a node: during a rolling update there are two.

    A context; several of one process may be in it together, and the last one releases it.

    Args:
        path: of a file in the driver's folder, which has to be there.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._users = 0
        self._file: int | None = None
        self._has = False

    def try_lock(self) -> bool:
        """Take it, if no other process has it; gives whether this one has it now."""
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
        """Let go of it, where nobody in this process is in it."""
        if self._has and not self._users and self._file is not None:
            self._has = False
            fcntl.flock(self._file, fcntl.LOCK_UN)

    def close(self) -> None:
        """It isn't needed any more."""
        if self._file is not None:
            file, self._file, self._has = self._file, None, False
            os.close(file)


class _Work:
    def __init__(self, at: str) -> None:
        self.at = at
        self.task: asyncio.Task[Any] | None = None


class Turns:
    """The work on claims of this process, by their names: claims of one name share files.

    What takes too long is answered with an error and goes on; whoever asks for the same claim then waits for its end.
    """

    def __init__(self, lock: DriverLock, seconds: float = ANSWER_SECONDS) -> None:
        self._lock = lock
        self._seconds = seconds
        self._under_way: dict[str, _Work] = {}

    async def take(self, ref: ClaimRef, work: Callable[[Says], Coroutine[Any, Any, T]]) -> T:
        """Do work on a claim when nothing else is under way for it.

        Raises:
            PrepareLate: this, or what was begun before it, takes too long.
            Exception: what the work raises.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._seconds
        name = str(ref)
        while (before := self._under_way.get(name)) is not None:
            assert before.task is not None
            await asyncio.wait({before.task}, timeout=deadline - loop.time())
            if not before.task.done():
                raise self._late(ref, before)
        mine = _Work("it waits for another process of this driver")
        self._under_way[name] = mine
        mine.task = task = asyncio.create_task(self._locked(mine, work))
        task.add_done_callback(lambda done: self._ended(name, done))
        await asyncio.wait({task}, timeout=max(0.0, deadline - loop.time()))
        if not task.done():
            raise self._late(ref, mine)
        return task.result()

    async def _locked(self, mine: _Work, work: Callable[[Says], Coroutine[Any, Any, T]]) -> T:
        def says(what: str) -> None:
            mine.at = what

        async with self._lock:
            return await work(says)

    def _ended(self, name: str, task: asyncio.Task[Any]) -> None:
        del self._under_way[name]
        if not task.cancelled():
            task.exception()  # whoever waited for it may have gone

    async def end(self, seconds: float) -> None:
        """Wait for what is under way; what doesn't end in time is left where it is."""
        tasks = [work.task for work in self._under_way.values() if work.task is not None]
        if tasks:
            await asyncio.wait(tasks, timeout=seconds)
        for task in tasks:
            task.cancel()

    def _late(self, ref: ClaimRef, work: _Work) -> PrepareLate:
        return PrepareLate(
            f"ResourceClaim {ref}: not finished within {self._seconds:g} s: {work.at}",
            "It goes on, and the kubelet asks again by itself. If it doesn't end, see the log of the plugin, and "
            "`dmesg` on the node for a driver that is stuck.",
            file=f"ResourceClaim {ref}",
        )
