"""The checkout is of one mind: licence, versions, pins, and what CI runs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from hatch_build import absolute_links
from launcherkit import __version__
from tests.tiers import TIERS

ROOT = Path(__file__).parents[1]
REQUIREMENTS = sorted((ROOT / "tools" / "requirements").glob("*.txt"))


def test_the_licence_is_one() -> None:
    for distribution in ("plugin", "lab"):
        assert (ROOT / distribution / "LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()


def test_only_links_to_files_are_made_absolute_and_no_code_is_touched() -> None:
    text = "[a](x.md#y) [b](https://e.org) [c](#d) `[e](f)`\n```\n[g](h)\n```\n[i](../j)\n"
    assert absolute_links(text, "plugin", "P/{path}") == (
        "[a](P/plugin/x.md#y) [b](https://e.org) [c](#d) `[e](f)`\n```\n[g](h)\n```\n[i](P/j)\n"
    )


def test_whatever_names_a_version_names_this_one() -> None:
    texts = {path: path.read_text() for folder in ("docs", "deploy") for path in (ROOT / folder).rglob("*.[my]*")}
    named = {
        (path.name, version)
        for path, text in texts.items()
        for version in re.findall(r"(?:\blauncherkit-\w+:|newTag: )(\d[\w.]*)", text)
    }
    assert len(named) > 5
    assert {version for _, version in named} == {__version__}


def test_every_version_in_the_changelog_has_its_day() -> None:
    headings = re.findall(r"^## (.*)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    released = headings[1:] if headings[0] == "[Unreleased]" else headings
    dated = [re.fullmatch(r"\[(\d+\.\d+\.\d+)\] - (\d{4}-\d\d-\d\d)", heading) for heading in released]
    assert None not in dated, headings
    versions = [tuple(map(int, match[1].split("."))) for match in dated if match]
    assert versions == sorted(set(versions), reverse=True)
    assert [match[2] for match in dated if match] == sorted((match[2] for match in dated if match), reverse=True)
    newest = tuple(int(number) for number in re.findall(r"\d+", __version__))
    # What is Unreleased is for the next version, or for this one until it is published.
    assert newest >= versions[0] if headings[0] == "[Unreleased]" else newest == versions[0]


def pins(path: Path) -> dict[str, str]:
    """Package, with its marker where it has one, to version."""
    found = re.findall(r"^([\w.-]+)==(\S+)(.*?)\\?$", path.read_text(), re.MULTILINE)
    return {name + marker.strip(): version for name, version, marker in found}


@pytest.mark.parametrize("path", REQUIREMENTS, ids=lambda path: path.name)
def test_every_pin_has_hashes_and_tells_nothing_of_where_it_was_made(path: Path) -> None:
    entries = re.split(r"^(?=\w)", path.read_text(), flags=re.MULTILINE)[1:]
    assert [entry.partition(" ")[0] for entry in entries if "--hash=sha256:" not in entry] == []
    assert re.findall(r"://|^-|--index|--find-links|file:|@ ", path.read_text(), re.MULTILINE) == []


def test_what_users_install_is_what_is_tested() -> None:
    tested = pins(ROOT / "tools" / "requirements" / "dev.txt")
    for name in ("runtime.txt", "sidecar.txt", "plugin.txt", "webhook.txt", "lab.txt", "build.txt"):
        assert pins(ROOT / "tools" / "requirements" / name).items() <= tested.items()


def test_ci_runs_every_tier() -> None:
    markers = re.findall(r"all_tiers -m '(.*)'", (ROOT / ".ci" / "run").read_text())
    wanted = re.findall(r"\w+", re.sub(r"and not \w+", "", " ".join(markers)))
    assert sorted(set(wanted) - {"or"}) == sorted(tier.name for tier in TIERS)
