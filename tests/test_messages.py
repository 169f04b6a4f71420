"""What a reader of errors and notes must not meet: Python's None and reprs, and options of a command in the library."""

from __future__ import annotations

import re
from pathlib import Path

from launcherkit.errors import LauncherkitError
from launcherkit.golden.case import read_case
from launcherkit.golden.invoke import Scratch, translate_case

ROOT = Path(__file__).parents[1]
GOLDENS = ROOT / "tests" / "golden"
PYTHON = re.compile(r"\b(?:None|True|False)\b|<[a-z_.]+ object at|\w+\((?:\w+=|['\"])")
OPTION = re.compile(r"(?<![\w-])--[a-z]")
OF_THE_COMMAND = ("LK105", "LK404")
"""Errors of a file that only an option names, and of golden cases."""


def test_no_golden_case_shows_the_words_of_python(tmp_path: Path) -> None:
    for name, texts, _ in _told(tmp_path):
        assert not [text for text in texts if PYTHON.search(text)], name


def test_no_error_of_the_library_names_an_option_of_the_command(tmp_path: Path) -> None:
    """A hook, and whoever calls `translate`, has none; commands of others are in backquotes."""
    for name, texts, code in _told(tmp_path):
        if code and code not in OF_THE_COMMAND:
            assert not [text for text in texts if OPTION.search(re.sub("`[^`]*`", "", text))], name


def _told(tmp_path: Path) -> list[tuple[str, list[str], str]]:
    """The name of each golden case, what it tells, and the code of an error."""
    found: list[tuple[str, list[str], str]] = []
    for path in sorted(path.parent for path in GOLDENS.glob("*/case.yaml")):
        scratch = tmp_path / path.name
        scratch.mkdir()
        try:
            _, plan = translate_case(read_case(str(path)), Scratch(str(scratch)))
        except LauncherkitError as error:
            found += [(path.name, [leaf.message, leaf.remedy], leaf.code) for leaf in error.leaves()]
        else:
            found.append((path.name, _texts(plan), ""))
    return found


def _texts(value: object) -> list[str]:
    """All texts in JSON."""
    if isinstance(value, str):
        return [value]
    inside = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [text for each in inside for text in _texts(each)]
