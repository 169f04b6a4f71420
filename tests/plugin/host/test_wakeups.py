"""Wakeups are gathered until somebody looks."""

from __future__ import annotations

import asyncio

from launcherkit_plugin.host.wakeups import Wakeup, WakeupQueue


def test_hints_that_come_together_are_told_together_and_once() -> None:
    async def run() -> tuple[frozenset[Wakeup], frozenset[Wakeup]]:
        wakeups = WakeupQueue(settle=0.01)
        waiting = asyncio.create_task(wakeups.wait(60))
        await asyncio.sleep(0)
        for wakeup in (Wakeup.HOST, Wakeup.HOST, Wakeup.PODS):
            wakeups.give(wakeup)
        return await waiting, await wakeups.wait(0.01)

    assert asyncio.run(run()) == (frozenset({Wakeup.HOST, Wakeup.PODS}), frozenset())


def test_one_that_came_while_nobody_waited_is_not_lost() -> None:
    async def run() -> frozenset[Wakeup]:
        wakeups = WakeupQueue(settle=0)
        wakeups.give(Wakeup.CONFIG)
        return await wakeups.wait(60)

    assert asyncio.run(run()) == {Wakeup.CONFIG}


def test_one_that_came_to_a_waiter_that_gave_up_is_not_lost_either() -> None:
    async def run() -> frozenset[Wakeup]:
        wakeups = WakeupQueue(settle=60)
        wakeups.give(Wakeup.CONFIG)
        waiting = asyncio.create_task(wakeups.wait(60))
        await asyncio.sleep(0.01)
        waiting.cancel()
        wakeups._settle = 0
        return await wakeups.wait(60)

    assert asyncio.run(run()) == {Wakeup.CONFIG}
