"""What is known by version: one file, which the page and doctor have in common."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from launcherkit.compatibility import Tried, compatibility
from tests.support.compatibility import PAGE, page_with_tables
from tests.tiers import BASE, TIERS

KNOWN = compatibility()
ROOT = Path(__file__).parents[1]


def test_the_page_has_the_tables_of_the_file() -> None:
    assert page_with_tables(PAGE.read_text()) == PAGE.read_text(), "run python -m tests.support.compatibility"


@pytest.mark.parametrize("tried", KNOWN.tried, ids=lambda tried: f"{tried.program}-{tried.version}")
def test_what_was_run_says_in_which_tier_there_is(tried: Tried) -> None:
    assert set(tried.tiers) <= {BASE, *(tier.name for tier in TIERS)}
    assert tried.what


@pytest.mark.parametrize("system", ["trixie", "sid"])
def test_the_libvirt_of_every_system_that_ci_runs_is_among_them(system: str) -> None:
    steps = re.findall(
        r"^ *step(?:_if_time)? \./dev test (\w+) --system (\w+)", (ROOT / ".ci" / "run").read_text(), re.MULTILINE
    )
    debian = {"trixie": "Debian 13", "sid": "Debian sid"}[system]
    run = {tier for tier, of in steps if of == system}
    for program in ("libvirt", "QEMU"):
        reported = {
            tier for each in KNOWN.tried if each.program == program and debian in each.what for tier in each.tiers
        }
        assert reported == run, program


def test_the_oldest_python_is_that_of_the_packages() -> None:
    (need,) = [need for need in KNOWN.needs if need.program == "Python"]
    required = re.search(r'requires-python = ">=([\d.]+)"', (ROOT / "pyproject.toml").read_text())
    assert required
    assert ".".join(map(str, need.since)) == required[1]
    assert sys.version_info[:2] >= need.since


def test_names_are_names_of_one_thing() -> None:
    names = [need.name for need in KNOWN.needs if need.name]
    assert len(names) == len(set(names))


@pytest.mark.libvirt
def test_the_libvirt_and_the_qemu_of_this_tier_are_among_them() -> None:
    import os

    from launcherkit.doctor.gather import ask_version
    from tests.tiers import LIBVIRT

    if not os.environ.get("CI"):
        pytest.skip("only CI's own versions are told of")
    for program, names in (("libvirt", ("libvirtd", "virtqemud")), ("QEMU", ("qemu-system-x86_64",))):
        version = ask_version(names, os.environ)
        assert version is not None, program
        short = ".".join(map(str, version[:2]))
        reported = {each.version for each in KNOWN.tried if each.program == program and LIBVIRT.name in each.tiers}
        assert short in reported, f"{program} {short}: add it to launcherkit/compatibility.toml"
