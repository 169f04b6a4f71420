"""Fixtures of the device plugin's tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.faults import Stall
from tests.support.looping import WorkThreads


@pytest.fixture
def stall(monkeypatch: pytest.MonkeyPatch) -> Iterator[Stall]:
    stall = Stall(monkeypatch)
    try:
        yield stall
    finally:
        stall.ends()


@pytest.fixture
def work() -> WorkThreads:
    return WorkThreads()
