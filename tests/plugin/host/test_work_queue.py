"""Work that may hang is done in a thread that can be left behind, and nobody waits but who wants the same thing."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from queue import Queue

import pytest

from launcherkit_plugin.host.progress import Progress
from launcherkit_plugin.host.work_queue import NotFinished, WorkQueue
from launcherkit_plugin.model.errors import WORK_HANGS
from tests.support.errors import raises_code
from tests.support.looping import TimedLoop, WorkThreads, run_timed, settled
from tests.support.provoked import provoked


class Recorded:
    """What was reported."""

    def __init__(self) -> None:
        self.late: list[tuple[str, int]] = []
        self.back: list[tuple[str, int]] = []

    def hangs(self, key: str, text: str, hanging: int) -> None:
        self.late.append((text.partition(" has")[0], hanging))

    def came_back(self, key: str, text: str, hanging: int) -> None:
        self.back.append((text.partition(" has")[0], hanging))


@contextmanager
def gate() -> Iterator[threading.Event]:
    """What hangs until it is set; no test leaves a thread behind."""
    event = threading.Event()
    try:
        yield event
    finally:
        event.set()


def test_it_gives_and_raises_what_the_work_does() -> None:
    async def scene() -> None:
        queue = WorkQueue()
        assert await queue.run("card", "adding", lambda: 1 + 1, 60) == 2
        with pytest.raises(ZeroDivisionError):
            await queue.run("card", "dividing", lambda: 1 // 0, 60)
        assert not queue.is_busy("card")

    asyncio.run(scene())


def test_what_hangs_holds_up_nobody_who_wants_something_else() -> None:
    async def scene(stuck: threading.Event) -> None:
        queue = WorkQueue()
        waiting = asyncio.create_task(queue.run("one", "waiting", lambda: stuck.wait(60), 60))
        assert await queue.run("two", "working", lambda: "done", 60) == "done"
        assert not waiting.done()
        stuck.set()
        assert await waiting

    with gate() as stuck:
        asyncio.run(scene(stuck))


def test_what_is_to_be_waited_for_is_waited_for_however_late_it_is() -> None:
    async def scene(stuck: threading.Event) -> None:
        recorded = Recorded()
        queue = WorkQueue(recorded)
        waiting = asyncio.create_task(queue.run_to_end("claim", "writing", lambda: stuck.wait(60), 0))
        while not recorded.late:
            await asyncio.sleep(0)
        for _ in range(3):
            await asyncio.sleep(0)
        assert not waiting.done()
        stuck.set()
        assert await waiting
        assert recorded.back

    with gate() as stuck:
        asyncio.run(scene(stuck))


def test_a_look_that_nobody_waits_for_any_more_still_names_what_hangs() -> None:
    async def scene(stuck: threading.Event) -> None:
        recorded, arrived = Recorded(), threading.Event()
        queue = WorkQueue(recorded)

        def work(progress: Progress) -> None:
            progress.owner = "b"
            progress.to("/sys/b")
            arrived.set()
            stuck.wait(60)

        waiting = asyncio.create_task(queue.look(("a", "b"), work, stall=0.01))
        await asyncio.sleep(0)
        assert arrived.wait(
            60
        )  # the loop stands still meanwhile, and with it the time until the step counts as hanging
        waiting.cancel()
        while not recorded.late:
            await asyncio.sleep(0.001)
        assert queue.hanging("b")
        assert not queue.is_busy("a")

    with gate() as stuck:
        asyncio.run(scene(stuck))


def test_a_look_whose_thread_still_waits_for_a_processor_is_not_late() -> None:
    """On a machine that is busy with other things; nothing of the host can hang before its first step."""

    async def scene(loop: TimedLoop, begun: threading.Event) -> None:
        queue = WorkQueue()

        def work(progress: Progress) -> str:
            begun.wait(60)
            progress.to("/sys/a")
            return "looked"

        looking = asyncio.create_task(queue.look(("a",), work, stall=1))
        for _ in range(3):
            await settled()
            loop.skip(10)
            await settled()
        assert not looking.done()
        begun.set()
        assert await looking == "looked"

    with gate() as begun:
        run_timed(lambda loop: scene(loop, begun))


def test_a_look_is_late_when_one_of_its_steps_is_however_long_all_of_them_take() -> None:
    async def scene(loop: TimedLoop, steps: Queue[threading.Event]) -> None:
        queue = WorkQueue()
        arrived = asyncio.Queue[int]()

        def work(progress: Progress) -> str:
            for number in range(4):
                progress.to(f"/sys/{number}")
                loop.call_soon_threadsafe(arrived.put_nowait, number)
                steps.get().wait(60)
            return "looked"

        looking = asyncio.create_task(queue.look(("a",), work, stall=60))
        for number in range(3):
            assert await arrived.get() == number
            loop.skip(60)
            await settled()
            assert not looking.done(), "it has made a step"
            gone_on = threading.Event()
            gone_on.set()
            steps.put(gone_on)
        assert await arrived.get() == 3
        for _ in range(2):
            loop.skip(60)
            await settled()
        with raises_code(WORK_HANGS, match="a: reading /sys/3 has not returned"):
            await looking

    with gate() as stuck:
        steps = Queue[threading.Event]()
        run_timed(lambda loop: scene(loop, steps))
        stuck.set()
        steps.put(stuck)


def test_what_is_done_for_one_key_is_done_in_the_order_in_which_it_was_asked_for() -> None:
    threads = WorkThreads()

    async def scene(stuck: threading.Event) -> None:
        queue, order = WorkQueue(), list[int]()

        def work(number: int) -> None:
            stuck.wait(60)
            order.append(number)

        tasks = [asyncio.create_task(queue.run("card", "x", lambda n=n: work(n), 60, turn=60)) for n in range(5)]  # type: ignore[misc]
        await asyncio.sleep(0)
        assert queue.begin("card", "more", lambda: order.append(9), 60) is None, "it is busy"
        assert threads.names() == ["work: card"]
        stuck.set()
        await asyncio.gather(*tasks)
        assert order == [0, 1, 2, 3, 4]

    with gate() as stuck:
        asyncio.run(scene(stuck))


def test_what_hangs_is_begun_once_reported_once_and_refused_until_it_has_come_back() -> None:
    threads = WorkThreads()
    begun: list[int] = []
    recorded, started = Recorded(), threading.Event()

    async def scene(stuck: threading.Event) -> None:
        queue = WorkQueue(recorded)

        def work() -> str:
            begun.append(1)
            started.set()
            stuck.wait(60)
            return "late"

        with raises_code(WORK_HANGS, match="card: removing it has not returned for"):
            await queue.run("card", "removing it", work, 0.01)
        assert started.wait(60)  # its thread may come later than it is late
        for _ in range(3):
            with raises_code(WORK_HANGS):
                await queue.run("card", "again", work, 60)
        assert (queue.hanging("card") or "").startswith("removing it has not returned")
        assert (begun, threads.names(), recorded.late, recorded.back) == (
            [1],
            ["work: card"],
            [("removing it", 1)],
            [],
        )
        stuck.set()
        while queue.is_busy("card"):
            await asyncio.sleep(0.001)
        assert recorded.back == [("removing it", 0)]
        assert await queue.run("card", "again", work, 60) == "late"

    with gate() as stuck:
        asyncio.run(scene(stuck))


def test_the_error_is_as_its_page_has_it() -> None:
    async def scene(stuck: threading.Event) -> None:
        card = "0000:01:00.0"
        with raises_code(WORK_HANGS) as caught:
            await WorkQueue().run(card, f"making vGPUs on {card}", lambda: stuck.wait(60), 0.01)
        text = f"{caught.value.code}: {caught.value.message}"
        assert [text.replace("for 0 s", "for 10 s")] == provoked("host", "LK750")

    with gate() as stuck:
        asyncio.run(scene(stuck))


def test_who_waits_for_his_turn_is_refused_when_it_does_not_come() -> None:
    async def scene(stuck: threading.Event) -> None:
        queue = WorkQueue()
        first = queue.begin("card", "binding", lambda: stuck.wait(60), 60)
        assert first is not None
        with raises_code(WORK_HANGS, match="card: binding has not returned"):
            await queue.run("card", "allocating", lambda: None, 60, turn=0.01)
        assert queue.hanging("card") is None, "it has its time still"
        stuck.set()
        await first

    with gate() as stuck:
        asyncio.run(scene(stuck))


def test_a_loop_that_has_ended_is_not_missed() -> None:
    async def scene(stuck: threading.Event) -> None:
        with raises_code(WORK_HANGS):
            await WorkQueue().run("card", "waiting", lambda: stuck.wait(60), 0.01)

    with gate() as stuck:
        asyncio.run(scene(stuck))
        (thread,) = [thread for thread in threading.enumerate() if thread.name == "work: card"]
        assert thread.daemon
    thread.join(60)


def test_work_whose_waiting_task_is_cancelled_ends_without_an_error() -> None:
    async def scene(stuck: threading.Event) -> None:
        complaints: list[object] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, about: complaints.append(about))
        queue = WorkQueue()
        begun = queue.begin("one", "waiting", lambda: stuck.wait(60), 60)
        assert begun is not None
        begun.cancel()
        assert queue.is_busy("one")
        stuck.set()
        await queue.quiet(["one"], 60)
        while queue.is_busy("one"):
            await asyncio.sleep(0.01)
        assert complaints == []

    with gate() as stuck:
        asyncio.run(scene(stuck))


def test_its_thread_ends_with_it() -> None:
    queue = WorkQueue()
    thread = asyncio.run(queue.run("card", "asking", threading.current_thread, 60))
    assert thread.is_alive()  # it waits for more work
    del queue
    gc.collect()
    thread.join(60)
    assert not thread.is_alive()


# Work in the event loop's thread


def test_what_does_not_block_runs_here_one_after_the_other_for_each_key() -> None:
    async def scene() -> None:
        queue, go, done = WorkQueue(), asyncio.Event(), list[str]()

        async def first() -> None:
            await go.wait()
            done.append("first")

        async def second() -> None:
            done.append("second")

        calls = [asyncio.create_task(queue.run_here("claim", str, work, 60)) for work in (first, second)]
        await queue.run_here("other", str, second, 60)
        assert done == ["second"]
        go.set()
        await asyncio.gather(*calls)
        assert done == ["second", "first", "second"]
        assert not queue.is_busy("claim")

    asyncio.run(scene())


def test_what_is_not_finished_here_in_time_goes_on_and_the_next_call_waits_for_it() -> None:
    async def scene() -> None:
        queue, go, done = WorkQueue(), asyncio.Event(), list[str]()

        async def slow() -> None:
            await go.wait()
            done.append("slow")

        async def next_one() -> str:
            return "next"

        with pytest.raises(NotFinished, match="waiting for the API server"):
            await queue.run_here("claim", lambda: "waiting for the API server", slow, 0)
        with pytest.raises(NotFinished, match="waiting for the API server"):
            await queue.run_here("claim", lambda: "something else", next_one, 0)
        go.set()
        assert await queue.run_here("claim", str, next_one, 60) == "next"
        assert done == ["slow"]

    asyncio.run(scene())


def test_at_the_end_what_runs_here_and_is_not_finished_is_cancelled() -> None:
    async def scene() -> None:
        queue, ended = WorkQueue(), asyncio.Event()

        async def forever() -> None:
            try:
                await asyncio.Event().wait()
            finally:
                ended.set()

        with pytest.raises(NotFinished):
            await queue.run_here("claim", str, forever, 0)
        await asyncio.sleep(0)
        await queue.end(0)
        await ended.wait()
        while queue.is_busy("claim"):
            await asyncio.sleep(0)

    asyncio.run(scene())
