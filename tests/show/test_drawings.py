"""The tree of a host as a picture and as a page: whole by themselves, and for every reader."""

from __future__ import annotations

import functools
import re
from pathlib import Path

import pytest
from lxml import etree

from launcherkit.host.source import Host
from launcherkit.show.contents import contents_of
from launcherkit.show.host import topology_of
from launcherkit.show.page import page
from launcherkit.show.picture import colours, picture
from launcherkit.show.state import LOOKS
from tests.show.machines import DRAWN, HOSTS, drawn, large, topology
from tests.show.test_pictures import run
from tests.support.hosttree import HostTree

TITLE = "devices <of> a & b"
SVG, HTML = "{http://www.w3.org/2000/svg}", "{http://www.w3.org/1999/xhtml}"
FORMS = {form.__name__: form for form in (picture, page)}
every_drawing = pytest.mark.parametrize("text", [f"{form}-{name}" for form in FORMS for name in HOSTS], indirect=True)


@functools.cache
def text_of(drawing: str) -> str:
    form, _, name = drawing.partition("-")
    return FORMS[form](contents_of(topology(name)), TITLE)


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
    assert not [each for each in root.iter() if etree.QName(each).localname in ("link", "image", "img", "use")]
    assert len(root.findall(f".//{HTML}script")) == (root.tag == f"{HTML}html")
    assert not [
        name for each in root.iter() for name in each.attrib if name in ("href", "src") or name.startswith("on")
    ]
    assert not re.search(r"url\(|@import|https?://(?!www\.w3\.org/)| style=", text)


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
    blocks = re.findall(r"--back:[^}]*", colours())
    assert len(blocks) == 2
    for block in blocks:
        named = dict(re.findall(r"--(\w+):#([0-9a-f]+)", block))
        assert named.keys() >= {"text", "dim", "good", "odd", "bad", *LOOKS}
        back = luminance(named.pop("back"))
        del named["line"]
        for name, colour in named.items():
            light, dark = sorted((back, luminance(colour)), reverse=True)
            assert (light + 0.05) / (dark + 0.05) >= 4.5, name


@every_drawing
def test_each_mark_has_the_shape_and_the_colour_of_its_state_in_both_forms(text: str) -> None:
    marks = [each for each in parsed(text).iter(f"{SVG}path") if each.get("class") in LOOKS]
    assert marks
    for each in marks:
        (look,) = (look for state, look in LOOKS.items() if state == each.get("class"))
        assert each.get("fill") == look.light
        assert set(re.split(r"M[\d.-]+ [\d.-]+", each.get("d", ""))[1:]) == {look.mark}


@pytest.mark.parametrize("name", HOSTS)
def test_both_forms_show_the_same_states(name: str) -> None:
    svg, html = (parsed(text_of(f"{form}-{name}")) for form in FORMS)

    def states(root: etree._Element) -> list[str]:
        return [each.get("class", "") for each in root.iter(f"{SVG}g") if each.get("class", "").startswith("card ")]

    assert states(svg) == states(html) != []


@pytest.mark.parametrize("form", [picture, page])
def test_what_concerns_many_cards_is_said_once_and_no_card_that_somebody_holds_is_green(form: object) -> None:
    assert callable(form)
    text = form(contents_of(large()), TITLE)
    root = parsed(text)
    visible = [each for each in root.iter(f"{SVG}text", f"{SVG}tspan") if each.text]
    assert sum("LK204" in (each.text or "") for each in visible) == 1
    cards = {each.get("class"): each for each in root.iter(f"{SVG}g") if each.get("class", "").startswith("card ")}
    assert set(cards) == {"card held", "card free", "card blocked"}
    held = cards["card held"]
    assert "held by pod" in (held.findtext(f"{SVG}title") or "")
    assert [each.text for each in held.iter(f"{SVG}text") if each.get("class") == "free"] == []


@pytest.mark.parametrize("name", HOSTS)
def test_screen_readers_get_the_name_of_the_picture_and_all_of_every_card(name: str) -> None:
    root = parsed(text_of(f"picture-{name}"))
    ids = {each.get("id"): each.text for each in root.iter() if each.get("id")}
    assert [bool(ids[reference]) for reference in root.get("aria-labelledby", "").split()] == [True, True]
    assert ids["title"] == TITLE
    cards = [each for each in root.iter(f"{SVG}g") if each.get("class", "").startswith("card ")]
    assert all(each.get("tabindex") == "0" and each.get("role") == "img" for each in cards)
    said = "\n".join(each.findtext(f"{SVG}title") or "" for each in cards)
    functions = [each for place in topology(name).places() for each in place.slot.functions]
    assert [str(each.address) for each in functions if str(each.address) not in said] == []
    assert "LK" not in said


@pytest.mark.parametrize("name", HOSTS)
def test_all_of_the_page_can_be_reached_by_the_keyboard(name: str) -> None:
    root = parsed(text_of(f"page-{name}"))
    assert root.get("lang") == "en"
    reachable = [each for each in root.iter(f"{SVG}g") if each.get("tabindex") == "0"]
    kinds = {each.get("class", "").partition(" ")[0] for each in reachable}
    assert kinds >= {"card", "fold"}
    folds = [each for each in reachable if each.get("class") == "fold"]
    assert all((each.get("role"), each.get("aria-expanded")) == ("button", "true") for each in folds)
    assert [each.get("aria-label") for each in root.iter(f"{HTML}input")] == ["filter cards"]


@pytest.mark.parametrize("name", HOSTS)
def test_what_is_in_the_way_is_red_and_in_words(name: str) -> None:
    root = parsed(text_of(f"picture-{name}"))
    findings = [each for each in root.iter(f"{SVG}g") if each.get("class") == "finding"]
    assert len(findings) == len(contents_of(topology(name)).findings)
    for each, finding in zip(findings, contents_of(topology(name)).findings, strict=True):
        (text,) = each.findall(f"{SVG}text")
        assert text.get("fill") == LOOKS["blocked"].light
        assert each.findtext(f"{SVG}title") == f"{finding.code}  {finding.text}"


@pytest.mark.parametrize("form", [picture, page])
def test_names_from_the_host_can_not_become_markup(tmp_path: Path, form: object) -> None:
    tree = HostTree(tmp_path)
    tree.function("0000:02:00.0", driver="<b>&\x1b\x00".replace("\x00", ""), group=1, parents=["pci<0>&"])
    assert callable(form)
    root = parsed(form(contents_of(topology_of(Host.from_sysfs(tmp_path).scan(), (), every=True)), TITLE))
    assert not list(root.iter(f"{HTML}b"))
    assert "<b>&\\x1b" in "".join(root.itertext())


@pytest.mark.parametrize("flag", ["--svg", "--html"])
def test_the_command_prints_a_drawing_of_a_host_with_and_without_cards(tmp_path: Path, flag: str) -> None:
    tree = HostTree(tmp_path)
    assert "no GPU" in "".join(parsed(run("--host", str(tmp_path), flag).stdout).itertext())
    tree.card("0000:01:00", group=1)
    assert "0000:01:00.1" in "".join(parsed(run("--host", str(tmp_path), flag).stdout).itertext())
