"""Work that may hang in the kernel: one piece at a time for each key, in a thread that is left behind when it is late.

Reading sysfs takes the device's lock for some files, a write is an order to a driver, and neither can be interrupted.
All such work of the daemon goes through here, so that a card in trouble holds up nobody but those who want that card.
Single files that need a process instead of a thread are read and written by `launcherkit_plugin.host.files`.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import Generic, Protocol, TypeVar

from launcherkit.model.address import PciAddress
from launcherkit_plugin.model.device import Resource
from launcherkit_plugin.model.errors import WorkHangs

Result = TypeVar("Result")

TURN_SECONDS = 2.0
"""For how long a caller waits for what is under way for the same key before its own work begins."""


def group_key(address: PciAddress, group: int | None) -> str:
    """The key of work that changes whom a function is bound to: the function's group, which is bound whole (K8)."""
    return str(address) if group is None else f"IOMMU group {group}"


def binding_keys(resource: Resource, ids: Iterable[str]) -> Iterator[str]:
    """Those of work that would change what devices are bound to."""
    for device in (resource.devices[key] for key in ids):
        for group in sorted(device.groups) or (None,):
            yield group_key(device.functions[0], group)


class Reports(Protocol):
    """Takes the reports of waits."""

    def hangs(self, key: str, text: str, hanging: int) -> None:
        """Work for a key is late; ``hanging`` pieces are, this one included."""

    def came_back(self, key: str, text: str, hanging: int) -> None:
        """It has ended after all; ``hanging`` pieces are still late."""


class _Work(Generic[Result]):
    """One piece under way."""

    def __init__(self, what: Callable[[], str], began: float, seconds: float) -> None:
        self.what = what
        self.began = began
        self.due = began + seconds
        self.done: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        self.late: str | None = None
        """What it was at when it became late."""


class Guarded:
    """The work of one process. It outlives configurations: what hangs is known after a reload.

    There is at most one thread for each key, whatever is asked for and however often. Threads are daemons, so that
    the process can end all the same. To be used in the loop's thread alone.
    """

    def __init__(self, reports: Reports | None = None) -> None:
        self._reports = reports
        self._under_way: dict[str, _Work[object]] = {}

    def is_busy(self, key: str) -> bool:
        """Whether something is under way for a key, late or not."""
        return key in self._under_way

    def hanging(self, key: str) -> str | None:
        """What is late for a key, in words; None where nothing is."""
        work = self._under_way.get(key)
        return None if work is None or work.late is None else self._text(work)

    def begin(
        self, key: str, what: str | Callable[[], str], work: Callable[[], Result], seconds: float
    ) -> asyncio.Future[Result] | None:
        """Begin work at once; None, and nothing is begun, where something is under way for the key.

        Args:
            key: what it is about: a card, an IOMMU group.
            what: the work in words, ``removing mdev ...``; asked for when it is late, where that is only known then.
            work: blocks.
            seconds: after which it is late.
        """
        if key in self._under_way:
            return None
        loop = asyncio.get_running_loop()
        begun: _Work[Result] = _Work(what if callable(what) else lambda: what, loop.time(), seconds)
        self._under_way[key] = begun  # type: ignore[assignment]  # whose result nobody here looks at
        timer = loop.call_later(seconds, self.give_up, key)

        def settle(result: Result | None, error: BaseException | None) -> None:
            timer.cancel()
            del self._under_way[key]
            if begun.late is not None and self._reports is not None:
                self._reports.came_back(key, self._text(begun), self._number_late())
            if error is None:
                begun.done.set_result(result)  # type: ignore[arg-type]
            else:
                begun.done.set_exception(error)
                begun.done.exception()  # whoever waited for it may have gone

        def run() -> None:
            result, error = None, None
            try:
                result = work()
            except BaseException as raised:
                error = raised
            with suppress(RuntimeError):  # the loop has ended meanwhile
                loop.call_soon_threadsafe(settle, result, error)

        threading.Thread(target=run, name=f"guarded: {key}", daemon=True).start()
        return begun.done

    async def run(
        self,
        key: str,
        what: str,
        work: Callable[[], Result],
        seconds: float,
        *,
        turn: float = TURN_SECONDS,
    ) -> Result:
        """Do work when nothing else is under way for its key.

        Args:
            key, what, work: as of `begin`.
            seconds: that it may take.
            turn: seconds that it waits for what is under way.

        Raises:
            WorkHangs: this, or what was begun before it, is late; it may come to pass later.
            Exception: what the work raises.
        """
        await self.quiet([key], turn)
        begun = self.begin(key, what, work, seconds)
        assert begun is not None
        done, _ = await asyncio.wait({begun}, timeout=seconds)
        if not done:
            self.give_up(key)
            raise self._error(key)
        return begun.result()

    async def quiet(self, keys: Iterable[str], seconds: float = TURN_SECONDS) -> None:
        """Wait until nothing is under way for some keys; the caller is the next as long as it awaits nothing else.

        Raises:
            WorkHangs: something still is after so many seconds, or is late.
        """
        if not self._under_way:
            return
        loop = asyncio.get_running_loop()
        deadline = loop.time() + seconds
        wanted = tuple(keys)
        while ahead := next((key for key in wanted if key in self._under_way), None):
            work = self._under_way[ahead]
            left = min(deadline, work.due) - loop.time()
            if work.late is not None or left <= 0:
                raise self._error(ahead)
            await asyncio.wait({work.done}, timeout=left)

    def give_up(self, key: str) -> None:
        """Call what is under way late, before its time or at it."""
        work = self._under_way.get(key)
        if work is not None and work.late is None:
            work.late = work.what()
            if self._reports is not None:
                self._reports.hangs(key, self._text(work), self._number_late())

    def _number_late(self) -> int:
        return sum(work.late is not None for work in self._under_way.values())

    def _error(self, key: str) -> WorkHangs:
        return WorkHangs(
            f"{key}: {self._text(self._under_way[key])}",
            "The driver is stuck, or busy with something else: see `dmesg` on the node. Other cards are not affected; "
            "this one is available again once the work has returned.",
        )

    @staticmethod
    def _text(work: _Work[object] | _Work[Result]) -> str:
        took = asyncio.get_running_loop().time() - work.began
        return f"{work.late or work.what()} has not returned for {took:.0f} s"
