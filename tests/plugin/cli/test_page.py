"""The page of the commands tells of every flag, and of no other."""

from __future__ import annotations

import argparse
import re
from importlib import import_module

import pytest

from launcherkit_plugin.__main__ import COMMANDS
from tests.support.command_lines import arguments_of
from tests.support.pages import ROOT, sections

PAGE = ROOT / "docs" / "reference" / "plugin-cli.md"


def flags(command: str) -> set[str]:
    parser = argparse.ArgumentParser()
    import_module(f"launcherkit_plugin.cli.{command.replace('-', '_')}").add_arguments(parser, {})
    shown = (action for action in arguments_of(parser) if action.help is not argparse.SUPPRESS)
    found = {flag for action in shown for flag in action.option_strings}
    return {flag for flag in found if flag.startswith("--")} - {"--help"}


def reported(section: str) -> set[str]:
    """The flags that the table of a section is about."""
    rows = re.findall(r"^\| (`-.*?) \|", sections(PAGE)[section], re.MULTILINE)
    return set(re.findall(r"`(--[a-z-]+)`", " ".join(rows)))


@pytest.mark.parametrize("command", COMMANDS)
def test_the_page_tells_of_every_flag_of_a_command(command: str) -> None:
    section = f"launcherkit-plugin {command}"
    said = re.search(r"takes\s+all\s+\[places\]\(#places\)(?: but `(--\w+)`)?", sections(PAGE)[section])
    places = reported("Places") - set(said.groups()) if said else set()
    assert reported(section) | places == flags(command)


def test_every_command_has_a_section_and_no_other_is_reported() -> None:
    commands = [name for name in sections(PAGE) if name.startswith("launcherkit-plugin ")]
    assert commands == [f"launcherkit-plugin {command}" for command in COMMANDS]
