"""The files of `launcherkit topology --html` and `--svg` in a browser."""

from __future__ import annotations

from pathlib import Path

import pytest

from launcherkit.show.outline import outline
from launcherkit.show.page import page
from launcherkit.show.picture import picture
from tests.show.machines import HOSTS, topology
from tests.support.chromium import Browser

pytestmark = pytest.mark.browser


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", HOSTS)
def test_a_page_fits_every_width_and_asks_for_nothing(browser: Browser, tmp_path: Path, name: str, scheme: str) -> None:
    file = tmp_path / "host.html"
    file.write_text(page(outline(topology(name)), name), encoding="utf-8")
    browser.prefer(scheme)
    for across in (400, 1280):
        browser.size(across)
        browser.open(file.as_uri())
        assert browser.value("document.documentElement.scrollWidth") <= across
    assert set(browser.requests) == {file.as_uri()}
    browser.press("Tab")
    assert browser.value("document.activeElement.tagName") == "SUMMARY"


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", HOSTS)
def test_a_picture_is_drawn_with_all_its_text_inside_and_asks_for_nothing(
    browser: Browser, tmp_path: Path, name: str, scheme: str
) -> None:
    file = tmp_path / "host.svg"
    file.write_text(picture(outline(topology(name)), name), encoding="utf-8")
    browser.size(1280)
    browser.prefer(scheme)
    browser.open(file.as_uri())
    beyond = "[...document.querySelectorAll('text')].filter(e => e.getBBox().x + e.getBBox().width > {}).length"
    assert browser.value(beyond.format("document.documentElement.width.baseVal.value")) == 0
    assert set(browser.requests) == {file.as_uri()}
    browser.press("Tab")
    assert browser.value("document.activeElement.tagName") == "g"
