"""What pages and manifests call packages and images is what the settings say."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from launcherkit import __version__
from tools.release.images import REGISTRY, ROOT, SETTINGS, TARGETS
from tools.release.names import DEFAULT, installed_by_name, pages, with_names

_IMAGE = re.compile(rf"\b[\w-]+(?:\.[\w-]+)+(?::\d+)?/[\w./-]*launcherkit-(?:{'|'.join([*TARGETS, 'shim'])})\b")
HEADING = rf"\[{re.escape(__version__)}\] - \d{{4}}-\d\d-\d\d"
THE_READERS_OWN = "registry.your-company.example"
"""Where a page has readers push what they built."""


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.relative_to(ROOT).as_posix())
def test_a_page_names_a_package_only_if_the_settings_say_where_it_is_published(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    if SETTINGS["index"]:
        assert with_names(text, SETTINGS["index"]) == text, "`python -m tools.release.names` writes it"
    else:
        assert installed_by_name(text) == [], "nobody has registered that name yet; install from the checkout"


def test_no_message_has_a_name_that_anybody_could_register() -> None:
    folders = (ROOT / "launcherkit", ROOT / "plugin" / "launcherkit_plugin", ROOT / "lab" / "launcherkit_lab")
    sources = [path for folder in folders for path in folder.rglob("*.py")]
    assert [path.name for path in sources if installed_by_name(path.read_text(encoding="utf-8"))] == []


@pytest.mark.parametrize(
    ("checkout", "name"),
    [
        ("pip install .", "pip install launcherkit"),
        ("~/launcherkit/bin/pip install . ./plugin", "~/launcherkit/bin/pip install launcherkit launcherkit-plugin"),
        ("pip install '.[completion]'", "pip install 'launcherkit[completion]'"),
        ('pip install "./plugin[completion]"', 'pip install "launcherkit-plugin[completion]"'),
        ("pip install ./lab", "pip install launcherkit-lab"),
        ("- run: pip install ./launcherkit ./launcherkit/plugin", "- run: pip install launcherkit launcherkit-plugin"),
    ],
)
def test_a_command_gets_the_name_when_there_is_one(checkout: str, name: str) -> None:
    assert installed_by_name(checkout) == []
    assert with_names(checkout, DEFAULT) == name
    assert with_names(name, DEFAULT) == name
    assert installed_by_name(name) == [name[name.index("pip") :]]
    assert with_names(checkout, "https://index.example/gpu") == name.replace(
        "install", "install --index-url https://index.example/gpu"
    )


@pytest.mark.parametrize(
    "other",
    ["pip install libvirt-python==9.0.0", "pip install --require-hashes -r a.txt", "pip install . && launcherkit"],
)
def test_other_commands_stay(other: str) -> None:
    assert with_names(other.replace(" . ", " x "), DEFAULT) == other.replace(" . ", " x ")
    assert installed_by_name(other) == []


def test_the_changelog_has_this_version_with_its_date_on_two_screens() -> None:
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    sections = dict(re.findall(r"^## (.+)\n((?:(?!## ).*\n)*)", text, re.MULTILINE))
    (section,) = (body for heading, body in sections.items() if re.fullmatch(HEADING, heading))
    assert len(section.splitlines()) <= 2 * 48


def test_images_are_those_of_the_settings_or_what_readers_have_built() -> None:
    manifests = [path for path in (ROOT / "deploy").rglob("*.yaml") if path.is_file()]
    wrong = {
        f"{path.relative_to(ROOT)}: {name}"
        for path in [*manifests, *pages()]
        for name in _IMAGE.findall(path.read_text(encoding="utf-8"))
        if not name.startswith((f"{REGISTRY}/", f"{THE_READERS_OWN}/"))
    }
    assert not wrong
