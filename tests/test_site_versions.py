"""The sites of several versions in one folder."""

from __future__ import annotations

import json
from pathlib import Path

from tools.dev.site import add_version


def made(folder: Path, version: str, *pages: str) -> Path:
    """A site, as far as it matters here."""
    folder.mkdir()
    (folder / "objects.inv").write_text(f"# Sphinx inventory version 2\n# Project: launcherkit\n# Version: {version}\n")
    (folder / ".doctrees").mkdir()
    (folder / "_static").mkdir()
    for page in ("index", *pages):
        (folder / f"{page}.html").write_text(version)
    return folder


def listed(web: Path) -> dict[str, list[str]]:
    text = (web / "versions.js").read_text()
    versions: dict[str, list[str]] = json.loads(text.removeprefix("launcherkitVersions(").removesuffix(");\n"))
    return versions


def test_versions_are_listed_with_their_pages_and_the_newest_is_first(tmp_path: Path) -> None:
    for version, pages in (("0.9.0", ["old"]), ("0.10.0", ["new"]), ("0.2.1", [])):
        add_version(made(tmp_path / version, version, *pages), tmp_path / "web")
    assert list(listed(tmp_path / "web").items()) == [
        ("0.10.0", ["index.html", "new.html"]),
        ("0.9.0", ["index.html", "old.html"]),
        ("0.2.1", ["index.html"]),
    ]
    assert "url=0.10.0/index.html" in (tmp_path / "web" / "index.html").read_text()


def test_a_version_that_is_made_again_replaces_itself_and_what_is_not_a_site_stays(tmp_path: Path) -> None:
    web = tmp_path / "web"
    (web / ".0.1.0.new" / "left").mkdir(parents=True)
    (web / "logo").mkdir()
    add_version(made(tmp_path / "first", "0.1.0", "gone"), web)
    add_version(made(tmp_path / "second", "0.1.0"), web)
    assert listed(web) == {"0.1.0": ["index.html"]}
    assert sorted(path.name for path in web.iterdir()) == ["0.1.0", "index.html", "logo", "versions.js"]
    assert sorted(path.name for path in (web / "0.1.0").iterdir()) == ["_static", "index.html", "objects.inv"]
