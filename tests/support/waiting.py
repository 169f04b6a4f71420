"""Waiting for what nobody tells of."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

PATIENCE = 90.0
"""Seconds before a test gives up."""

Found = TypeVar("Found")


def until(probe: Callable[[], Found], what: str, otherwise: Callable[[], object] = lambda: "") -> Found:
    """What a probe gives, once it gives something true.

    Raises:
        AssertionError: it never does; says what it should have been, and what there is ``otherwise``.
    """
    deadline = time.monotonic() + PATIENCE
    while not (found := probe()):
        assert time.monotonic() < deadline, f"never saw {what}; there is {otherwise()}"
        time.sleep(0.1)
    return found
