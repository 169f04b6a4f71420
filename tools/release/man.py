"""Man pages of the parsers, by argparse-manpage: ``python -m tools.release.man PROGRAM FOLDER`` writes them."""

from __future__ import annotations

import argparse
import re
import sys
import time
from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path

from argparse_manpage.manpage import Manpage
from hatchling.builders.utils import get_reproducible_timestamp

from launcherkit import __version__
from launcherkit.process.program import parsers_of

PROGRAMS = {
    "launcherkit": "launcherkit.cli.main",
    "launcherkit-plugin": "launcherkit_plugin.__main__",
    "launcherkit-lab": "launcherkit_lab.__main__",
}


def parser_of(name: str) -> argparse.ArgumentParser:
    """The parser of a program with all its commands; the lab, which imports nothing of ours, makes its own."""
    module = import_module(PROGRAMS[name])
    if not hasattr(module, "PROGRAM"):
        made: argparse.ArgumentParser = module.parser()
        return made
    return parsers_of(module.PROGRAM, {}, module.PROGRAM.commands)[0]


def pages(program: str) -> Mapping[str, str]:
    """The text of each page, in groff's language, by the name of its file: one for the program and each command."""
    parser = parser_of(program)
    summary = re.split(r"[:.]\s", " ".join((parser.description or "").split()))[0]
    return {f"{name}.1": text for name, text in _pages(program, program, summary, parser)}


def _pages(program: str, name: str, summary: str, parser: argparse.ArgumentParser) -> Iterator[tuple[str, str]]:
    sections = _sections(parser.epilog or "")
    parser.epilog, parser.description = None, parser.description or f"{summary[0].upper()}{summary[1:].rstrip('.')}."
    page = Manpage(parser)
    page.prog = name
    page.source, page.manual = f"{program} {__version__}", "User Commands"
    # Without dashes, which argparse-manpage would escape, and no reader knows an escaped date.
    page.date = time.strftime("%B %d, %Y", time.gmtime(get_reproducible_timestamp()))
    page.description = summary[0].lower() + summary[1:].rstrip(".")
    below = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    helps = {each.dest: each.help or "" for action in below for each in action._choices_actions}
    if helps:
        page.add_section("commands", ">", "\n".join(map(_entry, helps.items())))
    for heading, content in sections.items():
        page.add_section(heading, ">", content)
    page.add_section("see also", ">", _see_also(name, helps))
    for action in below:
        action.help = argparse.SUPPRESS  # they have pages of their own
    yield name, re.sub(r"\n\n+", "\n.PP\n", re.sub(r"\n\n+(?=\.)", "\n", str(page)))
    for action in below:
        for word, command in action.choices.items():
            yield from _pages(program, f"{name}-{word}", helps[word], command)


def _sections(epilog: str) -> Mapping[str, str]:
    """What follows the options, by its heading."""
    sections: dict[str, list[str]] = {"examples": [], "exit status": [], "notes": []}
    heading = "notes"
    for line in epilog.splitlines():
        if line == "examples:":
            heading = "examples"
            continue
        if line.startswith("exit codes"):
            heading = "exit status"
        elif heading == "examples" and line and not line.startswith(" "):
            heading = "notes"
        if line:
            sections[heading].append(_text(re.sub("^(  |exit codes:? )", "", line)))
    if sections["examples"]:
        sections["examples"] = [".nf", *sections["examples"], ".fi"]
    return {heading: "\n".join(lines) for heading, lines in sections.items() if lines}


def _entry(command: tuple[str, str]) -> str:
    name, about = command
    return f".TP\n.B {_text(name)}\n{_text(about)}"


def _see_also(name: str, commands: Mapping[str, str]) -> str:
    above = [name.rpartition("-")[0]] if name not in PROGRAMS else []
    others = [program for program in PROGRAMS if program not in (name, *above)]
    names = [*above, *(f"{name}-{command}" for command in commands), *others]
    return "\n".join(f".BR {_text(each)} (1){',' if each != names[-1] else ''}" for each in names)


def _text(line: str) -> str:
    """A line of text, which is no request whatever it begins with."""
    shown = line.replace("\\", "\\e").replace("-", "\\-").rstrip()
    return f"\\&{shown}" if shown.startswith((".", "'")) else shown


def main() -> None:
    """Write the pages."""
    name, folder = sys.argv[1:]
    for file, text in pages(name).items():
        Path(folder, file).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
