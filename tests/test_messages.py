"""What a reader of errors and notes must not meet: Python's None and reprs, and options of a command in the library."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path
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
PLURAL = re.compile(r"\w\(s\)")
OF_THE_COMMAND = ("LK105", "LK404")
"""Errors of a file that only an option names, and of golden cases."""
LIBRARY = ("model", "request", "host", "choose", "place", "domain", "pipeline")
"""What a hook uses too."""
FOR_OPTIONS = {"envfile.py", "template.py"}
"""The modules for what is given by an option alone."""


def test_no_golden_case_shows_the_words_of_python() -> None:
    for name, texts, _ in _told():
        assert not [text for text in texts if PYTHON.search(text)], name


def test_no_error_and_no_note_of_the_library_names_an_option_of_the_command() -> None:
    """A hook, and whoever calls `translate`, has none; commands of others are in backquotes."""
    for name, texts, code in _told():
        if code not in OF_THE_COMMAND:
            assert not [text for text in texts if _names_an_option(text)], name


def test_no_text_of_the_library_names_an_option_of_the_command() -> None:
    """Those that no golden case gives, too."""
    texts = [each for room in LIBRARY for each in _texts_below(ROOT / "launcherkit" / room)]
    assert len(texts) > 500
    assert not [each for each in texts if each[0] not in FOR_OPTIONS and _names_an_option(each[1])]


def test_no_provoked_error_shows_the_words_of_python() -> None:
    lines = [line for path in PROVOKED.glob("*.error") for line in path.read_text(encoding="utf-8").splitlines()]
    assert len(lines) > 80
    assert not [line for line in lines if PYTHON.search(line)]


def test_a_number_has_the_right_form_of_its_noun() -> None:
    texts = [*_texts_below(ROOT / "launcherkit"), *_texts_below(ROOT / "plugin" / "launcherkit_plugin")]
    assert not [each for each in texts if PLURAL.search(each[1])]


def test_a_part_of_the_chipset_without_a_driver_is_called_that() -> None:
    bridge = function("0000:00:1f.0", 0x060100, driver=None)
    plan = GroupPlan(1, (), (bridge,), (bridge,))
    with raises_code(BIND_REFUSED) as raised:
        refuse_needed_by_host(plan, facts(bridge), {}, force=False)
    assert str(raised.value).endswith("is part of this host's chipset, bound to no driver")


def _names_an_option(text: str) -> bool:
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


def _texts_below(folder: Path) -> Iterator[tuple[str, str]]:
    """File name and text of every string in the code that has a blank, but for docstrings."""
    for path in sorted(folder.rglob("*.py")):
        nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
        documents = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
        for node in nodes:
            text = node.value if isinstance(node, ast.Constant) and id(node) not in documents else None
            if isinstance(text, str) and " " in text:
                yield path.name, text
