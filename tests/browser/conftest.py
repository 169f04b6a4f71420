"""One browser serves a module."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.chromium import Browser, browsing


@pytest.fixture(scope="module")
def the_browser() -> Iterator[Browser]:
    with (
        tempfile.TemporaryDirectory(prefix="chromium-", ignore_cleanup_errors=True) as folder,
        browsing(Path(folder)) as browser,
    ):
        yield browser


@pytest.fixture
def browser(the_browser: Browser) -> Iterator[Browser]:
    """It has complained of nothing yet, and mustn't."""
    the_browser.open("about:blank")  # the page of an earlier test may still look for its daemon
    the_browser.requests.clear()
    the_browser.complaints.clear()
    yield the_browser
    assert the_browser.complaints == []
