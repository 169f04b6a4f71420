"""Man pages, made from the parsers: ``python -m release.man PROGRAM FOLDER`` writes them."""

from __future__ import annotations

import argparse
import re
import sys
import time
from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path

from hatchling.builders.utils import get_reproducible_timestamp

from launcherkit.process.program import Program, parsers_of

PROGRAMS = {"launcherkit": "launcherkit.cli.main", "launcherkit-plugin": "launcherkit_plugin.__main__"}


def pages(program: Program) -> Mapping[str, str]:
    """The text of each page, in groff's language, by the name of its file."""
    parser, commands = parsers_of(program, {}, program.commands)
    summary = " ".join(program.description.split()).partition(":")[0].partition(". ")[0]
    made = {program.name: _page(program, program.name, summary[0].lower() + summary[1:], parser)}
    for name, command in commands.items():
        made[f"{program.name}-{name}"] = _page(program, f"{program.name} {name}", program.commands[name], command)
    return {f"{name}.1": text for name, text in made.items()}


def _page(program: Program, title: str, summary: str, parser: argparse.ArgumentParser) -> str:
    file = title.replace(" ", "-")
    day = time.strftime("%Y-%m-%d", time.gmtime(get_reproducible_timestamp()))
    below = _below(parser)
    lines = [
        f'.TH "{file.upper()}" 1 "{day}" "{program.name} {program.version}" "User Commands"',
        *(".SH NAME", f"{_text(file)} \\- {_text(summary.rstrip('.'))}"),
        *(".SH SYNOPSIS", f".B {_text(title)}", *_arguments(parser, below)),
        *(".SH DESCRIPTION", *_paragraphs(parser.description or "")),
        *_options(parser),
    ]
    if below:
        lines.append(".SH COMMANDS")
        for name, (about, command) in below.items():
            lines += [".TP", f".B {_text(name)}", _line(about)]
            own = [line for line in _options(command) if not line.startswith(".S")]
            if own and title != program.name:  # whose commands have pages of their own
                lines += [".RS", *own, ".RE"]
    lines += _epilog(parser.epilog or "")
    lines += [".SH SEE ALSO", *_see_also(program, file)]
    return "".join(f"{line}\n" for line in lines)


def _below(parser: argparse.ArgumentParser) -> Mapping[str, tuple[str, argparse.ArgumentParser]]:
    """The commands of a parser, each with its line of help."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            about = {each.dest: each.help or "" for each in action._choices_actions}
            return {name: (about.get(name, ""), command) for name, command in action.choices.items()}
    return {}


def _arguments(parser: argparse.ArgumentParser, below: Mapping[str, object]) -> Iterator[str]:
    yield "[\\fIoptions\\fR]"
    for action in parser._get_positional_actions():
        word = "COMMAND" if below else _metavar(action, parser)
        yield f"[\\fI{_text(word)}\\fR]" if action.nargs in ("?", "*") else f"\\fI{_text(word)}\\fR"
    if below:
        yield "[\\fIarguments\\fR]"


def _options(parser: argparse.ArgumentParser) -> Iterator[str]:
    formatter = parser._get_formatter()
    started = False
    for group in parser._action_groups:
        actions = [each for each in group._group_actions if not isinstance(each, argparse._SubParsersAction)]
        actions = [each for each in actions if each.help is not argparse.SUPPRESS and each.dest != "help"]
        if not actions:
            continue
        if not started:
            yield ".SH OPTIONS"
        started = True
        if group.title not in ("options", "positional arguments"):
            yield f".SS {_text(group.title or '')}"
            yield from _paragraphs(group.description or "")
        for action in actions:
            yield ".TP"
            value = "" if action.nargs == 0 else f" \\fI{_text(_metavar(action, parser))}\\fR"
            names = ", ".join(f"\\fB{_text(name)}\\fR" for name in action.option_strings)
            yield f"{names}{value}".strip()
            yield _line(formatter._expand_help(action) if action.help else "")


def _metavar(action: argparse.Action, parser: argparse.ArgumentParser) -> str:
    formatter = parser._get_formatter()
    default = action.dest.upper() if action.option_strings else action.dest
    return formatter._format_args(action, default)


def _epilog(text: str) -> Iterator[str]:
    """What follows the options: examples, exit codes, and what else there is to say."""
    kind = ""
    for line in text.splitlines():
        if line.startswith("examples:"):
            kind = "examples"
            yield from (".SH EXAMPLES", ".nf")
            continue
        if kind == "examples" and line.startswith(" "):
            yield _line(line.removeprefix("  "))
            continue
        if kind == "examples":
            kind = ""
            yield ".fi"
        if line.startswith("exit codes:"):
            yield from (".SH EXIT STATUS", _line(line.removeprefix("exit codes:").strip()))
        elif line:
            yield from ([".SH NOTES"] if not kind else [])
            kind = kind or "notes"
            yield _line(line)
    if kind == "examples":
        yield ".fi"


def _see_also(program: Program, file: str) -> Iterator[str]:
    own = [f"{program.name}-{name}" for name in program.commands] if file == program.name else [program.name]
    names = [*own, *(name for name in PROGRAMS if name != program.name)]
    for name in names:
        yield f".BR {_text(name)} (1){',' if name != names[-1] else ''}"


def _paragraphs(text: str) -> Iterator[str]:
    for position, part in enumerate(filter(None, re.split(r"\n\s*\n", text.strip()))):
        yield from ([".PP"] if position else [])
        yield from map(_line, part.splitlines())


def _line(text: str) -> str:
    """A line of text, which is no request whatever it begins with."""
    shown = _text(text.rstrip())
    return f"\\&{shown}" if shown.startswith((".", "'")) else shown


def _text(text: str) -> str:
    return text.replace("\\", "\\e").replace("-", "\\-")


def main() -> int:
    """Write the pages."""
    name, folder = sys.argv[1:]
    for file, text in pages(import_module(PROGRAMS[name]).PROGRAM).items():
        Path(folder, file).write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
