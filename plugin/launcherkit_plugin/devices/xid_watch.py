"""Critical errors (Xids) of NVIDIA's cards, which a process waits for (`launcherkit_plugin.devices.xid_child`).

NVML tells of an Xid once, to whoever waits for it. So what a card had is remembered here: until it gets its driver
anew, no rule asks for it any more, or the daemon ends.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from launcherkit.model.address import PciAddress
from launcherkit_plugin.host.child import command_of, end_process
from launcherkit_plugin.model.backoff import Backoff
from launcherkit_plugin.model.device import Problem
from launcherkit_plugin.model.errors import XIDS_UNSEEN
from launcherkit_plugin.telemetry.reporter import Reporter

if TYPE_CHECKING:
    from asyncio.subprocess import Process

SILENT_SECONDS = 60.0
"""After how long without a line the process hangs: it writes one every 20 s; initializing cards may take longer."""
FIRST_PAUSE_SECONDS = 5.0
LONGEST_PAUSE_SECONDS = 300.0
"""Pauses before it is started again; they double."""

_GPU_IS_LOST = 15
_REMEDY = (
    "The container needs libnvidia-ml.so.1 of the node's driver, the module pynvml, /dev/nvidiactl and the cards' "
    "nodes. See `dmesg` on the node if the process was killed or hung."
)

Start: TypeAlias = Callable[[Sequence[str]], "Awaitable[Process]"]
"""Starts the process for some cards; raises OSError. In tests a double of it."""


def start_process(cards: Sequence[str]) -> Awaitable[Process]:
    """See `Start`."""
    none, command = asyncio.subprocess.DEVNULL, command_of("launcherkit_plugin.devices.xid_child")
    return asyncio.create_subprocess_exec(
        *command, str(os.getpid()), *cards, stdin=none, stdout=asyncio.subprocess.PIPE, stderr=none
    )


class XidWatch:
    """What cards had, and the process that waits for more. Its death changes no card's health. To be used in the event
    loop's thread.

    Args:
        reporter: receives why Xids aren't seen.
        changed: called when a card has become Unhealthy.
        start: starts the process.
    """

    def __init__(self, reporter: Reporter, changed: Callable[[], object], start: Start = start_process) -> None:
        self._reporter = reporter
        self._changed = changed
        self._start = start
        self._ignored: Mapping[PciAddress, Collection[int]] = {}
        self._faults: dict[PciAddress, Problem] = {}
        self._followed: frozenset[str] = frozenset()
        self._following: list[asyncio.Task[None]] = []
        """The last one is for the present cards; those before it wait until its process is ready, so that no error is
        missed when a card comes or goes."""
        self._tasks: set[asyncio.Task[None]] = set()
        """The same, and those that are ending."""
        self._pauses = Backoff(FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS)

    def problem(self, address: PciAddress) -> Problem | None:
        """Why a card is Unhealthy since an error."""
        return self._faults.get(address)

    def watch(self, cards: Mapping[PciAddress, Collection[int]]) -> None:
        """Wait for errors of these cards from now on, and forget those of others.

        A card that had one is let go, so that it can be reset.

        Args:
            cards: the cards that have NVIDIA's driver, each with the Xids that don't make it Unhealthy.
        """
        self._ignored = cards
        self._faults = {card: fault for card, fault in self._faults.items() if card in cards}
        followed = frozenset(str(card) for card in cards if card not in self._faults)
        if followed == self._followed:
            return
        self._followed = followed
        if followed:
            task = asyncio.create_task(self._follow(sorted(followed)))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            self._following.append(task)
        else:
            self._end(self._following)
            self._are_seen()

    async def close(self) -> None:
        """End the process; returns once it has ended, unless it hangs in the kernel."""
        self._followed = frozenset()
        self._end(self._following)
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _end(self, following: Sequence[asyncio.Task[None]]) -> None:
        for task in following:
            task.cancel()
        self._following = [task for task in self._following if task not in following]

    async def _follow(self, cards: Sequence[str]) -> None:
        while True:
            try:
                process = await self._start(cards)
            except OSError as problem:
                self._report(str(problem.strerror))
            else:
                try:
                    self._report(await self._listen(process))
                finally:
                    await end_process(process)
                await process.wait()  # beside one that hangs in the kernel there is no second one
            await asyncio.sleep(self._pauses.failed("process", asyncio.get_running_loop().time()))

    async def _listen(self, process: Process) -> str:
        """Note what the process says until it ends, or hangs; returns how."""
        assert process.stdout is not None
        last = ""
        try:
            while line := await asyncio.wait_for(process.stdout.readline(), SILENT_SECONDS):
                match json.loads(line):
                    case ["watching"]:
                        self._replace_older()
                    case ["alive"]:
                        self._pauses.succeeded("process")
                        self._are_seen()
                    case ["xid", card, number, instance]:
                        self._note_xid(PciAddress.parse(card), number, instance)
                    case ["refused", card, failure]:
                        self._note_refused(PciAddress.parse(card), failure)
                    case ["ended", failure]:
                        last = _text(failure)
            code = await asyncio.wait_for(process.wait(), SILENT_SECONDS)
        except TimeoutError:
            return f"the process that waits for them hangs: nothing for {SILENT_SECONDS:g} s"
        how = f"was killed by signal {-code}" if code < 0 else f"has ended with exit code {code}"
        return last or f"the process that waits for them {how}"

    def _replace_older(self) -> None:
        task = asyncio.current_task()
        if task in self._following:
            self._end(self._following[: self._following.index(task)])

    def _note_xid(self, card: PciAddress, number: int, instance: Sequence[int]) -> None:
        if card in self._ignored and number not in self._ignored[card]:
            part = "".join(f", {name} {each}" for name, each in zip(_INSTANCES, instance, strict=False))
            self._fail(card, f"{card}: NVIDIA's driver reported Xid {number}{part}")

    def _note_refused(self, card: PciAddress, failure: Mapping[str, Any]) -> None:
        if failure["code"] == _GPU_IS_LOST and card in self._ignored:
            self._fail(card, f"{card} is lost, says NVML: {_text(failure)}")
        else:
            self._reporter.once(("xid", card), "warning", f"Xids of {card} aren't seen: {_text(failure)}")

    def _fail(self, card: PciAddress, text: str) -> None:
        self._faults.setdefault(card, Problem("xid", text))  # the first one is the cause of the others
        self._changed()

    def _report(self, reason: str) -> None:
        self._reporter.metrics.xids_seen(seen=False)
        error = XIDS_UNSEEN(f"Xids of cards aren't seen: {reason}", _REMEDY, device=", ".join(sorted(self._followed)))
        self._reporter.problem("xid", error, "XidsUnseen")

    def _are_seen(self) -> None:
        self._reporter.metrics.xids_seen(seen=True)
        self._reporter.solved("xid")


_INSTANCES = ("GPU instance", "compute instance")


def _text(failure: Mapping[str, Any]) -> str:
    return failure.get("missing") or f"{failure['from']}: {failure['text']} ({failure['code']})"
