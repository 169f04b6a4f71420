"""Runs work that may hang, one piece at a time for each key: in threads, of which late ones are abandoned.

Reading some files of sysfs takes the device's lock, and writing is executed by a driver; neither can be interrupted.
All such work of the daemon is done here, so that a stuck card delays only those who need that card. Work that needs a
process instead of a thread is done by `launcherkit_plugin.host.drivers`.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from math import inf
from queue import SimpleQueue
from typing import Any, Generic, Protocol, TypeVar

from launcherkit.model.address import PciAddress
from launcherkit_plugin.host.progress import STALL_SECONDS, Progress
from launcherkit_plugin.model.device import Resource
from launcherkit_plugin.model.errors import WORK_HANGS, TooSlow

Result = TypeVar("Result")

TURN_SECONDS = 2.0
"""How long a caller waits for earlier work with the same key to end."""


def group_key(address: PciAddress, group: int | None) -> str:
    """The key of work that changes a function's driver: its IOMMU group, which is bound as a whole (K8)."""
    return str(address) if group is None else f"IOMMU group {group}"


def binding_keys(resource: Resource, ids: Iterable[str]) -> Iterator[str]:
    """The keys of work that would change the drivers of devices."""
    for device in (resource.devices[key] for key in ids):
        for group in sorted(device.groups) or (None,):
            yield group_key(device.functions[0], group)


class Reports(Protocol):
    """Receives reports about late work: `launcherkit_plugin.telemetry.reporter.Waits`, of a package beside this one."""

    def hangs(self, key: str, text: str, hanging: int) -> None:
        """Work for a key is late. ``hanging``: how many pieces of work are late, including this one."""

    def came_back(self, key: str, text: str, hanging: int) -> None:
        """Late work has ended after all. ``hanging``: how many pieces are still late."""


class _Work(Generic[Result]):
    """A piece of work in progress."""

    def __init__(
        self, keys: Iterable[str], doing: Callable[[], str], seconds: float | None, culprit: Callable[[], str | None]
    ) -> None:
        loop = asyncio.get_running_loop()
        self.keys = list(dict.fromkeys(keys))
        """Once it is late, only the one that hangs, if that is known."""
        self.what = doing
        self.culprit = culprit
        """The key at which it is now, if that is known."""
        self.began = loop.time()
        self.due = inf if seconds is None else self.began + seconds
        self.timer: asyncio.TimerHandle | None = None
        """Declares it late; cancelled when it has ended."""
        self.over = asyncio.Event()
        """It has ended, or is late: who waits for it should look again."""
        self.done: asyncio.Future[Result] = loop.create_future()
        self.late: str | None = None
        """What it was doing when it became late, in words."""


class NotFinished(Exception):
    """Work of `WorkQueue.run_here` goes on; the message is its present step."""


class _Thread(threading.Thread):
    """A thread that does one piece of work after another."""

    def __init__(self) -> None:
        super().__init__(name="idle", daemon=True)
        self._work: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self.start()

    def do(self, name: str, work: Callable[[], None]) -> None:
        self.name = name
        self._work.put(work)

    def end(self) -> None:
        """End once all work is done."""
        self._work.put(None)

    def run(self) -> None:
        """See `threading.Thread`."""
        while (work := self._work.get()) is not None:
            work()
            del work  # what it refers to may go


class WorkQueue:
    """Runs the work of one process. It lasts across configuration reloads, so hanging work stays known.

    There is never more than one thread for a key, and one that waits for work. They are daemon threads, so the process
    can end while one hangs. To be used in the event loop's thread.

    Args:
        reports: receives when work is late, and when it ends after all.
        stall: how many seconds a step of `look` may take, unless the call says otherwise.
    """

    def __init__(self, reports: Reports | None = None, *, stall: float = STALL_SECONDS) -> None:
        self._reports = reports
        self._stall = stall
        self._under_way: dict[str, _Work[Any]] = {}
        self._idle: _Thread | None = None
        """A thread that waits for work: starting one takes longer than looking at a card."""

    def __del__(self) -> None:
        if self._idle is not None:
            self._idle.end()

    def is_busy(self, key: str) -> bool:
        """Whether work for a key is in progress, late or not."""
        return key in self._under_way

    def hanging(self, key: str) -> str | None:
        """The late work of a key, in words; None if none is late."""
        work = self._under_way.get(key)
        return None if work is None or work.late is None else self._text(work)

    @property
    def late(self) -> Mapping[str, str]:
        """All late work, by key, in words that stay the same."""
        return {key: f"{work.late} has not returned" for key, work in self._under_way.items() if work.late is not None}

    def begin(
        self,
        key: str,
        doing: str | Callable[[], str],
        work: Callable[[], Result],
        seconds: float,
        also: Iterable[str] = (),
    ) -> asyncio.Future[Result] | None:
        """Begin work at once. If other work for a key is in progress, begins nothing and returns None.

        Args:
            key: the object of the work: a card, an IOMMU group.
            also: further keys.
            doing: the work in words, ``removing mdev ...``; a callable is called when the work is late.
            work: blocks.
            seconds: after how many it is late.
        """
        keys = (key, *also)
        return None if any(map(self.is_busy, keys)) else self._begin(keys, doing, work, seconds).done

    def _begin(
        self,
        keys: Iterable[str],
        doing: str | Callable[[], str],
        work: Callable[[], Result],
        seconds: float | None,
        culprit: Callable[[], str | None] = lambda: None,
    ) -> _Work[Result]:
        loop = asyncio.get_running_loop()
        begun: _Work[Result] = _Work(keys, doing if callable(doing) else lambda: doing, seconds, culprit)
        self._under_way.update(dict.fromkeys(begun.keys, begun))
        if seconds is not None:
            begun.timer = loop.call_later(seconds, self._is_late, begun)

        thread, self._idle = self._idle or _Thread(), None

        def settle(result: Result | None, error: BaseException | None) -> None:
            if begun.timer is not None:
                begun.timer.cancel()
            begun.over.set()
            thread.name = "idle"
            if self._idle is None:
                self._idle = thread
            else:
                thread.end()
            for key in begun.keys:
                del self._under_way[key]
            if begun.late is not None and self._reports is not None:
                self._reports.came_back(begun.keys[0], self._text(begun), self._number_late())
            if begun.done.cancelled():  # with the task that waited for it, as at the daemon's end
                return
            if error is None:
                begun.done.set_result(result)  # type: ignore[arg-type]
            else:
                begun.done.set_exception(error)
                begun.done.exception()  # marks it as retrieved: the caller may have stopped waiting

        def run() -> None:
            result, error = None, None
            try:
                result = work()
            except BaseException as raised:
                error = raised
            try:
                loop.call_soon_threadsafe(settle, result, error)
            except RuntimeError:  # the loop has ended meanwhile
                thread.end()

        thread.do(f"work: {begun.keys[0]}", run)
        return begun

    async def run(
        self,
        key: str,
        doing: str,
        work: Callable[[], Result],
        seconds: float,
        *,
        turn: float = TURN_SECONDS,
    ) -> Result:
        """Do work once no other work for its key is in progress.

        Args:
            key, what, work: see `begin`.
            seconds: how long the work may take.
            turn: how many seconds to wait for earlier work.

        Raises:
            WORK_HANGS: this or earlier work is late; it may still complete.
            Exception: raised by the work.
        """
        await self.quiet([key], turn)
        begun = self.begin(key, doing, work, seconds)
        assert begun is not None
        done, _ = await asyncio.wait({begun}, timeout=seconds)
        if not done:
            self.give_up(key)
            raise self._error(key)
        return begun.result()

    async def run_to_end(self, key: str, doing: str, work: Callable[[], Result], seconds: float) -> Result:
        """As `run`, but wait for the work however late it is: while it may still change something, nothing else may.

        Raises:
            WORK_HANGS: earlier work is late.
            Exception: raised by the work.
        """
        await self.quiet([key])
        begun = self.begin(key, doing, work, seconds)
        assert begun is not None
        return await asyncio.shield(begun)

    async def look(
        self,
        keys: Iterable[str],
        work: Callable[[Progress], Result],
        *,
        turn: float = TURN_SECONDS,
        stall: float | None = None,
    ) -> Result:
        """Read files of several cards in one thread, once no other work for them is in progress.

        If a step hangs, only the card whose file it is stays busy.

        Args:
            keys: the names of all functions whose files may be read, at least one.
            work: blocks; it notes its steps.
            turn: see `run`.
            stall: how many seconds a step may take; None: as the queue has it.

        Raises:
            WORK_HANGS: a step hangs, or earlier work is late.
            Exception: raised by the work.
        """
        keys = tuple(keys)
        await self.quiet(keys, turn)
        progress = Progress()
        begun = self._begin(keys, progress.text, partial(work, progress), None, lambda: progress.device)
        self._watch(begun, progress, self._stall if stall is None else stall)
        await begun.over.wait()  # the work goes on if the caller doesn't wait, as when the kubelet hangs up
        if begun.done.done():
            return begun.done.result()
        raise self._error(begun.keys[0])

    def _watch(self, work: _Work[Any], progress: Progress, stall: float) -> None:
        """Declare work late once a step takes longer than ``stall`` seconds.

        Work without a step has touched no file: its thread waits for a processor, on a busy machine for seconds.
        """
        before = progress.steps

        def look_again() -> None:
            if progress.steps == before > 0:
                self._is_late(work)
            else:
                self._watch(work, progress, stall)

        work.timer = asyncio.get_running_loop().call_later(stall, look_again)

    async def run_here(
        self,
        key: str,
        doing: Callable[[], str],
        work: Callable[[], Coroutine[Any, Any, Result]],
        seconds: float,
    ) -> Result:
        """Do work that doesn't block in the event loop's thread, once no other work for its key is in progress.

        Work that takes too long goes on, and the next call for its key waits for it.

        Args:
            key: see `begin`.
            doing: the present step in words.
            work: is called at most once.
            seconds: how long the call may take, with the time for which it waits.

        Raises:
            NotFinished: this or earlier work takes longer.
            Exception: raised by the work.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + seconds
        while (ahead := self._under_way.get(key)) is not None:
            await _finish(ahead, deadline - loop.time())
        begun: _Work[Result] = _Work((key,), doing, None, lambda: None)
        begun.done = task = asyncio.create_task(work())
        self._under_way[key] = begun
        task.add_done_callback(lambda _: self._has_ended(begun))
        await _finish(begun, deadline - loop.time())
        return task.result()

    def _has_ended(self, work: _Work[Any]) -> None:
        work.over.set()
        for key in work.keys:
            del self._under_way[key]
        if not work.done.cancelled():
            work.done.exception()  # marks it as retrieved: the caller may have stopped waiting

    async def end(self, seconds: float) -> None:
        """Wait for the work of `run_here` in progress; what doesn't end in time is cancelled."""
        tasks = [work.done for work in self._under_way.values() if isinstance(work.done, asyncio.Task)]
        if tasks:
            await asyncio.wait(tasks, timeout=seconds)
        for task in tasks:
            task.cancel()

    async def quiet(self, keys: Iterable[str], seconds: float = TURN_SECONDS) -> None:
        """Wait until no work for these keys is in progress. It stays so until the caller awaits something else.

        Raises:
            WORK_HANGS: some work is late, or still in progress after ``seconds``.
        """
        if not self._under_way:
            return
        loop = asyncio.get_running_loop()
        deadline = loop.time() + seconds
        waited_for = tuple(keys)
        while ahead := next((key for key in waited_for if key in self._under_way), None):
            work = self._under_way[ahead]
            left = min(deadline, work.due) - loop.time()
            if work.late is not None or left <= 0:
                raise self._error(ahead)
            with suppress(TimeoutError):
                await asyncio.wait_for(work.over.wait(), left)

    def give_up(self, key: str) -> None:
        """Declare the work of a key late."""
        if key in self._under_way:
            self._is_late(self._under_way[key])

    def _is_late(self, work: _Work[Any]) -> str:
        """Declare work late; returns the key at which it hangs."""
        if work.late is None:
            work.late = work.what()
            hangs = work.culprit()
            if hangs in work.keys:
                for key in work.keys:
                    if key != hangs:
                        del self._under_way[key]
                work.keys = [hangs]
            work.over.set()
            if self._reports is not None:
                self._reports.hangs(work.keys[0], self._text(work), self._number_late())
        return work.keys[0]

    def _number_late(self) -> int:
        return len({id(work) for work in self._under_way.values() if work.late is not None})

    def _error(self, key: str) -> TooSlow:
        return WORK_HANGS(
            f"{key}: {self._text(self._under_way[key])}",
            "The driver is stuck, or busy with something else: see `dmesg` on the node. Other cards are not affected; "
            "this one is available again once the work has returned.",
        )

    @staticmethod
    def _text(work: _Work[Any]) -> str:
        took = asyncio.get_running_loop().time() - work.began
        return f"{work.late or work.what()} has not returned for {took:.0f} s"


async def _finish(work: _Work[Any], seconds: float) -> None:
    await asyncio.wait({work.done}, timeout=max(0.0, seconds))
    if not work.done.done():
        raise NotFinished(work.what())


def tasks_of(begun: Iterable[asyncio.Future[Result] | None]) -> list[asyncio.Task[Result]]:
    """Tasks that end with what was begun by `WorkQueue.begin`; `asyncio.create_task` itself takes no futures."""
    return [asyncio.create_task(_result_of(future)) for future in begun if future is not None]


async def _result_of(future: asyncio.Future[Result]) -> Result:
    return await future
