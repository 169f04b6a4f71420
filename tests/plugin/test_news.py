"""Hints are gathered until somebody looks."""

from __future__ import annotations

import asyncio

from launcherkit_plugin.news import Hints, News


def test_hints_that_come_together_are_told_together_and_once() -> None:
    async def run() -> tuple[frozenset[News], frozenset[News]]:
        hints = Hints(settle=0.01)
        waiting = asyncio.create_task(hints.wait(60))
        await asyncio.sleep(0)
        for news in (News.HOST, News.HOST, News.PODS):
            hints.give(news)
        return await waiting, await hints.wait(0.01)

    assert asyncio.run(run()) == (frozenset({News.HOST, News.PODS}), frozenset())


def test_one_that_came_while_nobody_waited_is_not_lost() -> None:
    async def run() -> frozenset[News]:
        hints = Hints(settle=0)
        hints.give(News.CONFIG)
        return await hints.wait(60)

    assert asyncio.run(run()) == {News.CONFIG}


def test_one_that_came_to_a_waiter_that_gave_up_is_not_lost_either() -> None:
    async def run() -> frozenset[News]:
        hints = Hints(settle=60)
        hints.give(News.CONFIG)
        waiting = asyncio.create_task(hints.wait(60))
        await asyncio.sleep(0.01)
        waiting.cancel()
        hints._settle = 0
        return await hints.wait(60)

    assert asyncio.run(run()) == {News.CONFIG}
