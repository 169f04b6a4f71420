"""The page of a node in a browser: at every width, light and dark, by keyboard, for screen readers, live."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

from launcherkit_lab.kubelet import Kubelet, running_kubelet
from tests.plugin.daemon.test_serve import GPU, Node
from tests.plugin.page.test_served import served
from tests.plugin.resources import rebind
from tests.support.apiserver import ApiServer
from tests.support.chromium import Browser
from tests.support.clusterprocess import ClusterProcess
from tests.support.webprocess import WebProcess

pytestmark = pytest.mark.browser

NARROW, WIDE = 400, 1280
LIVE = "document.getElementById('live').className === 'good'"
RED = "getComputedStyle(document.querySelector('#unhealthy .badge')).color"


class Rig:
    """A node with cards, a daemon, a pod with two of them."""

    def __init__(self, node: Node, kubelet: Kubelet, site: WebProcess, cards: int) -> None:
        self.node = node
        self.kubelet = kubelet
        self.url = f"http://{site.where}/"
        self.cards = cards

    def rebind(self, card: int, driver: str) -> None:
        """Give the audio function of a card to another driver.

        A uevent of the kernel tells the daemon; where there is no kernel, a device node that comes and goes does.
        """
        rebind(self.node.tree, f"{slot(card)}.1", driver)
        self.node.tree.node("vfio/changed")
        (self.node.tree.root / "dev/vfio/changed").unlink()


def slot(card: int) -> str:
    return f"{card >> 5:04x}:{(card & 31) + 1:02x}:00"


@pytest.fixture(scope="module", params=[8, 256], ids="{} devices".format)
def rig(request: pytest.FixtureRequest) -> Iterator[Rig]:
    with tempfile.TemporaryDirectory(prefix="node-") as folder:
        node, cards = Node(Path(folder)), request.param
        for card in range(cards):
            node.tree.card(slot(card), group=card, numa=card * 2 // cards)
        with running_kubelet(node.kubelet_dir) as kubelet, served(node) as (_, site):
            kubelet.wait(lambda: len(kubelet.devices(GPU)) == cards)
            kubelet.admit("virt-launcher-training-x2x8p", [("compute", GPU, 2)])
            yield Rig(node, kubelet, site, cards)


def opened(browser: Browser, rig: Rig, across: int = WIDE, scheme: str = "light") -> None:
    browser.size(across)
    browser.prefer(scheme)
    browser.open(rig.url)
    browser.wait(LIVE)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("across", [NARROW, WIDE])
def test_it_is_drawn_whole_at_every_width_and_asks_nobody_else(
    browser: Browser, rig: Rig, across: int, scheme: str
) -> None:
    opened(browser, rig, across, scheme)
    assert browser.value("document.documentElement.scrollWidth") <= across
    inside = "main *:not(svg *)"
    beyond = (
        f"[...document.querySelectorAll('{inside}')].filter(e => e.getBoundingClientRect().right > innerWidth).length"
    )
    assert browser.value(beyond) == 0
    assert browser.value("document.querySelectorAll('#host g.card').length") == rig.cards
    browser.wait("document.getElementById('host').textContent.includes('VM training')")
    dark = "getComputedStyle(document.body).backgroundColor.match(/\\d+/g).every(part => part < 40)"
    assert browser.value(dark) == (scheme == "dark")
    assert {url for url in browser.requests if not url.startswith("data:")} == {rig.url, f"{rig.url}events"}


def test_a_card_that_goes_unhealthy_turns_and_turns_back(
    browser: Browser, rig: Rig, capsys: pytest.CaptureFixture[str]
) -> None:
    opened(browser, rig)
    assert not browser.value("document.querySelector('article.trouble')")
    last = rig.cards - 1
    rig.rebind(last, "snd_hda_intel")
    began = monotonic()
    browser.wait(f"document.querySelector('article.trouble .label')?.textContent === '{slot(last)}.0'")
    with capsys.disabled():  # which depends on the machine, and is no matter of right and wrong
        print(f" red after {monotonic() - began:.2f} s ", end="")  # noqa: T201
    assert browser.value(RED) == "rgb(164, 14, 38)"
    assert "launcherkit explain LK204" in browser.value("document.querySelector('article.trouble').innerText")
    browser.wait("document.querySelectorAll('#host g.card.unhealthy').length === 1")
    browser.wait("document.getElementById('live').textContent.includes(' 1 Unhealthy')")
    rig.rebind(last, "vfio-pci")
    browser.wait("!document.querySelector('article.trouble')")
    assert "DeviceHealthy" in browser.value("document.getElementById('changes').innerText")


FOCUS = (
    "document.activeElement.tagName + ': ' + (document.activeElement.querySelector('.label, text') || {}).textContent"
)


def test_all_of_it_can_be_reached_and_folded_by_the_keyboard_and_stays_so_when_it_renews_itself(
    browser: Browser, rig: Rig
) -> None:
    if rig.cards > 8:
        pytest.skip("the same with more cards")
    opened(browser, rig)
    reachable = "summary, [tabindex], button, input"
    wanted = browser.value(f"document.querySelectorAll('{reachable}').length")
    for number in range(wanted):
        browser.press("Tab")
        place = f"[...document.querySelectorAll('{reachable}')].indexOf(document.activeElement)"
        assert browser.value(place) == number
        seen = (
            "getComputedStyle(document.activeElement).outlineStyle === 'solid' || document.activeElement.matches('g')"
        )
        assert browser.value(seen)
    browser.value("document.querySelector('#host .node > .fold').focus()")
    browser.press("Enter", "\r")
    folded = "document.querySelectorAll('#host g.folded').length"
    assert browser.value(folded) == 1
    there = browser.value(FOCUS)
    rig.rebind(5, "snd_hda_intel")
    browser.wait("!!document.querySelector('article.trouble')")
    assert browser.value(folded) == 1
    assert browser.value(FOCUS) == there
    rig.rebind(5, "vfio-pci")
    browser.wait("!document.querySelector('article.trouble')")


def test_screen_readers_have_a_name_for_every_part(browser: Browser, rig: Rig) -> None:
    opened(browser, rig)
    nodes: list[dict[str, Any]] = browser.call("Accessibility.getFullAXTree")["nodes"]
    named = [
        (each["role"]["value"], each.get("name", {}).get("value", "")) for each in nodes if not each.get("ignored")
    ]
    regions = [name for role, name in named if role == "region"]
    assert regions == ["Resources", "Unhealthy", "The host", "Who holds what", "Last changes"]
    assert ("heading", "Who holds what") in named
    assert [role for role, _ in named].count("status") == 2  # live, and what the filter finds
    assert all(name for role, name in named if role in ("DisclosureTriangle", "columnheader", "rowheader", "heading"))


def test_on_paper_nothing_is_folded(browser: Browser, rig: Rig) -> None:
    if rig.cards > 8:
        pytest.skip("the same with more cards")
    opened(browser, rig)
    browser.value("document.querySelector('#host .node > .fold').focus()")
    browser.press("Enter", "\r")
    browser.value("dispatchEvent(new Event('beforeprint'))")
    browser.call("Emulation.setEmulatedMedia", media="print")
    try:
        shown = "[...document.querySelectorAll('#host g.card')].filter(e => e.getBoundingClientRect().width).length"
        assert browser.value(shown) == rig.cards
        assert len(browser.call("Page.printToPDF")["data"]) > 10_000
    finally:
        browser.call("Emulation.setEmulatedMedia", media="")


def test_a_page_that_loses_its_daemon_says_so_and_comes_back(browser: Browser, tmp_path: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="node-") as folder:
        node = Node(Path(folder))
        node.tree.card("0000:01:00", group=1)
        path = node.folder / "w.sock"
        daemon = partial(node.serving, "--config", node.config, "--web-socket", path)
        with WebProcess(path) as site:
            with daemon() as process:
                process.wait_for("waiting")
                browser.open(f"http://{site.where}/")
                browser.wait(LIVE)
            browser.wait("document.getElementById('live').className === 'odd'")
            with daemon():
                browser.wait(LIVE)
        browser.wait("document.getElementById('live').className === 'odd'")
        with WebProcess(path, address=site.where), daemon():
            browser.wait(LIVE)
            browser.open("about:blank")
    browser.complaints.clear()  # of the connection


def test_a_token_as_the_password_opens_the_page_and_its_stream(browser: Browser, tmp_path: Path) -> None:
    server = ApiServer()
    server.tokens = {"anns": {"audiences": ["page.launcherkit.io"], "user": {"username": "ann"}}}
    server.permitted = {("ann", "/launcherkit-plugin/page", "get")}
    with tempfile.TemporaryDirectory(prefix="node-") as folder:
        node = Node(Path(folder))
        node.tree.card("0000:01:00", group=1)
        path = node.folder / "c.sock"
        with (
            server.running(tmp_path) as kubeconfig,
            running_kubelet(node.kubelet_dir),
            served(node, "--cluster-socket", path, web=("--page", "token")) as (_, site),
            ClusterProcess(path, "node-1", kubeconfig),
        ):
            browser.open(f"http://anybody:anns@{site.where}/")
            browser.wait(LIVE)
            assert browser.value("document.querySelector('h1').textContent")
