"""Faults of the event loop: each is told once, in words that an operator understands."""

from __future__ import annotations

import errno
import os

from launcherkit.rpc.calls import AGAIN_SECONDS, Faults
from tests.support.looping import TimedLoop, run_timed


def told(*faults: tuple[float, str, BaseException | None]) -> list[str]:
    """Of faults, each so many seconds after the one before."""
    lines: list[str] = []

    async def scene(loop: TimedLoop) -> None:
        handler = Faults(lines.append)
        for seconds, message, problem in faults:
            loop.skip(seconds)
            handler(loop, {"message": message} | ({} if problem is None else {"exception": problem}))

    run_timed(scene)
    return lines


def test_that_no_connection_can_be_accepted_is_told_with_its_reason() -> None:
    full = OSError(errno.EMFILE, os.strerror(errno.EMFILE))
    message = "socket.accept() out of system resource"
    assert told((0.0, message, full)) == [
        "connections can't be accepted: Too many open files; tried again every second"
    ]
    assert told((0.0, message, ValueError("other"))) == [message]
    assert told((0.0, "something else", full)) == ["something else"]


def test_a_fault_is_told_again_only_where_it_was_away_for_a_minute() -> None:
    soon, late = AGAIN_SECONDS - 1, AGAIN_SECONDS + 1
    assert told((0.0, "a", None), (soon, "a", None), (soon, "a", None), (0.0, "b", None)) == ["a", "b"]
    assert told((0.0, "a", None), (late, "a", None)) == ["a", "a"]
