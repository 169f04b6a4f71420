"""Scripts by which shells complete command lines, made from the parsers of all commands."""

from __future__ import annotations

import argparse
from collections.abc import Collection, Iterator, Mapping

from launcherkit.errors import COMPLETION_NOT_INSTALLED
from launcherkit.process.program import Program, parsers_of

SHELLS = ("bash", "zsh", "fish")

_OF_PATHS = ("FILE", "SNAPSHOT", "SOCKET", "CASE")
_OF_FOLDERS = ("DIR", "ROOT")


def completion_script(program: Program, shell: str, env: Mapping[str, str], pages: Collection[str] = ()) -> str:
    """The completion script of a program.

    Args:
        program: its commands and options are completed.
        shell: one of `SHELLS`.
        env: the process's.
        pages: possible values of a command's argument ``page``.

    Raises:
        COMPLETION_NOT_INSTALLED: shtab is missing.
    """
    try:
        import shtab
    except ModuleNotFoundError as missing:
        raise COMPLETION_NOT_INSTALLED(
            f"the module {missing.name} is not installed, and completion needs it",
            f"Install {program.name} with its extra `completion`. The script that it prints needs nothing.",
            key=shell,
        ) from missing
    parser, commands = parsers_of(program, env, program.commands)
    for name, command in commands.items():
        command.description = program.commands[name]  # one line: shells show it beside the name
    for action in (each for command in commands.values() for each in _actions_of(command)):
        metavar = action.metavar if isinstance(action.metavar, str) else "".join(action.metavar or ())
        if action.dest == "page":
            action.choices, action.help = list(pages), "its page"
        elif any(word in metavar for word in _OF_PATHS):
            action.complete = shtab.FILE  # type: ignore[attr-defined]  # where shtab looks for it
        elif any(word in metavar for word in _OF_FOLDERS):
            action.complete = shtab.DIRECTORY  # type: ignore[attr-defined]
    return shtab.complete(parser, shell=shell)


def _actions_of(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    """The arguments of a parser and its subparsers."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for command in action.choices.values():
                yield from _actions_of(command)
        else:
            yield action
