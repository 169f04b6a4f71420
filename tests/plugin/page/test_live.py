"""The page's drawings: what of a CPU they may take."""

from __future__ import annotations

import asyncio
import sys
import time

import pytest

from launcherkit_plugin.cluster.socket import ClusterSocket
from launcherkit_plugin.model.device import NO_USAGE
from launcherkit_plugin.model.wakeups import WakeupQueue
from launcherkit_plugin.page.drawing import drawn
from launcherkit_plugin.page.live import MAX_CPU_SHARE, NodePage
from launcherkit_plugin.page.view import NodeView, RecentChanges, dump_view
from launcherkit_plugin.telemetry.reporter import silent
from tests.support.looping import TimedLoop, run_timed, settled

YEAR = 3e7


def test_a_drawing_says_how_much_of_a_cpu_it_took() -> None:
    before = time.process_time()
    seconds, policy, text = drawn(dump_view(NodeView("n", "v", 0.0, "", {}, (), NO_USAGE.source, (), ()))).split(
        b"\n", 2
    )
    assert before <= float(seconds) <= time.process_time()
    assert policy.startswith(b"default-src 'none'")
    assert text.lower().startswith(b"<!doctype html>")


@pytest.mark.parametrize(("computed", "second"), [(0.0, True), (YEAR, False)])
def test_after_a_drawing_it_is_waited_for_as_long_as_that_has_computed(computed: float, second: bool) -> None:
    """Not for as long as it has waited, which on a busy machine may be long."""
    program = f"import sys; sys.stdin.read(); print({computed}, 'none', 'page', sep='\\n')"

    begun: list[float] = []

    def clock() -> float:
        begun.append(0.0)
        return 0.0

    async def drawings(loop: TimedLoop) -> bool:
        recent = RecentChanges(ClusterSocket(silent, WakeupQueue(0.0)), time.time)
        page = NodePage("node", "/", recent, clock, (sys.executable, "-c", program))
        show = page.pages()["/"]
        assert (await show({})).body == b"page\n"
        recent.event("Normal", "Changed", "something has changed")
        await settled()
        again = asyncio.ensure_future(show({}))
        await settled()
        at_once = len(begun) == 2
        loop.skip(computed * (1 / MAX_CPU_SHARE - 1))
        assert (await again).body == b"page\n"
        return at_once

    assert run_timed(drawings) is second


def test_a_page_that_cannot_be_drawn_says_why_and_what_to_do() -> None:
    async def answer() -> tuple[int, str]:
        recent = RecentChanges(ClusterSocket(silent, WakeupQueue(0.0)), time.time)
        page = NodePage("node", "/", recent, time.time, (sys.executable, "-c", "raise SystemExit('no memory')"))
        response = await page.pages()["/"]({})
        return response.status, response.body.decode()

    status, text = asyncio.run(answer())
    assert status == 503
    problem, remedy = text.splitlines()
    assert problem.startswith("the page can't be drawn: ")
    assert remedy.startswith("Reload it later.")
