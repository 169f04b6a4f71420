"""The hook's second run, on what KubeVirt's schema has left of the first one's: it knows no ``multifunction`` (X2)."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from launcherkit.golden.case import read_case
from launcherkit.golden.invoke import Scratch, translate_case

GOLDEN = Path(__file__).parent

HOSTDEV = re.compile(rb"<hostdev\b.*?</hostdev>", re.DOTALL)
MULTIFUNCTION = re.compile(rb"""\s+multifunction=(["'])on\1""")


def stripped(document: bytes) -> bytes:
    """As KubeVirt's structs give a hostdev back."""
    return HOSTDEV.sub(lambda hostdev: MULTIFUNCTION.sub(b"", hostdev.group()), document)


CASES = [
    path.parent.name
    for path in sorted(GOLDEN.glob("*/expected.xml"))
    if stripped(path.read_bytes()) != path.read_bytes()
]


@pytest.fixture
def scratch(tmp_path: Path) -> Callable[[str], Scratch]:
    """A folder for each case."""

    def of(name: str) -> Scratch:
        (tmp_path / name).mkdir()
        return Scratch(str(tmp_path / name))

    return of


def test_the_second_run_restores_what_the_first_one_wrote(scratch: Callable[[str], Scratch]) -> None:
    for name in CASES:
        first = (GOLDEN / name / "expected.xml").read_bytes()
        second, _ = translate_case(read_case(str(GOLDEN / name)), scratch(name), domain=stripped(first))
        assert second == first, name


def test_a_second_run_in_a_sidecar_without_variables_restores_it_too(scratch: Callable[[str], Scratch]) -> None:
    for name in CASES:
        first = (GOLDEN / name / "expected.xml").read_bytes()
        case = read_case(str(GOLDEN / name))
        settings = {key: value for key, value in case.yaml.env.items() if key.startswith("LAUNCHERKIT_")}
        flags = (*case.yaml.flags, "--dra-dir", "nothing-by-claim")
        sidecar = replace(case, yaml=case.yaml.model_copy(update={"env": settings, "flags": flags}))
        second, _ = translate_case(sidecar, scratch(name), domain=stripped(first))
        assert second == first, name


def test_the_golden_second_pass_is_the_first_one_stripped() -> None:
    first = (GOLDEN / "kubevirt-own-output" / "expected.xml").read_bytes()
    assert (GOLDEN / "stripped-second-pass" / "domain.xml").read_bytes() == stripped(first) != first
