"""How a server is told to end, and that no signal kills one that is ending."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Iterator

import pytest

from launcherkit.process.stopping import Stop, stopped_by_signals

STOPS = (signal.SIGTERM, signal.SIGINT)


@pytest.fixture(autouse=True)
def former() -> Iterator[None]:
    """The handlers that this process had before."""
    handlers = {number: signal.getsignal(number) for number in STOPS}
    yield
    for number, handler in handlers.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", STOPS, ids=lambda number: number.name)
def test_a_signal_asks_and_a_second_one_hurries(number: signal.Signals) -> None:
    async def told() -> None:
        stop = Stop()
        with stopped_by_signals(stop):
            os.kill(os.getpid(), number)
            await stop.asked.wait()
            assert not stop.hurried.is_set()
            os.kill(os.getpid(), number)
            await stop.hurried.wait()

    asyncio.run(told())


def test_a_signal_that_another_thread_takes_wakes_the_loop() -> None:
    async def told() -> None:
        stop = Stop()
        with stopped_by_signals(stop):
            signal.pthread_sigmask(signal.SIG_BLOCK, STOPS)  # so that only the other thread can take it
            taker = threading.Thread(target=_take)
            taker.start()
            try:
                await stop.asked.wait()
            finally:
                taker.join()
                signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPS)

    def _take() -> None:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPS)
        signal.pthread_kill(threading.get_ident(), signal.SIGTERM)

    asyncio.run(told())


def test_the_signals_are_never_at_their_default_meanwhile_which_would_kill(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocked in one thread they may be, but another takes them then."""
    changed = []
    change = signal.signal

    def remembered(number: int, handler: object) -> object:
        changed.append((number, handler))
        return change(number, handler)  # type: ignore[arg-type]

    async def told() -> None:
        with stopped_by_signals(Stop()):
            monkeypatch.setattr(signal, "signal", remembered)
        monkeypatch.undo()

    asyncio.run(told())
    assert changed == [(number, signal.SIG_IGN) for number in STOPS]
    assert [signal.getsignal(number) for number in STOPS] == [signal.SIG_IGN] * 2


def test_whoever_was_woken_by_signals_before_is_again() -> None:
    ours, theirs = os.pipe()
    os.set_blocking(theirs, False)
    signal.set_wakeup_fd(theirs)

    async def told() -> None:
        with stopped_by_signals(Stop()):
            pass

    try:
        asyncio.run(told())
    finally:
        assert signal.set_wakeup_fd(-1) == theirs
        os.close(ours)
        os.close(theirs)
