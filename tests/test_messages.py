"""What a reader of errors and notes must not meet: Python's None and reprs, and options of a command in the library."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from tempfile import TemporaryDirectory

from launcherkit.errors import LauncherkitError
from launcherkit.golden.case import read_case
from launcherkit.golden.invoke import Scratch, translate_case
from launcherkit_plugin.binding.group import GroupPlan, refuse_needed_by_host
from launcherkit_plugin.model.errors import BIND_REFUSED
from tests.support.errors import raises_code
from tests.support.facts import facts, function
from tests.support.imports import ROOT

GOLDENS = ROOT / "tests" / "golden"
PROVOKED = ROOT / "tests" / "provoked"
PYTHON = re.compile(
    r"\b(?:None|True|False)\b|<[a-z_.]+ object at|\w+\((?:\w+=|['\"])|\[Errno|\b\w+(?:Error|Exception)\b|\bwith -\d"
)
OPTION = re.compile(r"(?<![\w-])--[a-z]")
OF_THE_COMMAND = ("LK105", "LK404")
"""Errors of a file that only an option names, and of golden cases."""


def test_no_golden_case_shows_the_words_of_python() -> None:
    for name, texts, _ in _told():
        assert not [text for text in texts if PYTHON.search(text)], name


def test_no_error_and_no_note_of_the_librarynames_an_option_of_the_command() -> None:
    """A hook, and whoever calls `translate`, has none; commands of others are in backquotes."""
    for name, texts, code in _told():
        if code not in OF_THE_COMMAND:
            assert not [text for text in texts if names_an_option(text)], name


def test_no_provoked_error_shows_the_words_of_python() -> None:
    lines = [line for path in PROVOKED.glob("*.error") for line in path.read_text(encoding="utf-8").splitlines()]
    assert len(lines) > 80
    assert not [line for line in lines if PYTHON.search(line)]


def test_a_part_of_the_chipset_without_a_driver_is_called_that() -> None:
    bridge = function("0000:00:1f.0", 0x060100, driver=None)
    plan = GroupPlan(1, (), (bridge,), (bridge,))
    with raises_code(BIND_REFUSED) as raised:
        refuse_needed_by_host(plan, facts(bridge), {}, force=False)
    assert str(raised.value).endswith("is part of this host's chipset, bound to no driver")


def names_an_option(text: str) -> bool:
    return OPTION.search(re.sub("`[^`]*`", "", text)) is not None


@functools.cache
def _told() -> list[tuple[str, list[str], str]]:
    """The name of each golden case, what it tells, and the code of an error."""
    found: list[tuple[str, list[str], str]] = []
    for path in sorted(path.parent for path in GOLDENS.glob("*/case.yaml")):
        try:
            with TemporaryDirectory() as scratch:
                _, plan = translate_case(read_case(str(path)), Scratch(scratch))
        except LauncherkitError as error:
            found += [(path.name, [leaf.message, leaf.remedy], leaf.code) for leaf in error.leaves()]
        else:
            found.append((path.name, [*_strings(plan)], ""))
    return found


def _strings(value: object) -> Iterator[str]:
    """All texts in JSON."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for each in value.values() if isinstance(value, dict) else value:
            yield from _strings(each)
