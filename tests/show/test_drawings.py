"""The tree of a host as a picture and as a page: whole by themselves, and for every reader."""

from __future__ import annotations

import functools
import re
from pathlib import Path

import pytest
from lxml import etree

from launcherkit.host.source import Host
from launcherkit.show.host import topology_of
from launcherkit.show.outline import outline
from launcherkit.show.page import PAPER, page
from launcherkit.show.picture import picture
from tests.show.machines import DRAWN, HOSTS, drawn, topology
from tests.show.test_pictures import run
from tests.support.hosttree import HostTree

TITLE = "devices <of> a & b"
SVG, HTML = "{http://www.w3.org/2000/svg}", "{http://www.w3.org/1999/xhtml}"
FORMS = {form.__name__: form for form in (picture, page)}
every_drawing = pytest.mark.parametrize("text", [f"{form}-{name}" for form in FORMS for name in HOSTS], indirect=True)


@functools.cache
def text_of(drawing: str) -> str:
    form, _, name = drawing.partition("-")
    return FORMS[form](outline(topology(name)), TITLE)


@pytest.fixture
def text(request: pytest.FixtureRequest) -> str:
    return text_of(request.param)


def parsed(text: str) -> etree._Element:
    return etree.fromstring(text.encode(), etree.XMLParser(resolve_entities=False, no_network=True))


def test_the_picture_of_the_readme_is_what_would_be_drawn_now() -> None:
    assert DRAWN.read_text(encoding="utf-8") == drawn(), "stale: python -m tests.show.machines"


@every_drawing
def test_a_drawing_is_well_formed_and_nothing_in_it_is_from_elsewhere(text: str) -> None:
    root = parsed(text)
    assert not [
        each for each in root.iter() if etree.QName(each).localname in ("script", "link", "image", "img", "use")
    ]
    assert not [
        name for each in root.iter() for name in each.attrib if name in ("href", "src") or name.startswith("on")
    ]
    assert not re.search(r"url\(|@import|https?://(?!www\.w3\.org/)", text)


@every_drawing
def test_a_drawing_follows_the_readers_wish_for_dark(text: str) -> None:
    assert "@media screen and (prefers-color-scheme:dark)" in text


def luminance(colour: str) -> float:
    """As WCAG 2 defines it."""
    digits = colour if len(colour) == 6 else "".join(digit * 2 for digit in colour)
    parts = [int(digits[at : at + 2], 16) / 255 for at in (0, 2, 4)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_every_text_stands_out_on_white_and_on_black() -> None:
    for block in re.findall(r"--back:[^}]*", PAPER):
        colours = dict(re.findall(r"--(\w+):#([0-9a-f]+)", block))
        back = luminance(colours["back"])
        for name in ("text", "dim", "good", "odd", "bad"):
            light, dark = sorted((back, luminance(colours[name])), reverse=True)
            assert (light + 0.05) / (dark + 0.05) >= 4.5, name


@pytest.mark.parametrize("name", HOSTS)
def test_screen_readers_get_the_name_of_the_picture_and_of_every_row(name: str) -> None:
    root = parsed(picture(outline(topology(name)), TITLE))
    ids = {each.get("id"): each.text for each in root.iter() if each.get("id")}
    assert [bool(ids[reference]) for reference in root.get("aria-labelledby", "").split()] == [True, True]
    assert ids["title"] == TITLE
    rows = root.findall(f"{SVG}g")
    assert rows
    assert all(row.get("tabindex") == "0" and row.findtext(f"{SVG}title") for row in rows)


@pytest.mark.parametrize("name", HOSTS)
def test_all_of_the_page_can_be_reached_by_the_keyboard(name: str) -> None:
    root = parsed(page(outline(topology(name)), TITLE))
    assert root.get("lang") == "en"
    assert all(each.get("tabindex") == "0" for each in root.iter(f"{HTML}p"))
    assert all(each[0].tag == f"{HTML}summary" for each in root.iter(f"{HTML}details"))


@every_drawing
def test_what_is_in_the_way_is_red_and_in_words(text: str) -> None:
    root = parsed(text)
    red = [each.text for each in root.iter() if "bad" in (each.get("class") or "").split() and each.text]
    codes = set(re.findall(r"LK\d{3}", " ".join(filter(None, root.itertext()))))
    assert codes <= set(re.findall(r"LK\d{3}", " ".join(map(str, red))))


def test_the_frame_of_a_group_has_the_vfs_that_are_in_the_group_and_no_others(tmp_path: Path) -> None:
    tree = HostTree(tmp_path)
    for number, group in (1, 31), (2, 40):  # without ACS a VF is in the group of its physical function
        physfn = f"0000:0{number}:00.0"
        tree.function(physfn, driver="vfio-pci", group=number + 30)
        tree.vf(physfn, f"0000:0{number}:00.4", driver="vfio-pci", group=group)
    root = parsed(run("--host", str(tmp_path), "--html").stdout)
    framed = [" ".join(each.itertext()) for each in root.iter(f"{HTML}details") if each.get("class") == "group"]
    assert ["VF" in text for text in framed] == [True, False]


@pytest.mark.parametrize("form", [picture, page])
def test_names_from_the_host_can_not_become_markup(tmp_path: Path, form: object) -> None:
    tree = HostTree(tmp_path)
    tree.function("0000:02:00.0", driver="<b>&\x1b\x00".replace("\x00", ""), group=1, parents=["pci<0>&"])
    assert callable(form)
    root = parsed(form(outline(topology_of(Host.from_sysfs(tmp_path).scan(), (), every=True)), TITLE))
    assert not list(root.iter(f"{HTML}b"))
    assert "<b>&\\x1b" in "".join(root.itertext())


@pytest.mark.parametrize("flag", ["--svg", "--html"])
def test_the_command_prints_a_drawing_of_a_host_with_and_without_cards(tmp_path: Path, flag: str) -> None:
    tree = HostTree(tmp_path)
    assert "no GPU" in "".join(parsed(run("--host", str(tmp_path), flag).stdout).itertext())
    tree.card("0000:01:00", group=1)
    assert "0000:01:00.1" in "".join(parsed(run("--host", str(tmp_path), flag).stdout).itertext())
