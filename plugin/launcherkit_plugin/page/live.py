"""The daemon's side of the page: collects its contents, has it drawn, and notifies browsers of changes.

The page is drawn on request, in a separate process: the code that draws would take a third of the daemon's memory. The
drawing is kept while somebody requests it.
"""

from __future__ import annotations

import asyncio
import os
from asyncio.subprocess import Process
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from typing import NamedTuple

from launcherkit.model.host import HostFacts
from launcherkit_plugin.host.child import NoAnswer, ask, command_of
from launcherkit_plugin.http.response import EVENTS, NODE_PAGE, Page, Response
from launcherkit_plugin.model.device import NO_USAGE, Resource, Usage
from launcherkit_plugin.model.stream import StreamedValue
from launcherkit_plugin.page.view import NodeView, RecentChanges, dump_view, holders_of, unhealthy_of

COMMAND = command_of("launcherkit_plugin.page.drawing")
DRAW_SECONDS = 5.0
"""How many seconds a drawing may take; 4096 functions take one. After that the tree is left out: sysfs may hang."""
SETTLE_SECONDS = 0.1
"""The pause between a change and its notification: changes often come together."""
HEARTBEAT_SECONDS = 15.0
STREAM_SECONDS = 300.0
"""After this time a browser has to connect, and to be admitted, again."""
AGAIN_SECONDS = 15.0
"""When the tree was left out, browsers ask again after this time: sysfs may have been slow for a moment."""
KEEP_SECONDS = 60.0
"""How long a drawing is kept without requests."""
MAX_CPU_SHARE = 0.5
"""The largest share of a CPU that drawings take, however many changes there are: there is a pause after each."""

_REMEDY = "Reload it later. If that doesn't help, the container has too little CPU or memory; see its limits."


class _Drawing(NamedTuple):
    version: str
    policy: str
    """Content-Security-Policy."""
    text: bytes
    seconds: float
    """The CPU time that it took."""


class NodePage:
    """The page of this node.

    Args:
        node: its name.
        root: of the host's file system.
        recent: the last changes.
        clock: seconds since the epoch.
        command: the command line of the process that draws.
    """

    def __init__(
        self,
        node: str,
        root: str,
        recent: RecentChanges,
        clock: Callable[[], float],
        command: Sequence[str] = COMMAND,
    ) -> None:
        self._node = node
        self._root = root
        self._recent = recent
        self._clock = clock
        self._command = command
        self._loop = asyncio.get_running_loop()
        self._resources: Sequence[Resource] = ()
        self._usage = NO_USAGE
        self._facts: HostFacts | None = None
        self._since: dict[tuple[str, str], float] = {}
        self._daemon = os.urandom(4).hex()
        self._state = StreamedValue(0)
        """A number that increases with each change of the contents."""
        self._state.open()
        self._drawing: asyncio.Task[_Drawing] | None = None
        self._drawn: _Drawing | None = None
        self._rested = 0.0
        self._hanging: Process | None = None
        """A process that hangs in sysfs."""
        self._forgetting: asyncio.TimerHandle | None = None
        self._again: asyncio.TimerHandle | None = None
        recent.on_event = lambda: self._loop.call_soon_threadsafe(self._change)

    def observe(self, facts: HostFacts, resources: Sequence[Resource], usage: Usage) -> None:
        """Set the facts, resources and usage of the loop's last turn."""
        now, before = self._clock(), self._since
        unhealthy = ((each.name, key) for each in resources for key in each.devices if not each.devices[key].healthy)
        self._since = {device: before.get(device, now) for device in unhealthy}
        same = usage.source == self._usage.source and usage.held == self._usage.held and resources == self._resources
        if not (same and facts == self._facts):
            self._facts, self._resources, self._usage = facts, resources, usage
            self._change()

    @property
    def version(self) -> str:
        """The version of the present contents; unique across daemons."""
        return f"{self._daemon}-{self._state.now}"

    def _change(self) -> None:
        self._state.set(self._state.now + 1)

    def view(self, *, tree: bool = True) -> NodeView:
        """The present contents."""
        return NodeView(
            node=self._node,
            version=self.version,
            made=self._clock(),
            host=self._root if tree else "",
            counts={each.name: len(each.devices) for each in self._resources},
            unhealthy=unhealthy_of(self._resources, self._since),
            source=self._usage.source,
            held=holders_of(self._usage),
            changes=self._recent.newest_first(),
        )

    def pages(self) -> dict[str, Page]:
        """The page, and its stream of changes, by path."""

        async def events(_: Mapping[str, str]) -> Response:
            return Response(200, b"", "text/event-stream", stream=self._events())

        return {NODE_PAGE: self._answer, EVENTS: events}

    async def _answer(self, _: Mapping[str, str]) -> Response:
        try:
            drawn = await self._newest()
        except NoAnswer as problem:
            text = f"the page can't be drawn: {problem}\n{_REMEDY}\n"
            return Response(503, text.encode())
        if self._forgetting is not None:
            self._forgetting.cancel()
        self._forgetting = self._loop.call_later(KEEP_SECONDS, self._forget)
        headers = (("Content-Security-Policy", drawn.policy),)
        return Response(200, drawn.text, "text/html; charset=utf-8", headers)

    def _forget(self) -> None:
        self._drawn = None

    async def _newest(self) -> _Drawing:
        """The newest drawing. Drawings are made one at a time; all who wait get the same one."""
        if self._drawn is not None and self._drawn.version == self.version:
            return self._drawn
        if self._drawing is None:
            self._drawing = asyncio.create_task(self._draw())
            self._drawing.add_done_callback(self._ended)
        return await asyncio.shield(self._drawing)

    def _ended(self, drawing: asyncio.Task[_Drawing]) -> None:
        self._drawing = None
        drawing.cancelled() or drawing.exception()  # marks it as retrieved: those who waited got it

    async def _draw(self) -> _Drawing:
        await asyncio.sleep(self._rested - self._loop.time())
        began, lost = self._loop.time(), 0.0
        tree = self._hanging is None or bool(self._hanging.returncode)
        try:
            drawn = await self._drawn_by_process(self.view(tree=tree))
        except NoAnswer as problem:
            self._hanging = problem.hanging
            lost = self._loop.time() - began  # its CPU time is unknown
            tree = False
            drawn = await self._drawn_by_process(self.view(tree=False))
        if self._again is not None:
            self._again.cancel()
        self._again = None if tree else self._loop.call_later(AGAIN_SECONDS, self._change)
        self._rested = self._loop.time() + (1 / MAX_CPU_SHARE - 1) * (lost + drawn.seconds)
        self._drawn = drawn
        return drawn

    async def _drawn_by_process(self, view: NodeView) -> _Drawing:
        seconds, policy, text = (await ask(self._command, dump_view(view), DRAW_SECONDS)).split(b"\n", 2)
        return _Drawing(view.version, policy.decode("ascii"), text, float(seconds))

    async def _events(self) -> AsyncGenerator[bytes, None]:
        """Server-sent events, each with the version of the contents at that time."""
        ends, sent = self._loop.time() + STREAM_SECONDS, ""
        while self._loop.time() < ends:
            state = self._state.now
            if sent != self.version:
                sent = self.version
                yield f"data: {sent}\n\n".encode()
            else:
                yield b":\n\n"
            await self._state.change(state, HEARTBEAT_SECONDS)
            if self._state.now != state:
                await asyncio.sleep(SETTLE_SECONDS)
