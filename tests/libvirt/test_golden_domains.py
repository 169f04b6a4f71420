"""A real libvirt takes what every golden case's domain becomes now, and keeps what that says.

A case that this libvirt can't take says so in its ``case.yaml``: ``libvirt: {minVersion: "11.0", why: ...}`` or
``libvirt: {skip: why}``.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from lxml import etree

from launcherkit.golden.run import run_case
from tests.golden.test_another_device import IN_ORDER, REFUSED, moved
from tests.libvirt.capabilities import Guests, made_definable
from tests.libvirt.daemon import Libvirt
from tests.libvirt.kept import differences

pytestmark = pytest.mark.libvirt

GOLDEN = Path(__file__).parents[1] / "golden"
SCHEMA = Path("/usr/share/libvirt/schemas/domain.rng")
CASES = sorted(expected.parent for expected in GOLDEN.rglob("expected.xml"))
every_case = pytest.mark.parametrize("case", CASES, ids=lambda case: str(case.relative_to(GOLDEN)))


def skip_unless_supported(case: Path, libvirt: Libvirt) -> None:
    wish = (yaml.safe_load((case / "case.yaml").read_text()) or {}).get("libvirt") or {}
    if "skip" in wish:
        pytest.skip(wish["skip"])
    needed = tuple(int(part) for part in str(wish.get("minVersion", "0")).split("."))
    if libvirt.version < needed:
        pytest.skip(f"needs libvirt {wish['minVersion']}: {wish.get('why', '')}")


@pytest.fixture(scope="module")
def schema() -> etree.RelaxNG:
    """libvirt's own schema for a domain."""
    if not SCHEMA.exists():
        pytest.fail(f"libvirt is here, but {SCHEMA} is not")
    return etree.RelaxNG(etree.parse(SCHEMA))


@every_case
def test_libvirt_defines_the_domain_and_keeps_every_device_where_it_was_put(
    case: Path,
    libvirt: Libvirt,
    capabilities: dict[str, Guests],
    schema: etree.RelaxNG,
    record_property: Callable[[str, object], None],
) -> None:
    skip_unless_supported(case, libvirt)
    said, changes = made_definable(translated(case), capabilities)
    for change in changes:
        record_property("instead", change)
    kept = libvirt.keep(said, validate=came_valid(case, schema))
    assert differences(said, kept) == []


@every_case
def test_a_domain_that_came_valid_is_valid_still(case: Path, libvirt: Libvirt, schema: etree.RelaxNG) -> None:
    skip_unless_supported(case, libvirt)
    if came_valid(case, schema):
        assert schema.validate(etree.fromstring(translated(case))), schema.error_log


MOVED = sorted({case.name for case in CASES if case.parent == GOLDEN} - {*REFUSED, IN_ORDER})
NOT_THE_SAME = re.compile(rb"<source>.*?</source>|<uuid>.*?</uuid>|<mac address=.*?/>", re.DOTALL)
"""Sources, and what libvirt makes anew each time if the document doesn't have it."""


@pytest.mark.parametrize("name", MOVED)
def test_libvirt_has_the_same_domain_with_another_device(
    name: str, libvirt: Libvirt, capabilities: dict[str, Guests], tmp_path: Path
) -> None:
    """It differs in sources alone after all that libvirt adds (X2)."""
    skip_unless_supported(GOLDEN / name, libvirt)
    before, second, expected = moved(name, tmp_path)
    if before == expected:
        pytest.skip("no device of this domain is moved")
    former, kept = (
        libvirt.keep(made_definable(document, capabilities)[0], validate=False) for document in (before, second)
    )
    assert NOT_THE_SAME.sub(b"", kept) == NOT_THE_SAME.sub(b"", former)


def translated(case: Path) -> bytes:
    """Not the document that is expected: whether this is that one is for the golden tests to say."""
    outcome = run_case(str(case))
    assert outcome.document is not None, outcome.error
    return outcome.document


def came_valid(case: Path, schema: etree.RelaxNG) -> bool:
    """Whether the case's input is valid. KubeVirt's own isn't: its source addresses have a type. It never validates."""
    return schema.validate(etree.parse(case / "domain.xml"))
