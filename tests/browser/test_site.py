"""The site of the documentation in a browser."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.chromium import Browser
from tests.support.pages import ROOT

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
