"""Work that may hang is done in a thread that can be left behind."""

from __future__ import annotations

import asyncio
import threading

import pytest

from launcherkit_plugin.host.guarded import Guarded


def test_it_gives_what_the_work_gives() -> None:
    results = iter([1, 2])

    async def run() -> list[int]:
        apart = Guarded(lambda: next(results), patience=60)
        return [await apart.result(), await apart.result()]

    assert asyncio.run(run()) == [1, 2]


def test_it_raises_what_the_work_raises() -> None:
    async def run() -> None:
        await Guarded(lambda: 1 // 0, patience=60).result()

    with pytest.raises(ZeroDivisionError):
        asyncio.run(run())


def test_what_hangs_is_begun_once_and_its_result_comes_when_it_comes() -> None:
    begun: list[int] = []
    free = threading.Event()

    def work() -> str:
        begun.append(1)
        free.wait(60)
        return "late"

    async def run() -> str:
        apart = Guarded(work, patience=0.01)
        for _ in range(3):
            with pytest.raises(TimeoutError):
                await apart.result()
        free.set()
        while True:
            try:
                return await apart.result()
            except TimeoutError:
                pass

    assert asyncio.run(run()) == "late"
    assert begun == [1]


def test_a_loop_that_has_ended_is_not_missed() -> None:
    free = threading.Event()

    async def run() -> None:
        with pytest.raises(TimeoutError):
            await Guarded(lambda: free.wait(60), patience=0.01).result()

    asyncio.run(run())
    (thread,) = [thread for thread in threading.enumerate() if thread.name == "apart"]
    assert thread.daemon
    free.set()
    thread.join(60)
