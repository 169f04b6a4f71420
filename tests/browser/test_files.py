"""The files of `launcherkit topology --html` and `--svg` in a browser."""

from __future__ import annotations

from pathlib import Path

import pytest

from launcherkit.show.contents import contents_of
from launcherkit.show.page import page
from launcherkit.show.picture import picture
from launcherkit.show.topology import HostTopology
from tests.show.machines import HOSTS, large, topology
from tests.support.chromium import Browser

pytestmark = pytest.mark.browser

MACHINES: dict[str, HostTopology] = {name: topology(name) for name in HOSTS} | {"64 cards": large()}
every_machine = pytest.mark.parametrize("host", MACHINES.values(), ids=MACHINES.keys())
schemes = pytest.mark.parametrize("scheme", ["light", "dark"])
BEYOND = """[...document.querySelectorAll('svg.drawing g')].flatMap(g => {
  const rect = g.querySelector(':scope > rect:not(.hit)');
  if (!rect || !rect.getBoundingClientRect().width) return [];
  const box = rect.getBoundingClientRect();
  return [...g.querySelectorAll(':scope > text')].map(text => [text.textContent, text.getBoundingClientRect()])
    .filter(([_, t]) => t.right > box.right + 1 || t.left < box.left - 1 || t.bottom > box.bottom + 2)
    .map(([text]) => text);
})"""
"""Texts that go beyond the box that they are in."""
VISIBLE = "[...document.querySelectorAll('g.card')].filter(e => e.getBoundingClientRect().width).length"


def written(folder: Path, name: str, text: str) -> str:
    file = folder / name
    file.write_text(text, encoding="utf-8")
    return file.as_uri()


@schemes
@every_machine
def test_a_page_fits_every_width_and_asks_for_nothing(
    browser: Browser, tmp_path: Path, host: HostTopology, scheme: str
) -> None:
    url = written(tmp_path, "host.html", page(contents_of(host), "host"))
    browser.prefer(scheme)
    for across in (400, 1024, 1440, 1920):
        browser.size(across)
        browser.open(url)
        assert browser.value("document.documentElement.scrollWidth") <= across
        assert browser.value(BEYOND) == []
        if across >= 1440:
            assert browser.value("document.documentElement.scrollHeight") <= 900
    assert set(browser.requests) == {url}


@schemes
@every_machine
def test_a_picture_is_drawn_with_all_its_text_inside_and_asks_for_nothing(
    browser: Browser, tmp_path: Path, host: HostTopology, scheme: str
) -> None:
    url = written(tmp_path, "host.svg", picture(contents_of(host), "host"))
    browser.size(1440)
    browser.prefer(scheme)
    browser.open(url)
    assert browser.value(BEYOND) == []
    assert browser.value("document.documentElement.getBoundingClientRect().bottom") <= 900
    assert set(browser.requests) == {url}
    browser.press("Tab")
    assert browser.value("document.activeElement.tagName") == "g"


@pytest.fixture
def opened(browser: Browser, tmp_path: Path) -> Browser:
    """A page of 64 cards."""
    browser.size(1440)
    browser.prefer("light")
    browser.open(written(tmp_path, "host.html", page(contents_of(large()), "host")))
    return browser


def test_a_node_folds_by_keyboard_and_by_mouse_and_what_is_below_it_moves_up(opened: Browser) -> None:
    opened.size(900)
    top = "document.querySelectorAll('g.node')[1].getBoundingClientRect().top"
    opened.wait("document.querySelectorAll('g.node')[1].getBoundingClientRect().top > 0")
    before = opened.value(top)
    opened.value("document.querySelector('g.lane > .fold').focus()")
    opened.press("Enter", "\r")
    assert opened.value(VISIBLE) == 60
    opened.value("document.querySelector('g.node > .fold').dispatchEvent(new MouseEvent('click', {bubbles: true}))")
    assert opened.value(VISIBLE) == 32
    assert opened.value("document.querySelector('g.node > .fold').getAttribute('aria-expanded')") == "false"
    assert opened.value(top) <= before
    opened.value("document.querySelector('g.node > .fold').focus()")
    opened.press("Enter", "\r")
    assert opened.value(VISIBLE) == 60


def test_the_filter_dims_cards_without_its_words_and_the_states_of_the_key_do_as_well(opened: Browser) -> None:
    bright = "document.querySelectorAll('g.card:not(.dim)').length"
    opened.press("/", "/")
    assert opened.value("document.activeElement.id") == "filter"
    opened.call("Input.insertText", text="VM train-5)")
    assert opened.value(bright) == 1
    assert opened.value("document.getElementById('hits').textContent") == "1 of 64 cards"
    opened.press("Escape")
    assert opened.value(bright) == 64
    opened.value("document.querySelector('.key.blocked').click()")
    assert opened.value(bright) == 8
    opened.value("document.querySelector('.key.blocked').click()")
    assert opened.value(bright) == 64


def test_arrow_keys_go_from_card_to_card_and_the_one_in_focus_is_described(opened: Browser) -> None:
    opened.value("document.querySelector('g.card').focus()")
    assert opened.value("document.activeElement.id") == "c0000:03:00"
    assert "0000:03:00.0  blocked" in opened.value("document.getElementById('details').textContent")
    opened.press("ArrowRight")
    assert opened.value("document.activeElement.id") == "c0000:07:00"
    opened.press("ArrowDown")
    assert opened.value("document.activeElement.id") == "c0000:17:00"
    opened.press("ArrowLeft")
    assert opened.value("document.activeElement.id") == "c0000:13:00"


def test_on_paper_nothing_is_folded_or_dimmed(opened: Browser) -> None:
    opened.value("document.querySelectorAll('g.node > .fold').forEach(e => e.parentElement.classList.add('folded'))")
    opened.value("dispatchEvent(new Event('beforeprint'))")
    opened.call("Emulation.setEmulatedMedia", media="print")
    try:
        assert opened.value(VISIBLE) == 64
        assert opened.value("document.querySelector('svg.drawing').getBoundingClientRect().width <= innerWidth")
        assert len(opened.call("Page.printToPDF")["data"]) > 10_000
    finally:
        opened.call("Emulation.setEmulatedMedia", media="")
