"""Every golden case is as expected; together they show everything that launcherkit writes and every error it has."""

from __future__ import annotations

from pathlib import Path

import pytest
from lxml import etree

from launcherkit.errors import LauncherkitError
from launcherkit.golden.case import find_cases
from launcherkit.golden.run import check_case
from tests.support.emitted import added, closed_attributes, emitted_by_schema, our_elements, words_in_writer

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
SCHEMA = ROOT / "schemas" / "hostdev.rng"
CASES = find_cases(str(HERE))
DOCUMENTS = [name for name in CASES if (HERE / name / "expected.xml").exists()]
EMITTED = emitted_by_schema(SCHEMA)


@pytest.mark.parametrize("name", CASES)
def test_case_gives_what_is_expected(name: str) -> None:
    result = check_case(HERE / name)
    assert result.ok, f"\n{result}"


@pytest.fixture(scope="module")
def schema() -> etree.RelaxNG:
    return etree.RelaxNG(etree.parse(SCHEMA))


def test_what_launcherkit_wrote_is_valid_against_its_schema(schema: etree.RelaxNG) -> None:
    for name in DOCUMENTS:
        there = {_text(element) for element in our_elements(etree.parse(HERE / name / "domain.xml").getroot())}
        for element in our_elements(etree.parse(HERE / name / "expected.xml").getroot()):
            if _text(element) not in there:  # else nobody asked about it
                assert schema.validate(element), f"{name}: {etree.tostring(element).decode()}\n{schema.error_log}"


def _text(element: etree._Element) -> bytes:
    return etree.tostring(element, with_tail=False)


@pytest.mark.parametrize(
    ("inside", "valid"),
    [
        ("<driver iommufd='yes'/>{source}{alias}", True),
        ("{source}<driver iommufd='no'/>{alias}", True),
        ("{alias}<driver iommufd='yes'/>{source}", True),
        ("{source}{alias}<driver iommufd='yes'/>", False),
        ("<driver iommufd='yes'/>{alias}{source}", False),
        ("<driver iommufd='on'/>{source}{alias}", False),
    ],
)
def test_a_driver_stands_directly_before_or_after_the_source(inside: str, valid: bool, schema: etree.RelaxNG) -> None:
    """As in libvirt's own schema (V2)."""
    source = "<source><address domain='0x0000' bus='0xe1' slot='0x00' function='0x0'/></source>"
    text = inside.format(source=source, alias="<alias name='ua-gpu-a'/>")
    hostdev = etree.fromstring(f"<hostdev mode='subsystem' type='pci' managed='no'>{text}</hostdev>")
    assert schema.validate(hostdev) == valid


def test_the_schema_marks_all_that_a_case_adds_and_a_case_adds_all_that_it_marks() -> None:
    closed, shown = closed_attributes(EMITTED), set[str]()
    for name in DOCUMENTS:
        more = added((HERE / name / "domain.xml").read_bytes(), (HERE / name / "expected.xml").read_bytes(), closed)
        assert more - EMITTED == set(), f"{name}: schemas/hostdev.rng: mark these as emitted"
        shown |= more
    assert sorted(EMITTED - shown) == [], "no case adds these, or changes something to them"


def test_the_schema_marks_every_name_in_the_writer() -> None:
    writer = (ROOT / "launcherkit" / "domain" / "writer.py").read_text(encoding="utf-8")
    elements, attributes = words_in_writer(writer)
    marked_elements = {name.partition("@")[0].rpartition("/")[2] for name in EMITTED}
    marked_attributes = {name.partition("@")[2].partition("=")[0] for name in EMITTED if "@" in name}
    assert {"hostdev", "controller"} <= elements
    assert elements - {"devices"} | {"pcihole64"} <= marked_elements
    assert attributes <= marked_attributes


def test_every_error_has_a_case() -> None:
    """Those from LK600 on are of adapters and services, which a case has none of; a test of theirs provokes them."""
    files = [HERE / name / "expected.error" for name in CASES if name not in DOCUMENTS]
    reported = {line.partition(": ")[0] for file in files for line in file.read_text(encoding="utf-8").splitlines()}
    assert [code for code in LauncherkitError.codes() if code < "LK6" and code not in reported] == []
