"""The page's drawings: what of a CPU they may take."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncGenerator, Callable
from pathlib import Path

import pytest

from launcherkit.model.host import NO_FACTS
from launcherkit_plugin.cluster.socket import ClusterSocket
from launcherkit_plugin.model.device import NO_USAGE, Device, Holder, Problem, Resource, Usage
from launcherkit_plugin.model.wakeups import WakeupQueue
from launcherkit_plugin.page.drawing import drawn
from launcherkit_plugin.page.live import (
    AGAIN_SECONDS,
    HEARTBEAT_SECONDS,
    KEEP_SECONDS,
    MAX_CPU_SHARE,
    SETTLE_SECONDS,
    STREAM_SECONDS,
    NodePage,
)
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


FAILS_ONCE = """
import json, pathlib, sys
tree = json.load(sys.stdin)["host"] != ""
tried = pathlib.Path(sys.argv[1])
if tree and not tried.exists():
    tried.touch()
    raise SystemExit("slow")
print(0.0, "none", "whole" if tree else "without the tree", sep="\\n")
"""


def test_a_tree_that_could_not_be_read_once_is_drawn_again_though_nothing_has_changed(tmp_path: Path) -> None:
    async def texts(loop: TimedLoop) -> list[bytes]:
        shown = page(lambda: 0.0, FAILS_ONCE, str(tmp_path / "tried"))
        show = shown.pages()["/"]
        found = [(await show({})).body, (await show({})).body]
        first = shown.version
        loop.skip(AGAIN_SECONDS)
        await settled()
        assert shown.version != first  # browsers are told, and ask again
        found.append((await show({})).body)
        last = shown.version
        loop.skip(AGAIN_SECONDS)
        await settled()
        assert shown.version == last
        return found

    assert run_timed(texts) == [b"without the tree\n", b"without the tree\n", b"whole\n"]


def resource(*sick: str) -> Resource:
    """Two cards, some of them Unhealthy."""
    problem = Problem("node", "it has no node")
    devices = {name: Device(name, problem=problem if name in sick else None) for name in ("a", "b")}
    return Resource("nvidia.com/GPU", "PCI_RESOURCE_X", devices)


def page(clock: Callable[[], float] = lambda: 0.0, *command: str) -> NodePage:
    recent = RecentChanges(ClusterSocket(silent, WakeupQueue(0.0)), clock)
    return NodePage("node", "/", recent, clock, (sys.executable, "-c", *command))


async def stream(page: NodePage) -> AsyncGenerator[bytes, None]:
    events = (await page.pages()["/events"]({})).stream
    assert events is not None
    async for part in events:
        yield part


def test_since_when_a_device_is_unhealthy_is_kept_as_long_as_it_is() -> None:
    now = [100.0]

    async def since() -> list[dict[str, float]]:
        shown = page(lambda: now[0])
        found = []
        for sick in (["a"], ["a", "b"], ["b"], ["a", "b"]):
            shown.observe(NO_FACTS, [resource(*sick)], NO_USAGE)
            found.append({each.device: each.since for each in shown.view().unhealthy})
            now[0] += 1
        return found

    assert asyncio.run(since()) == [{"a": 100.0}, {"a": 100.0, "b": 101.0}, {"b": 101.0}, {"a": 103.0, "b": 101.0}]


def test_its_version_changes_with_what_it_says_and_only_then() -> None:
    held = Usage("pod-resources", {"nvidia.com/GPU": {"a": Holder("team/vm")}})
    turns = [
        (NO_FACTS, [resource()], NO_USAGE),
        (NO_FACTS, [resource("a")], NO_USAGE),
        (NO_FACTS, [resource("a")], held),
        (NO_FACTS, [resource("a")], held._replace(source="checkpoint")),
        (NO_FACTS._replace(known=True), [resource("a")], held._replace(source="checkpoint")),
    ]

    async def versions() -> list[tuple[str, str]]:
        shown, found = page(), []
        for turn in turns:
            shown.observe(*turn)
            first = shown.version
            shown.observe(*turn)
            found.append((first, shown.version))
        return found

    seen = asyncio.run(versions())
    assert [first == again for first, again in seen] == [True] * len(turns)
    assert len({first for first, _ in seen}) == len(turns)


def test_browsers_are_told_of_a_change_and_that_the_daemon_is_there_until_they_must_ask_again() -> None:
    async def told(loop: TimedLoop) -> list[bytes]:
        shown = page()
        parts = stream(shown)
        seen = [await anext(parts)]
        next_one = asyncio.ensure_future(anext(parts))
        await settled()
        shown.observe(NO_FACTS, [resource()], NO_USAGE)
        await settled()
        assert not next_one.done()  # changes often come together
        loop.skip(SETTLE_SECONDS)
        seen += [await next_one, shown.version.encode()]
        next_one = asyncio.ensure_future(anext(parts))
        await settled()
        loop.skip(HEARTBEAT_SECONDS)
        seen.append(await next_one)
        next_one = asyncio.ensure_future(anext(parts))
        await settled()
        loop.skip(STREAM_SECONDS)
        with pytest.raises(StopAsyncIteration):
            await next_one
        return seen

    first, changed, version, heartbeat = run_timed(told)
    assert first.startswith(b"data: ")
    assert changed == b"data: " + version + b"\n\n" != first
    assert heartbeat == b":\n\n"


def test_a_drawing_is_kept_for_a_minute_after_it_was_asked_for_and_then_made_again() -> None:
    drawings = [0]

    def clock() -> float:  # each drawing says when it was made
        drawings[0] += 1
        return 0.0

    async def asked(loop: TimedLoop) -> list[int]:
        show = page(clock, "import sys; sys.stdin.read(); print(0, 'none', 'page', sep='\\n')").pages()["/"]
        counts = []
        for seconds in (0.0, KEEP_SECONDS - 30, KEEP_SECONDS - 30, KEEP_SECONDS + 1):
            loop.skip(seconds)
            await settled()
            await show({})
            counts.append(drawings[0])
        return counts

    assert run_timed(asked) == [1, 1, 1, 2]
