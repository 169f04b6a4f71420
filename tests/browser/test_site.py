"""The site of the documentation in a browser."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.chromium import Browser
from tests.support.pages import ROOT
from tools.dev.site import add_version

pytest.importorskip("furo", reason="Sphinx isn't here: `./dev docs` and `./dev test browser` install it")
pytestmark = pytest.mark.browser

BROKEN = "[...document.images].filter(e => e.naturalWidth === 0).map(e => e.src).join(' ')"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site as `./dev docs` makes it, which fails where a link leads nowhere."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-c", "docs", ".", str(folder)]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    return folder


def test_the_address_of_the_site_leads_to_the_index_and_each_page_of_it_is_in_the_table_of_contents(
    browser: Browser, site: Path
) -> None:
    browser.open((site / "index.html").as_uri())
    browser.wait("location.pathname.endsWith('/docs/README.html') && document.readyState === 'complete'")
    listed = set(browser.value("[...document.querySelectorAll('.sidebar-tree a')].map(e => e.href)"))
    pages = {page.as_uri() for page in (site / "docs").rglob("*.html")}
    deeper = {page for page in pages if "/errors/LK" in page or "/decisions/0" in page}
    assert pages - deeper - listed == {(site / "docs" / "README.html").as_uri()}


def test_every_picture_of_the_site_is_seen_and_no_page_asks_another_site_for_anything(
    browser: Browser, site: Path
) -> None:
    pictured = [page for page in sorted(site.rglob("*.html")) if "<img " in page.read_text(encoding="utf-8")]
    assert pictured, "no page has a picture"
    for page in pictured:
        browser.open(page.as_uri())
        assert browser.value(BROKEN) == "", page.relative_to(site)
    assert all(address.startswith(("file:", "data:")) for address in browser.requests)


def test_the_api_reference_has_the_error_classes_and_their_fields(browser: Browser, site: Path) -> None:
    browser.open((site / "docs" / "reference" / "python-api.html").as_uri())
    text = browser.value("document.body.innerText")
    for name in ("launcherkit.errors.GroupNotViable", "launcherkit.LauncherkitError", "launcherkit.translate"):
        assert name in text.replace("class ", "").replace("exception ", "")


@pytest.fixture(scope="module")
def two_versions(site: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """This site as version 9.10, and as 9.9, which had no tutorial."""
    folder = tmp_path_factory.mktemp("web")
    for version in ("9.10", "9.9"):
        other = folder / "made" / version
        shutil.copytree(site, other)
        inventory = (other / "objects.inv").read_bytes().split(b"\n", 3)
        (other / "objects.inv").write_bytes(
            b"\n".join([*inventory[:2], b"# Version: " + version.encode(), inventory[3]])
        )
        if version == "9.9":
            (other / "docs" / "tutorial.html").unlink()
        add_version(other, folder / "web")
    return folder / "web"


CHOICE = "document.querySelector('select.versions')"
LABELS = f"[...{CHOICE}.options].map(e => e.text)"


def choose(browser: Browser, label: str, page: str) -> None:
    """Choose a version as a user does, and wait for its page."""
    browser.value(f"[...{CHOICE}.options].find(e => e.text === '{label}').selected = true")
    browser.value(f"{CHOICE}.dispatchEvent(new Event('change'))")
    browser.wait(f"location.pathname.endsWith('{page}')")


def test_a_page_leads_to_the_same_page_of_another_version_and_to_the_index_where_there_is_none(
    browser: Browser, two_versions: Path
) -> None:
    browser.open((two_versions / "9.9" / "docs" / "reference" / "python-api.html").as_uri())
    browser.wait(CHOICE)
    assert browser.value(LABELS) == ["9.10 (newest)", "9.9"]
    assert browser.value(f"{CHOICE}.selectedOptions[0].text") == "9.9"
    choose(browser, "9.10 (newest)", "/9.10/docs/reference/python-api.html")
    browser.open((two_versions / "9.10" / "docs" / "tutorial.html").as_uri())
    browser.wait(CHOICE)
    choose(browser, "9.9", "/9.9/docs/README.html")


def test_the_site_of_all_versions_begins_with_the_newest(browser: Browser, two_versions: Path) -> None:
    browser.open((two_versions / "index.html").as_uri())
    browser.wait("location.pathname.endsWith('/9.10/docs/README.html')")


def test_a_site_that_stands_alone_has_no_choice_of_versions(browser: Browser, site: Path) -> None:
    browser.open((site / "docs" / "README.html").as_uri())
    assert browser.value(f"{CHOICE} === null")
