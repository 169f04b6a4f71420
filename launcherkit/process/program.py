"""A command of commands: what ``launcherkit`` and ``launcherkit-plugin`` have in common."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import NamedTuple

from launcherkit.process.edge import LOG_FORMAT, LOG_FORMATS, guarded


class Program(NamedTuple):
    """A program, whose commands are modules of one package.

    A command's module has ``DESCRIPTION``, ``EPILOG``, ``add_arguments(parser, env)`` and ``run(args, env)``, which
    gives the exit code. Only that of the command which is wanted is imported.
    """

    name: str
    version: str
    package: str
    description: str
    epilog: str
    commands: Mapping[str, str]
    """Name to a line of help. Dashes in a name are underscores in that of its module."""


def main_of(program: Program) -> int:
    """What a console script does."""
    arguments = sys.argv[1:]
    env = {**os.environ, **_log_format(arguments)}
    return guarded(lambda: run_program(program, arguments, env), env)


def _log_format(arguments: Sequence[str]) -> dict[str, str]:
    """The flag ``--log-format`` as its variable: it must be known before anything can go wrong."""
    for position, argument in enumerate(arguments):
        name, equals, value = argument.partition("=")
        if name == "--log-format":
            following = arguments[position + 1] if position + 1 < len(arguments) else ""
            chosen = value if equals else following
            return {LOG_FORMAT: chosen} if chosen in LOG_FORMATS else {}
        if not argument.startswith("-"):
            break
    return {}


def run_program(program: Program, arguments: Sequence[str], env: Mapping[str, str]) -> int:
    """Parse the arguments and run the command that they name; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog=program.name,
        description=program.description,
        epilog=program.epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"{program.name} {program.version}")
    parser.add_argument(
        "--log-format", choices=LOG_FORMATS, help="how errors and notes are written to standard error (default: text)"
    )
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    wanted = next((argument for argument in arguments if argument in program.commands), None)
    for name, text in program.commands.items():
        command = commands.add_parser(
            name, help=text, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
        )
        if name == wanted:
            module = import_module(f"{program.package}.{name.replace('-', '_')}")
            command.description = module.DESCRIPTION
            command.epilog = module.EPILOG
            module.add_arguments(command, env)
            command.set_defaults(run=module.run)
    parsed = parser.parse_args(arguments)
    code: int = parsed.run(parsed, env)
    return code
