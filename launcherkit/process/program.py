"""A program with subcommands: what ``launcherkit`` and ``launcherkit-plugin`` have in common."""

import argparse
import os
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from importlib import import_module
from typing import NamedTuple

from launcherkit.process.arguments import CommandHelp, CommandParser
from launcherkit.process.edge import LOG_FORMAT, LOG_FORMATS, guarded, print_message, write_stdout
from launcherkit.process.terminal import help_columns
from launcherkit.process.variables import warn_of_unknown


class Program(NamedTuple):
    """A program whose commands are modules of one package.

    A command's module has ``DESCRIPTION``, ``EPILOG``, ``add_arguments(parser, env)`` and ``run(args, env)``, which
    returns the exit code. Only the requested command's module is imported.
    """

    name: str
    version: str
    package: str
    description: str
    epilog: str
    commands: Mapping[str, str]
    """Each command's name and line of help. A dash in a name is an underscore in the module's name."""
    unknown: Callable[[Iterable[str]], Iterable[str]] = warn_of_unknown
    """Returns sentences about unknown variables of the environment."""


def main_of(program: Program) -> int:
    """The whole of a console script: returns the exit code."""
    arguments = sys.argv[1:]
    env = {**os.environ, **_log_format(arguments)}
    return guarded(lambda: run_program(program, arguments, env), env)


def _log_format(arguments: Sequence[str]) -> dict[str, str]:
    """The flag ``--log-format`` as its variable: it must be known before the first error."""
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
    at = next((at for at, argument in enumerate(arguments) if argument in program.commands), None)
    shown = program
    if at is not None and {"-h", "--help"}.isdisjoint(arguments[:at]):
        # Parsers for all commands take as long as everything else here, and only the program's own help needs them.
        shown = program._replace(commands={arguments[at]: program.commands[arguments[at]]})
    parser, commands = parsers_of(shown, env, () if at is None else (arguments[at],))
    if at is None:
        _check_command(parser, arguments, program.commands)
    else:
        command = commands[arguments[at]]
        own = set(_options_of(command))
        _check_options(parser, arguments[:at], set(_options_of(parser, below=False)), own)
        _check_options(command, arguments[at + 1 :], own)
    parser.set_defaults(program=program)
    parsed = parser.parse_args(arguments)
    for text in program.unknown(env):
        print_message("note", text, env)
    code: int = parsed.run(parsed, env)
    return code


def parsers_of(
    program: Program, env: Mapping[str, str], imported: Collection[str]
) -> tuple[argparse.ArgumentParser, Mapping[str, argparse.ArgumentParser]]:
    """The parser of a program, and the parsers of its commands by name.

    Args:
        program: the program.
        env: variables that set options.
        imported: commands whose modules are imported; the others have only a name and a line of help.
    """
    help_form = partial(CommandHelp, width=help_columns(env) - 2)
    parser = CommandParser(
        prog=program.name,
        description=program.description,
        epilog=program.epilog,
        formatter_class=help_form,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action=_Version, version=f"{program.name} {program.version}")
    parser.add_argument(
        "--log-format", choices=LOG_FORMATS, help="how errors and notes are written to standard error (default: text)"
    )
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, text in program.commands.items():
        command = commands.add_parser(name, help=text, formatter_class=help_form, allow_abbrev=False)
        if name in imported:
            module = import_module(f"{program.package}.{name.replace('-', '_')}")
            command.description = module.DESCRIPTION
            command.epilog = module.EPILOG
            module.add_arguments(command, env)
            command.set_defaults(run=module.run)
    return parser, commands.choices


class _Version(argparse.Action):
    """Prints one line however narrow the terminal is; argparse's own action breaks it."""

    def __init__(self, option_strings: Sequence[str], dest: str, version: str) -> None:
        about = "show the program's version and exit"
        super().__init__(option_strings, dest, nargs=0, default=argparse.SUPPRESS, help=about)
        self._version = version

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        write_stdout(f"{self._version}\n".encode())
        parser.exit()


def _check_command(parser: argparse.ArgumentParser, arguments: Sequence[str], commands: Collection[str]) -> None:
    """Exit with 2 if the first argument isn't a command, naming the nearest; argparse would list them all."""
    if arguments and not arguments[0].startswith("-"):
        from launcherkit.diff import did_you_mean

        near = did_you_mean(arguments[0], commands)
        parser.error(f"there is no command {arguments[0][:40]}{near or f'; `{parser.prog} --help` lists them'}")


def _check_options(
    parser: argparse.ArgumentParser, arguments: Iterable[str], options: Collection[str], later: Collection[str] = ()
) -> None:
    """Exit with 2 at the first unknown option, naming the nearest.

    argparse would blame the program, not its command, and would first complain about the missing argument.

    Args:
        parser: reports the error.
        arguments: those for this parser.
        options: its options.
        later: options of the command that follows.
    """
    for argument in arguments:
        option = argument.partition("=")[0]
        if option == "--":
            return
        if not option.startswith("--") or " " in option or option in options:
            continue
        if option in later:
            parser.error(f"{option} is an option of the command: give it after that")
        from launcherkit.diff import did_you_mean

        parser.error(f"there is no option {option[:40]}{did_you_mean(option, options)}")


def _options_of(parser: argparse.ArgumentParser, *, below: bool = True) -> Iterator[str]:
    """The options of a parser and, with ``below``, its subparsers."""
    for action in parser._actions:
        yield from action.option_strings
        if below and isinstance(action, argparse._SubParsersAction):
            for command in action.choices.values():
                yield from _options_of(command)
