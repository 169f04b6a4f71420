"""Waiting for what nobody tells of."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

PATIENCE = 90.0
"""Seconds before a test gives up."""
NUDGE_SECONDS = 5.0

Found = TypeVar("Found")


def until(
    probe: Callable[[], Found],
    what: str,
    otherwise: Callable[[], object] = lambda: "",
    *,
    nudge: Callable[[], object] = lambda: None,
) -> Found:
    """What a probe gives, once it gives something true.

    Args:
        what: it should be, for the message where it never is.
        otherwise: what there is instead.
        nudge: called now and then, where that may help.

    Raises:
        AssertionError: the probe gives nothing.
    """
    deadline = time.monotonic() + PATIENCE
    nudged = time.monotonic()
    while not (found := probe()):
        assert time.monotonic() < deadline, f"never saw {what}; there is {otherwise()}"
        if time.monotonic() > nudged + NUDGE_SECONDS:
            nudge()
            nudged = time.monotonic()
        time.sleep(0.02)
    return found
